"""Times against thread counts: lines with intervals."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from tracekit.analysis.report_schema import Gain
from tracekit.dashboards.figures import text
from tracekit.dashboards.figures.base import styled
from tracekit.dashboards.figures.colors import LINES

# Lines are set beside each other by this part of the way between two counts, so that their intervals can be told apart.
_ASIDE = 0.035


@dataclass(frozen=True)
class Line:
    """The time (ms) at each thread count, by the count as text; `chosen` is the count with the large mark."""

    label: str
    times: Mapping[str, Gain]
    chosen: int | None = None
    dashed: bool = False


def times_figure(lines: Sequence[Line], counts: Sequence[int], axis: str, height: int = 340) -> go.Figure:
    """A line for each of the lines given, over the thread counts at equal distances. `axis` says what is measured."""
    figure = go.Figure()
    longest = max((time.expected for line in lines for time in _known(line, counts).values()), default=0.0)
    size, unit = text.time_unit(longest * 1e6)
    per_ms = 1e6 / size
    for number, line in enumerate(lines):
        times = _known(line, counts)
        aside = _ASIDE * (number - (len(lines) - 1) / 2)
        color = LINES[number % len(LINES)]
        chosen = [count == line.chosen for count in times]
        figure.add_trace(
            go.Scatter(
                name=text.label(line.label, 30),
                x=[counts.index(count) + aside for count in times],
                y=[time.expected * per_ms for time in times.values()],
                error_y={
                    "type": "data",
                    "symmetric": False,
                    "array": [(time.high - time.expected) * per_ms for time in times.values()],
                    "arrayminus": [(time.expected - time.low) * per_ms for time in times.values()],
                    "color": color,
                    "thickness": 1.2,
                    "width": 4,
                },
                mode="lines+markers",
                line={"width": 1.6, "color": color, "dash": "dot" if line.dashed else "solid"},
                marker={
                    "color": color,
                    "size": [11 if is_chosen else 6 for is_chosen in chosen],
                    "symbol": ["diamond" if is_chosen else "circle" for is_chosen in chosen],
                },
                hovertext=[_hover(line, count, time) for count, time in times.items()],
                hovertemplate="%{hovertext}<extra></extra>",
            )
        )
    legend = {"orientation": "v", "x": 1.02, "xanchor": "left", "y": 1, "yanchor": "top", "traceorder": "normal"}
    styled(figure, height, showlegend=len(lines) > 1, legend=legend)
    figure.update_xaxes(
        title_text="threads",
        tickmode="array",
        tickvals=list(range(len(counts))),
        ticktext=[str(count) for count in counts],
        range=[-0.4, len(counts) - 0.6],
        showgrid=False,
    )
    figure.update_yaxes(title_text=f"{axis} ({unit})", rangemode="tozero", exponentformat="none")
    return figure


def _known(line: Line, counts: Sequence[int]) -> dict[int, Gain]:
    times = {count: line.times[str(count)] for count in counts if str(count) in line.times}
    return {count: time for count, time in times.items() if math.isfinite(time.expected)}


def _hover(line: Line, count: int, time: Gain) -> str:
    words = "1 thread" if count == 1 else f"{count} threads"
    interval = f"{text.duration(time.low * 1e6)} to {text.duration(time.high * 1e6)}"
    return f"<b>{text.label(line.label, 100)}</b>, {words}<br>{text.duration(time.expected * 1e6)} ({interval})"
