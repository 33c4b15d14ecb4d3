"""Operators: what the profiler's windows saw, by the time each spent itself."""

from collections.abc import Sequence

import dash_mantine_components as dmc
import plotly.graph_objects as go
from dash.development.base_component import Component

from tracekit.analysis.report_schema import OperatorSummary
from tracekit.dashboards.figures import text
from tracekit.dashboards.figures.colors import COLORS, LABELS
from tracekit.dashboards.figures.ranking import Part, ranking_figure
from tracekit.dashboards.pages.page import Cell, Column, Page, View, graph, nothing, page, section, table, the_run
from tracekit.dashboards.sources import colour_key

_CHARTED = 15

_COLUMNS = [
    Column("name", "operator"),
    Column("category", "category", width=150),
    Column("self", "own time", "duration", 120, "outside the operators that it calls"),
    Column("share", "share", "share", 120, "of the own time of all operators on the same side: CPU, GPU or profiler"),
    Column("total", "total", "duration", 120, "with the operators that it calls"),
    Column("calls", "calls", "number", 110),
]


def render(view: View) -> Component:
    report = the_run(view).report()
    if not report.operators:
        why = (
            "No operator was recorded: the profiler had no window. `tracekit record --profile full` records every step."
        )
        return page("Operators", nothing(why))
    rows: list[dict[str, Cell]] = [
        {
            "name": text.one_line(each.name, 200),
            "category": each.category,
            "self": each.self_ms * 1e6,
            "share": each.share,
            "total": each.total_ms * 1e6,
            "calls": each.calls,
        }
        for each in report.operators
    ]
    left_out = report.operator_count - len(rows)
    rest = f"{text.number(left_out)} more are not shown, each with less own time than these." if left_out else ""
    return page(
        "Operators",
        section(
            "Own time",
            graph(_own_time([each for each in report.operators if each.side != "profiler"][:_CHARTED])),
            note="in all profiler windows",
        ),
        table("operators", _COLUMNS, rows),
        dmc.Text(rest, size="sm", c="dimmed") if rest else None,
        note="Operators, kernels and runtime calls of the main process inside the profiler's windows, which cover some"
        " steps only."
        + "".join(f" GPU {each.device} is busy for it {each.busy:.1%} of their time." for each in report.devices),
    )


def _own_time(operators: Sequence[OperatorSummary]) -> go.Figure:
    keys = [colour_key(each.name, each.category) for each in operators]
    parts = [
        Part(
            LABELS[key],
            COLORS[key],
            [each.self_ms * 1e6 if mine == key else 0.0 for each, mine in zip(operators, keys, strict=True)],
        )
        for key in dict.fromkeys(keys)
    ]
    return ranking_figure([each.name for each in operators], parts, "own time")


OPERATORS = Page("operators", "Operators", render)
