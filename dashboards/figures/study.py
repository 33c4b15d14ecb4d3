"""The conditions of a study: what every block took, and the median with its interval."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from tracekit.dashboards.figures import text
from tracekit.dashboards.figures.base import styled
from tracekit.dashboards.figures.colors import ACCENT, MUTED
from tracekit.study.statistics import ConditionSummary

_ROW = 46


def blocks_figure(
    conditions: Sequence[ConditionSummary], blocks_ms: Mapping[str, Sequence[float]], step: str
) -> go.Figure:
    """For each condition, the first on top, a box over its blocks with every block as a point, and below it the
    interval of the median. blocks_ms: by condition, the `step` (in words: which) of each block, ms."""
    longest = max((time for condition in conditions for time in blocks_ms.get(condition.name, ())), default=1.0)
    size, unit = text.time_unit(longest * 1e6)
    per_ms = 1e6 / size
    figure = go.Figure()
    for row, condition in enumerate(conditions):
        blocks = blocks_ms.get(condition.name, ())
        if not blocks:
            continue
        name = text.label(condition.name, 60)
        figure.add_trace(
            go.Box(
                name=name,
                orientation="h",
                x=[time * per_ms for time in blocks],
                y=[row] * len(blocks),
                width=0.4,
                boxpoints="all",
                pointpos=0,
                jitter=0.5,
                line={"width": 1.2, "color": MUTED},
                fillcolor="rgba(163,171,181,0.18)",
                marker={"size": 5, "color": ACCENT, "opacity": 0.75},
                hoveron="points",
                hovertext=[
                    f"<b>{name}</b>, block {number}<br>{text.duration(time * 1e6)} a step"
                    for number, time in enumerate(blocks, 1)
                ],
                hovertemplate="%{hovertext}<extra></extra>",
            )
        )
    measured = [(row, each) for row, each in enumerate(conditions) if each.blocks]
    if measured:
        figure.add_trace(_medians(measured, per_ms))
    styled(
        figure,
        _ROW * len(conditions) + 70,
        showlegend=False,
        boxmode="overlay",
        margin={"l": 64, "r": 16, "t": 8, "b": 48},
    )
    figure.update_xaxes(title_text=f"{step} of a block ({unit})", exponentformat="none")
    figure.update_yaxes(
        tickmode="array",
        tickvals=list(range(len(conditions))),
        ticktext=[text.label(condition.name, 30) for condition in conditions],
        range=[len(conditions) - 0.4, -0.6],
        fixedrange=True,
        showgrid=False,
        ticklabelstandoff=8,
    )
    return figure


def _medians(measured: Sequence[tuple[int, ConditionSummary]], per_ms: float) -> go.Scatter:
    return go.Scatter(
        name="median",
        x=[each.median_ms * per_ms for _, each in measured],
        y=[row + 0.34 for row, _ in measured],
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [(each.ci[1] - each.median_ms) * per_ms for _, each in measured],
            "arrayminus": [(each.median_ms - each.ci[0]) * per_ms for _, each in measured],
            "color": ACCENT,
            "thickness": 2,
            "width": 4,
        },
        mode="markers",
        marker={"size": 9, "symbol": "diamond", "color": ACCENT},
        hovertext=[
            f"<b>{text.label(each.name, 60)}</b>, {each.blocks} blocks<br>median {text.duration(each.median_ms * 1e6)}"
            f" ({text.duration(each.ci[0] * 1e6)} to {text.duration(each.ci[1] * 1e6)})"
            for _, each in measured
        ],
        hovertemplate="%{hovertext}<extra></extra>",
    )
