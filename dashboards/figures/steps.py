"""Steps over time, and where their time goes."""

from typing import NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from tsdownsample import MinMaxLTTBDownsampler

from tracekit.dashboards.figures import text
from tracekit.dashboards.figures.base import styled
from tracekit.dashboards.figures.colors import ACCENT, MUTED, PHASE_COLORS

# More points than pixels show nothing more.
POINTS = 1_500
# Steps are averaged in groups for the phases over time: as many as bars that can still be told apart.
_GROUPS = 120


def steps_figure(steps: pd.DataFrame, origin: int) -> go.Figure:
    """How long each step took. steps: process, step, start_ns, duration_ns; the axis counts seconds from `origin`
    (ns)."""
    figure = go.Figure()
    size, unit = text.time_unit(float(steps["duration_ns"].median()) if len(steps) else 1e6)
    processes = steps["process"].unique()
    for process in processes:
        rows = steps[steps["process"] == process].sort_values("start_ns")
        shown = thinned(rows, "start_ns", "duration_ns")
        figure.add_trace(
            go.Scatter(
                name=f"process {process}",
                x=(shown["start_ns"].to_numpy() - origin) / 1e9,
                y=shown["duration_ns"].to_numpy() / size,
                mode="markers",
                marker={"size": 4, "color": ACCENT, "opacity": max(0.25, 0.7 / len(processes) ** 0.5)},
                hovertext=[
                    _hover(_Step(*values), origin)
                    for values in zip(*(shown[field].tolist() for field in _Step._fields), strict=True)
                ],
                hovertemplate="%{hovertext}<extra></extra>",
            )
        )
    if len(steps):
        median = float(steps["duration_ns"].median())
        line = {"width": 1, "dash": "dot", "color": MUTED}
        figure.add_hline(median / size, line=line, annotation_text=f"median {text.duration(median)}")
    styled(figure, 250, showlegend=False)
    figure.update_xaxes(title_text="time since the start of the run (s)", showgrid=False)
    figure.update_yaxes(title_text=f"step ({unit})", rangemode="tozero")
    return figure


def phases_figure(phases: pd.DataFrame) -> go.Figure:
    """The mean step of each group of neighbouring steps, phase by phase. phases: process, step, phase, duration_ns."""
    figure = go.Figure()
    unit = "ms"
    if len(phases):
        steps = phases["step"]
        per_group = max(1, -(-(int(steps.max()) - int(steps.min()) + 1) // _GROUPS))
        first = (steps - steps.min()) // per_group * per_group + steps.min()
        table = phases.assign(first=first).pivot_table(
            index="first", columns="phase", values="duration_ns", aggfunc="sum"
        )
        calls = phases.assign(first=first).drop_duplicates(["process", "step"]).groupby("first").size()
        mean = table.div(calls, axis=0).fillna(0)
        size, unit = text.time_unit(float(mean.sum(axis=1).median()))
        for phase in [name for name in PHASE_COLORS if name in mean]:
            figure.add_trace(
                go.Bar(
                    name=phase,
                    x=mean.index + (per_group - 1) / 2,
                    width=per_group,
                    y=mean[phase] / size,
                    marker={"color": PHASE_COLORS[phase], "line": {"width": 0}},
                    hovertemplate=f"{phase}: %{{y:.3~f}} {unit} a step<extra></extra>",
                )
            )
    figure.update_layout(barmode="stack", bargap=0, hovermode="x unified")
    styled(figure, 250, showlegend=False)
    figure.update_xaxes(title_text="step", showgrid=False)
    figure.update_yaxes(title_text=f"mean step ({unit})", rangemode="tozero")
    return figure


def thinned(rows: pd.DataFrame, x: str, y: str, points: int = POINTS) -> pd.DataFrame:
    """Rows in the order of `x`, at most `points` of them, chosen so that the drawn shape and its extremes stay."""
    if len(rows) <= points:
        return rows
    chosen = MinMaxLTTBDownsampler().downsample(
        np.ascontiguousarray(rows[x], dtype=np.int64), np.ascontiguousarray(rows[y], dtype=np.float64), n_out=points
    )
    return rows.iloc[chosen]


class _Step(NamedTuple):
    process: int
    step: int
    start_ns: int
    duration_ns: int


def _hover(step: _Step, origin: int) -> str:
    at = (step.start_ns - origin) / 1e9
    return f"<b>step {step.step}</b>, process {step.process}<br>{text.duration(step.duration_ns)} · at {at:,.3f} s"
