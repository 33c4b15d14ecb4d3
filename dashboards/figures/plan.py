"""A plan over the step: its layers in order, as long as they take, in the colour of their thread count."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from tracekit.dashboards.exploring import Segment, in_threads, without_slivers
from tracekit.dashboards.figures import text
from tracekit.dashboards.figures.base import styled
from tracekit.dashboards.figures.colors import count_colors

# The width of the drawing on the narrowest screen, and of a letter in it.
_PIXELS, _LETTER = 900, 6.6
_FEWEST_LETTERS = 5
_ROW = 58


def plan_figure(strips: Mapping[str, Sequence[Segment]], counts: Sequence[int]) -> go.Figure:
    """A strip for each name, the first on top, on one axis of time; neighbours of the same count that would be too
    thin to see are drawn as one."""
    longest = max((sum(segment.ms for segment in strip) for strip in strips.values()), default=0.0)
    size, unit = text.time_unit(longest * 1e6)
    drawn = [without_slivers(strip, longest / _PIXELS) for strip in strips.values()]
    figure = go.Figure()
    for count, color in count_colors(counts).items():
        bars = [
            (row, begin, segment)
            for row, strip in enumerate(drawn)
            for begin, segment in _placed(strip)
            if segment.count == count
        ]
        if not bars:
            continue
        figure.add_trace(
            go.Bar(
                name=in_threads(count),
                orientation="h",
                y=[row for row, _, _ in bars],
                base=[begin * 1e6 / size for _, begin, _ in bars],
                x=[segment.ms * 1e6 / size for _, _, segment in bars],
                width=0.7,
                marker={"color": color, "line": {"width": 0.6}},
                text=[_inside(segment.label, segment.ms / longest * _PIXELS) for _, _, segment in bars],
                textposition="inside",
                insidetextanchor="middle",
                textangle=0,
                constraintext="none",
                insidetextfont={"color": "white", "size": 11},
                hovertext=[
                    f"<b>{text.label(segment.label, 100)}</b><br>{text.duration(segment.ms * 1e6)}"
                    f" with {in_threads(segment.count)}"
                    for _, _, segment in bars
                ],
                hovertemplate="%{hovertext}<extra></extra>",
            )
        )
    styled(
        figure,
        _ROW * len(strips) + 84,
        barmode="overlay",
        bargap=0,
        showlegend=True,
        margin={"l": 64, "r": 16, "t": 30, "b": 48},
    )
    figure.update_xaxes(title_text=f"time in a step ({unit})", rangemode="tozero", exponentformat="none")
    figure.update_yaxes(
        tickmode="array",
        tickvals=list(range(len(strips))),
        ticktext=[text.label(name, 24) for name in strips],
        range=[len(strips) - 0.5, -0.5],
        fixedrange=True,
        showgrid=False,
        ticklabelstandoff=8,
    )
    return figure


def _placed(strip: Sequence[Segment]) -> list[tuple[float, Segment]]:
    """Each segment with its begin, ms."""
    placed, begin = [], 0.0
    for segment in strip:
        placed.append((begin, segment))
        begin += segment.ms
    return placed


def _inside(name: str, pixels: float) -> str:
    letters = int(pixels / _LETTER)
    return text.label(name, letters) if letters >= min(len(name), _FEWEST_LETTERS) and letters > 2 else ""
