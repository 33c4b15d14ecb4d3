"""Noise: what it did to the steps, by dose, and through what."""

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from tracekit.analysis.noise import SILENCE, Block
from tracekit.analysis.noise_effects import NoiseEffect
from tracekit.dashboards.figures import text
from tracekit.dashboards.figures.base import styled
from tracekit.dashboards.figures.colors import LINES, MUTED
from tracekit.dashboards.figures.steps import steps_figure

VERDICT_COLORS = {"safe": "#2e9e78", "unsafe": "#d1517c", "undecided": MUTED}
_ROW = 30
_MOST_BLOCKS = 400  # more are too narrow to be seen


def slowdowns_figure(effects: Sequence[NoiseEffect], margin: float) -> go.Figure:
    """The slowdown by each noise with its interval, the colour telling the verdict; the margin is a line."""
    figure = go.Figure()
    for verdict, color in VERDICT_COLORS.items():
        rows = [(row, each) for row, each in enumerate(effects) if each.verdict == verdict]
        if rows:
            figure.add_trace(
                go.Scatter(
                    name=verdict,
                    x=[100 * each.slowdown.expected for _, each in rows],
                    y=[row for row, _ in rows],
                    error_x=_interval([each for _, each in rows], color),
                    mode="markers",
                    marker={"size": 9, "symbol": "diamond", "color": color},
                    hovertext=[_hover(each) for _, each in rows],
                    hovertemplate="%{hovertext}<extra></extra>",
                )
            )
    figure.add_vline(100 * margin, line={"width": 1, "dash": "dot", "color": MUTED}, annotation_text="margin")
    styled(figure, _ROW * len(effects) + 90, showlegend=True)
    figure.update_xaxes(title_text="steps are longer by (%)", zeroline=True)
    figure.update_yaxes(
        tickvals=list(range(len(effects))),
        ticktext=[text.label(each.noise, 40) for each in effects],
        range=[len(effects) - 0.4, -0.6],
        showgrid=False,
    )
    return figure


def doses_figure(effects: Sequence[NoiseEffect]) -> go.Figure:
    """The slowdown against the dose that was achieved, a line for each kind in its place; doses as shares of the
    largest one of the kind."""
    figure = go.Figure()
    single = [each for each in effects if each.unit != "of the doses"]
    for number, (kind, place) in enumerate(dict.fromkeys((each.kind, each.place) for each in single)):
        of_kind = sorted((each for each in single if each.kind == kind), key=lambda each: each.achieved)
        mine = [each for each in of_kind if each.place == place]
        largest = of_kind[-1].achieved or 1.0
        color = LINES[number % len(LINES)]
        figure.add_trace(
            go.Scatter(
                name=text.label(kind + place, 40),
                x=[100 * each.achieved / largest for each in mine],
                y=[100 * each.slowdown.expected for each in mine],
                error_y=_interval(mine, color),
                mode="lines+markers",
                marker={"color": color},
                line={"color": color},
                hovertext=[_hover(each) for each in mine],
                hovertemplate="%{hovertext}<extra></extra>",
            )
        )
    styled(figure, 340, showlegend=True)
    figure.update_xaxes(title_text="achieved dose, of the largest of its kind (%)", rangemode="tozero")
    figure.update_yaxes(title_text="steps are longer by (%)", zeroline=True)
    return figure


def _interval(effects: Sequence[NoiseEffect], color: str) -> dict[str, object]:
    slow = [each.slowdown for each in effects]
    return {
        "type": "data",
        "symmetric": False,
        "array": [100 * (each.high - each.expected) for each in slow],
        "arrayminus": [100 * (each.expected - each.low) for each in slow],
        "color": color,
        "thickness": 1.5,
    }


def _hover(each: NoiseEffect) -> str:
    slow = each.slowdown
    return (
        f"<b>{text.label(each.noise, 80)}</b>: {each.verdict}<br>{text.percent(slow.expected)} longer"
        f" ({text.percent(slow.low)} to {text.percent(slow.high)}), {each.blocks} blocks<br>achieved"
        f" {text.significant(each.achieved)} {text.label(each.unit, 40)}, {text.percent(each.share)} of the dose"
    )


def blame_figure(effects: Sequence[NoiseEffect]) -> go.Figure:
    """Which phases got longer and through what: a row for each noise, shares of its slowdown."""
    blamed = [each for each in effects if each.blame]
    columns = sorted({(part.phase, part.resource) for each in blamed for part in each.blame})
    shares = [{(part.phase, part.resource): part.share for part in each.blame} for each in blamed]
    table = [[100 * row.get(column, 0.0) for column in columns] for row in shares]
    figure = go.Figure(
        go.Heatmap(
            x=[f"{text.label(phase, 40)}<br>{text.label(resource, 40)}" for phase, resource in columns],
            y=list(range(len(blamed))),
            z=table,
            zmin=0,
            zmax=100,
            colorscale=[[0, "rgba(209,81,124,0.04)"], [1, "rgba(209,81,124,0.95)"]],
            text=[[f"{value:.0f} %" if value else "" for value in row] for row in table],
            texttemplate="%{text}",
            showscale=False,
            hoverinfo="skip",
        )
    )
    styled(figure, _ROW * len(blamed) + 90, showlegend=False)
    figure.update_xaxes(side="top")
    figure.update_yaxes(
        tickvals=list(range(len(blamed))),
        ticktext=[text.label(each.noise, 40) for each in blamed],
        autorange="reversed",
    )
    return figure


def blocks_in_time_figure(steps: pd.DataFrame, blocks: Sequence[Block], origin: int) -> go.Figure:
    """The steps over time, with the stretches of noise behind them."""
    figure = steps_figure(steps, origin)
    noises = [block for block in blocks if block.condition != SILENCE][:_MOST_BLOCKS]
    names = list(dict.fromkeys(block.condition for block in noises))
    colors = {name: LINES[(number + 1) % len(LINES)] for number, name in enumerate(names)}
    figure.update_layout(
        shapes=[
            *figure.layout.shapes,
            *(
                {
                    "type": "rect",
                    "xref": "x",
                    "yref": "paper",
                    "x0": (block.start_ns - origin) / 1e9,
                    "x1": (block.end_ns - origin) / 1e9,
                    "y0": 0,
                    "y1": 1,
                    "fillcolor": colors[block.condition],
                    "opacity": 0.16,
                    "line": {"width": 0},
                    "layer": "below",
                }
                for block in noises
            ),
        ]
    )
    for name, color in colors.items():
        marker = {"size": 10, "symbol": "square", "color": color, "opacity": 0.5}
        figure.add_trace(go.Scatter(name=text.label(name, 40), x=[None], y=[None], mode="markers", marker=marker))
    figure.update_layout(showlegend=True)
    return figure
