"""Loaders: what the program waits for, what is predicted at other settings, and the workers beside the program."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from tracekit.analysis.report_schema import LoaderForecast
from tracekit.dashboards.figures import text
from tracekit.dashboards.figures.base import styled
from tracekit.dashboards.figures.colors import LINES, MUTED, PHASE_COLORS

_LANE = 26
_MAKING, _WAITING = LINES[0], PHASE_COLORS["loading wait"]


@dataclass(frozen=True)
class Mark:
    """A point of the surface that is to be seen."""

    label: str
    num_workers: int
    prefetch_factor: int
    symbol: str


def surface_figure(forecasts: Sequence[LoaderForecast], marks: Sequence[Mark]) -> go.Figure:
    """Batches per second as expected at every number of workers (across) and prefetch factor (up). Without workers
    there is no prefetch factor: what is predicted then stands in all rows."""
    workers = sorted({each.num_workers for each in forecasts})
    factors = sorted({each.prefetch_factor for each in forecasts if each.num_workers}) or [0]
    known = {(each.num_workers, each.prefetch_factor if each.num_workers else 0): each for each in forecasts}
    cells = [[known.get((count, factor if count else 0)) for count in workers] for factor in factors]
    figure = go.Figure(
        go.Heatmap(
            x=list(range(len(workers))),
            y=list(range(len(factors))),
            z=[[1e3 / each.expected_ms if each and each.expected_ms > 0 else None for each in row] for row in cells],
            hovertext=[[_hover(each) for each in row] for row in cells],
            hovertemplate="%{hovertext}<extra></extra>",
            colorscale="Viridis",
            colorbar={"title": {"text": "batches/s"}, "thickness": 12},
            xgap=1,
            ygap=1,
        )
    )
    for mark in marks:
        if mark.num_workers in workers and (mark.prefetch_factor in factors or not mark.num_workers):
            row = factors.index(mark.prefetch_factor) if mark.prefetch_factor in factors else 0
            figure.add_trace(
                go.Scatter(
                    name=mark.label,
                    x=[workers.index(mark.num_workers)],
                    y=[row],
                    mode="markers",
                    marker={
                        "symbol": mark.symbol,
                        "size": 15,
                        "color": "white",
                        "line": {"width": 2, "color": "black"},
                    },
                    hoverinfo="skip",
                )
            )
    styled(figure, 60 + 44 * max(len(factors), 4), showlegend=True)
    figure.update_xaxes(
        title_text="workers", tickvals=list(range(len(workers))), ticktext=[str(each) for each in workers]
    )
    figure.update_yaxes(
        title_text="prefetch factor", tickvals=list(range(len(factors))), ticktext=[str(each) for each in factors]
    )
    return figure


def _hover(forecast: LoaderForecast | None) -> str:
    if forecast is None:
        return ""
    words = f"{forecast.num_workers} workers x {forecast.prefetch_factor}" if forecast.num_workers else "no workers"
    low, expected, high = (text.duration(ms * 1e6) for ms in (forecast.low_ms, forecast.expected_ms, forecast.high_ms))
    return f"<b>{words}</b><br>{expected} a batch ({low} to {high})"


def workers_figure(batches: pd.DataFrame, steps: pd.DataFrame) -> go.Figure:
    """Who made which batch when, above when the program waited for one and its steps. `batches` as `made_batches` gives
    them, `steps` with `start_ns` and `duration_ns`; time counts from the first of the batches."""
    origin = int(min(batches["asked_ns"].min(), batches.loc[batches["maker"] >= 0, "made_start_ns"].min()))
    made = batches[batches["maker"] >= 0]
    lanes: list[tuple[str, str, pd.Series, pd.Series, list[str]]] = [
        ("steps", MUTED, steps["start_ns"], steps["duration_ns"], ["a step"] * len(steps)),
        ("waits", _WAITING, batches["asked_ns"], batches["received_ns"] - batches["asked_ns"], _named(batches, "for")),
    ]
    for worker, part in made.groupby("worker"):
        name = "made by itself" if worker < 0 else f"worker {worker}"
        took = part["made_ns"] - part["made_start_ns"]
        lanes.append((name, _MAKING, part["made_start_ns"], took, _named(part, "makes")))
    figure = go.Figure()
    for row, (name, color, starts, lengths, labels) in enumerate(lanes):
        took = lengths.to_numpy(dtype=np.float64)
        figure.add_trace(
            go.Bar(
                orientation="h",
                y=[row] * len(took),
                base=((starts - origin) / 1e6).tolist(),
                x=(took / 1e6).tolist(),
                width=0.7,
                marker={"color": color, "line": {"width": 0.5, "color": "rgba(255,255,255,0.6)"}},
                hovertext=[
                    f"<b>{name}</b> {label}<br>{text.duration(ns)}" for label, ns in zip(labels, took, strict=True)
                ],
                hovertemplate="%{hovertext}<extra></extra>",
            )
        )
    styled(figure, 84 + _LANE * len(lanes), showlegend=False, barmode="overlay")
    figure.update_xaxes(title_text="time (ms)", exponentformat="none")
    names = [name for name, *_ in lanes]
    figure.update_yaxes(
        tickvals=list(range(len(names))), ticktext=names, range=[len(names) - 0.4, -0.6], showgrid=False
    )
    return figure


def _named(batches: pd.DataFrame, verb: str) -> list[str]:
    return [
        f"{verb} batch {index} of epoch {epoch}"
        for index, epoch in zip(batches["index"], batches["epoch"], strict=True)
    ]
