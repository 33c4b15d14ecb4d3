"""The longest of many: horizontal bars."""

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from tracekit.dashboards.figures import text
from tracekit.dashboards.figures.base import styled

_BAR = 24


@dataclass(frozen=True)
class Part:
    """One colour of the bars: what it is called, and a value in ns for each name (0 where there is none)."""

    label: str
    color: str
    values_ns: Sequence[float]


def ranking_figure(names: Sequence[str], parts: Sequence[Part], axis: str) -> go.Figure:
    """A bar for each name, the first on top, made of the parts one after another. `axis` says what is measured."""
    size, unit = text.time_unit(
        max((sum(values) for values in zip(*(part.values_ns for part in parts), strict=True)), default=0)
    )
    figure = go.Figure()
    positions = list(range(len(names)))
    for part in parts:
        figure.add_trace(
            go.Bar(
                name=text.label(part.label, 100),
                orientation="h",
                y=positions,
                x=[value / size for value in part.values_ns],
                marker={"color": part.color, "line": {"width": 0}},
                hovertext=[
                    f"<b>{text.label(name, 100)}</b><br>{text.label(part.label, 100)}: {text.duration(value)}"
                    for name, value in zip(names, part.values_ns, strict=True)
                ],
                hovertemplate="%{hovertext}<extra></extra>",
            )
        )
    figure.update_layout(barmode="stack", bargap=0.3)
    legend = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom", "traceorder": "normal"}
    styled(
        figure,
        _BAR * len(names) + 84,
        showlegend=len(parts) > 1,
        legend=legend,
        margin={"l": 64, "r": 16, "t": 30, "b": 48},
    )
    figure.update_xaxes(title_text=f"{axis} ({unit})", rangemode="tozero", exponentformat="none")
    figure.update_yaxes(
        tickmode="array",
        tickvals=positions,
        ticktext=[text.label(name, 36) for name in names],
        range=[len(names) - 0.4, -0.6],
        showgrid=False,
        ticklabelstandoff=8,
    )
    return figure
