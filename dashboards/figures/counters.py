"""Counters over time, below the steps they belong to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tracekit.dashboards.figures import text
from tracekit.dashboards.figures.base import styled
from tracekit.dashboards.figures.timeline import event_bars

Numbers = npt.NDArray[np.float64]

# Lines of one panel: shades of one colour family, the machine itself in the first.
SHADES = ("#3d6fa5", "#5fa3a3", "#8a7fb8", "#b08a5a", "#7d9b6a", "#a36f86")
_STEPS, _PANEL, _GAP = 54, 116, 30


@dataclass(frozen=True)
class Panel:
    """One counter: what it is called and measured in, and for each line (a process) its times (ns) and values."""

    title: str
    unit: str
    lines: Mapping[str, tuple[Numbers, Numbers]]


def counters_figure(panels: Sequence[Panel], steps: pd.DataFrame, begin: int, end: int, origin: int) -> go.Figure:
    """Panels below each other on one time axis, in seconds from `origin`; on top the steps and phases of the main
    process.

    steps: marks as of `timeline_figure`, row 0 the steps and row 1 the phases.
    """
    heights = [_STEPS] + [_PANEL] * len(panels)
    total = sum(heights) + _GAP * len(panels)
    figure = make_subplots(
        rows=len(heights),
        shared_xaxes=True,
        row_heights=[height / sum(heights) for height in heights],
        vertical_spacing=_GAP / total if panels else 0,
    )
    for bars in event_bars(steps, ["step", "phase"], end - begin, origin):
        figure.add_trace(bars, row=1, col=1)
    shade = {
        name: SHADES[at % len(SHADES)] for at, name in enumerate(dict.fromkeys(n for p in panels for n in p.lines))
    }
    shown: set[str] = set()
    for row, panel in enumerate(panels, 2):
        # "500m" reads as 500 million: prefixes for what is large only.
        large = any(np.nanmax(values, initial=0.0) >= 1000 for _, values in panel.lines.values())
        shown_as = "~s" if large else "~g"
        for name, (times, values) in panel.lines.items():
            figure.add_trace(
                go.Scatter(
                    x=(times - origin) / 1e9,
                    y=values,
                    mode="lines",
                    line={"width": 1.5, "color": shade[name], "shape": "hvh"},
                    name=text.label(name, 40),
                    legendgroup=name,
                    showlegend=name not in shown,
                    hovertext=text.label(name, 40),
                    hovertemplate=f"%{{y:.3{shown_as}}} {panel.unit} · %{{hovertext}}<extra></extra>",
                ),
                row=row,
                col=1,
            )
            shown.add(name)
        figure.update_yaxes(title_text=panel.unit, rangemode="tozero", nticks=4, tickformat=shown_as, row=row, col=1)
        figure.add_annotation(
            text=f"<b>{text.label(panel.title, 110)}</b>",
            x=0, y=1, xref="x domain", yref=f"y{row} domain", xanchor="left", yanchor="bottom", showarrow=False,
        )  # fmt: skip
    styled(figure, total + 90, barmode="overlay", margin={"l": 84, "r": 16, "t": 40, "b": 48}, showlegend=True)
    figure.update_xaxes(range=[(begin - origin) / 1e9, (end - origin) / 1e9], showgrid=False, exponentformat="none")
    figure.update_xaxes(title_text="time since the start of the run (s)", row=len(heights), col=1)
    figure.update_yaxes(fixedrange=True)
    figure.update_yaxes(tickvals=[0, 1], ticktext=["steps", "phases"], range=[1.5, -0.5], showgrid=False, row=1, col=1)
    return figure
