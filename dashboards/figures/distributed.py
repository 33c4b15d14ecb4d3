"""Ranks that wait for each other: who waited when and why, and how well they work together."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from tracekit.analysis.delays import NOISE
from tracekit.analysis.meetings import Meetings
from tracekit.analysis.report_schema import BucketForecast, BucketSummary, WhatIf
from tracekit.dashboards.figures import text
from tracekit.dashboards.figures.base import styled
from tracekit.dashboards.figures.colors import ACCENT, LATE_COLORS, LINES, MUTED

_LANE = 30
# Of a lane's width; buckets that follow each other lie in turn in so many rows below it.
_LANE_WIDTH, _ROWS, _ROW = 0.6, 2, 0.1
_WORK, _TRANSFER, _UNKNOWN = "its own work", "transfer", "waiting, cause not known"
_TREE = {"parallel": 0, "load balance": 1, "communication": 1, "serialization": 2, "transfer": 2}  # how deep each is
_INDENT = "· "


def meetings_figure(
    meetings: Meetings, causes: Sequence[str], first: int, last: int, buckets: pd.DataFrame | None = None
) -> go.Figure:
    """A lane per rank with what it did between the meetings `first` to `last`; waiting in the colour of the phase that
    the last one was late by, as `causes` tells by meeting. Below it the gradient `buckets` that are under way, as
    `queries.buckets_between` tells them."""
    origin = int(meetings.left[:, first].min())
    bars: dict[str, list[tuple[int, int, int, str]]] = {}  # by what it is: lane, begin, length, more words

    def add(what: str, lane: int, begin: int, end: int, words: str = "") -> None:
        if end > begin:
            bars.setdefault(what, []).append((lane, begin - origin, end - begin, words))

    for at in range(first + 1, last + 1):
        came = int(meetings.came[:, at].max())
        late = meetings.ranks[int(meetings.last[at])]
        for lane in range(len(meetings.ranks)):
            own, entered = int(meetings.came[lane, at]), int(meetings.entered[lane, at])
            waits, left = entered + int(meetings.beside[lane, at]), int(meetings.left[lane, at])
            add(_WORK, lane, int(meetings.left[lane, at - 1]), own)
            add(_waiting(causes[at]), lane, own, min(entered, came), f"for rank {late}, in other communication")
            add(_TRANSFER, lane, max(own, min(entered, came)), entered, "of other communication")
            add(_WORK, lane, entered, waits, "while the transfer goes on")
            add(_waiting(causes[at]), lane, waits, came, f"for rank {late}")
            add(_TRANSFER, lane, max(came, waits), left)
    colors = {_WORK: MUTED, _TRANSFER: LINES[5], _UNKNOWN: LINES[6]}
    colors |= {_waiting(phase): LATE_COLORS[phase] for phase in set(causes) - {""}}
    figure = go.Figure()
    for what, drawn in bars.items():
        lanes, begins, lengths, words = zip(*drawn, strict=True)
        told = [f"<b>{what}</b> {more}<br>{text.duration(length)}" for length, more in zip(lengths, words, strict=True)]
        figure.add_trace(_bars(what, colors[what], _LANE_WIDTH, lanes, begins, lengths, told))
    if buckets is not None and len(buckets):
        figure.add_trace(_buckets(buckets, origin))
    names = [f"rank {rank}" for rank in meetings.ranks]
    styled(figure, 110 + _LANE * len(names), showlegend=True, barmode="overlay")
    figure.update_xaxes(title_text="time (ms)", exponentformat="none")
    figure.update_yaxes(
        tickvals=list(range(len(names))), ticktext=names, range=[len(names) - 0.4, -0.6], showgrid=False
    )
    return figure


def _buckets(buckets: pd.DataFrame, origin: int) -> go.Bar:
    lengths = buckets["back_ns"] - buckets["ready_ns"]
    told = [
        f"<b>bucket {bucket}</b> of {size / 1e6:.3g} MB<br>back after {text.duration(length)}"
        f"{f', or earlier by up to {text.duration(unsure)}' if unsure else ''}"
        for bucket, size, unsure, length in zip(
            buckets["bucket"], buckets["bytes"], buckets["unsure_ns"], lengths, strict=True
        )
    ]
    rows = buckets["lane"] + _LANE_WIDTH / 2 + _ROW * (buckets["bucket"] % _ROWS + 0.5)
    begins = buckets["ready_ns"] - origin
    return _bars("a gradient bucket under way", LINES[1], _ROW, rows.tolist(), begins.tolist(), lengths.tolist(), told)


def _bars(
    what: str, color: str, width: float, lanes: Sequence[float], begins: Sequence[int], lengths: Sequence[int],
    told: Sequence[str],
) -> go.Bar:  # fmt: skip
    return go.Bar(
        name=what,
        orientation="h",
        y=list(lanes),
        base=[begin / 1e6 for begin in begins],
        x=[length / 1e6 for length in lengths],
        width=width,
        marker={"color": color, "line": {"width": 0}},
        hovertext=list(told),
        hovertemplate="%{hovertext}<extra></extra>",
    )


def _waiting(phase: str) -> str:
    if phase == NOISE:
        return "waiting, noise kept it from its CPU"
    return f"waiting, {phase} was late" if phase else _UNKNOWN


def efficiency_figure(tree: Mapping[str, float]) -> go.Figure:
    """POP's efficiencies as bars of percent, each below what it is a factor of."""
    names = [name for name in _TREE if name in tree]
    labels = [f"{_INDENT * _TREE[name]}{name}" for name in names]
    figure = go.Figure(
        go.Bar(
            orientation="h",
            y=list(range(len(names))),
            x=[100 * tree[name] for name in names],
            marker={"color": ACCENT, "line": {"width": 0}},
            text=[f"{tree[name]:.1%}" for name in names],
            textposition="auto",
            hoverinfo="skip",
        )
    )
    styled(figure, 84 + 26 * len(names), showlegend=False)
    figure.update_xaxes(title_text="efficiency (%)", range=[0, 100 * max(1.0, *(tree[name] for name in names))])
    figure.update_yaxes(
        tickvals=list(range(len(names))), ticktext=labels, range=[len(names) - 0.4, -0.6], showgrid=False
    )
    return figure


def middle_of(meetings: Meetings, count: int) -> tuple[int, int]:
    """The first and last of so many meetings in the middle of the run, between which no step was left out."""
    known = np.flatnonzero(meetings.followed)
    middle = int(known[len(known) // 2]) if len(known) else meetings.entered.shape[1] // 2
    stretches = [(int(begin), int(end)) for begin, end in zip(*meetings.stretches, strict=True)]
    begin, end = next((each for each in stretches if each[0] <= middle <= each[1]), (middle, middle))
    first = max(min(middle - count // 2, end - count), begin)
    return first, min(first + count, end)


def buckets_figure(buckets: BucketSummary) -> go.Figure:
    """The time of a step by the cap of the gradient buckets, predicted or measured, with its range; that of the run
    stands out."""
    now = buckets.forecasts[0]
    ranked = sorted(buckets.forecasts, key=lambda each: each.cap_mb)
    figure = go.Figure()
    figure.add_trace(
        go.Scatter(
            name="predicted" if buckets.rounds is None else "measured",
            x=[each.cap_mb for each in ranked],
            y=[each.expected_ms for each in ranked],
            error_y=_ranges(ranked),
            mode="lines+markers",
            marker={"color": ACCENT},
            hovertext=[
                f"{each.cap_mb:g} MiB: {each.buckets or '?'} buckets, {each.expected_ms:.4g} ms" for each in ranked
            ],
            hovertemplate="%{hovertext}<extra></extra>",
        )
    )
    figure.add_trace(
        go.Scatter(
            name="now",
            x=[now.cap_mb],
            y=[now.expected_ms],
            mode="markers",
            marker={"color": LINES[1], "size": 12, "symbol": "diamond"},
        )
    )
    if buckets.ideal_ms is not None:
        figure.add_hline(
            y=buckets.ideal_ms, line={"color": MUTED, "dash": "dot"}, annotation_text="without communication"
        )
    styled(figure, 320, showlegend=True)
    figure.update_xaxes(title_text="cap of a bucket (MiB)", type="log")
    figure.update_yaxes(title_text="step (ms)", rangemode="tozero")
    return figure


def what_if_figure(buckets: BucketSummary) -> go.Figure:
    """What a step would take, with its range, were something else; hollow where the program's results would differ. The
    line is the step as it is."""
    figure = go.Figure()
    for effect, name, symbol in (("", "results stay", "circle"), ("numerics", "results differ", "circle-open")):
        some = [each for each in buckets.what_if if (each.effect == "numerics") == bool(effect)]
        if not some:
            continue
        figure.add_trace(
            go.Scatter(
                name=name,
                x=[each.expected_ms for each in some],
                y=[each.what for each in some],
                error_x=_ranges(some),
                mode="markers",
                marker={"color": ACCENT, "symbol": symbol, "size": 9},
                hovertemplate="%{y}: %{x:.4g} ms<extra></extra>",
            )
        )
    figure.add_vline(x=buckets.forecasts[0].expected_ms, line={"color": MUTED, "dash": "dot"}, annotation_text="now")
    styled(figure, 120 + 26 * len(buckets.what_if), showlegend=True)
    figure.update_xaxes(title_text="step (ms)", rangemode="tozero")
    figure.update_yaxes(autorange="reversed", showgrid=False)
    return figure


def _ranges(told: Sequence[BucketForecast | WhatIf]) -> dict[str, object]:
    """From the least to the most that a step may take."""
    return {
        "array": [each.high_ms - each.expected_ms for each in told],
        "arrayminus": [each.expected_ms - each.low_ms for each in told],
    }
