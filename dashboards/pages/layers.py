"""Layers: where a step's time goes in the model."""

import pandas as pd
import plotly.graph_objects as go
from dash.development.base_component import Component

from tracekit.dashboards.figures.colors import PHASE_COLORS
from tracekit.dashboards.figures.ranking import Part, ranking_figure
from tracekit.dashboards.pages.page import Column, Page, View, graph, nothing, page, section, table, the_run
from tracekit.dashboards.pages.rows import as_rows

_CHARTED = 15

_COLUMNS = [
    Column("layer", "layer"),
    Column("direction", "direction", width=105),
    Column("ns_per_step", "time per step", "duration", 120, "median over the steps in which the layer was recorded"),
    Column("share", "of a step", "share", 120, "of the median step; layers inside a layer count in both"),
    Column("self_ns", "own time", "duration", 95, "outside the layers that it calls, per step"),
    Column("mean_ns", "mean call", "duration", 95),
    Column("calls_per_step", "calls / step", "number", 105),
    Column("depth", "depth", "number", 70, "0: the outermost module"),
    Column("steps", "steps seen", "number", 100, "steps in which it was recorded: the governor leaves out some"),
]


def render(view: View) -> Component:
    layers = the_run(view).layers()
    if layers.empty:
        return page(
            "Layers", nothing("No layer was recorded: the program called no nn.Module, or the collector was off.")
        )
    return page(
        "Layers",
        section("Own time per step", graph(_own_time(layers)), note="without the layers inside"),
        table("layers", _COLUMNS, as_rows(layers, [column.field for column in _COLUMNS])),
        note="Each layer's calls, forward and backward; the figures are those of a typical step.",
    )


def _own_time(layers: pd.DataFrame) -> go.Figure:
    """The layers with the most time of their own, forward and backward together."""
    own = layers.pivot_table(index="layer", columns="direction", values="self_ns", aggfunc="sum").fillna(0.0)
    top = own.loc[own.sum(axis=1).sort_values(ascending=False).index[:_CHARTED]]
    parts = [Part(way, PHASE_COLORS[way], top[way].tolist()) for way in ("forward", "backward") if way in top]
    return ranking_figure(top.index.tolist(), parts, "own time per step")


LAYERS = Page("layers", "Layers", render)
