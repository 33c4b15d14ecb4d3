"""Timeline: steps, phases, layers and operators of each process, over time."""

from collections.abc import Mapping, Sequence

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, ctx, dcc, no_update
from dash.development.base_component import Component

from tracekit.dashboards.figures import text
from tracekit.dashboards.figures.base import CONFIG, EMPTY
from tracekit.dashboards.figures.timeline import PlainFigure, timeline_figure
from tracekit.dashboards.index import MARKS, Index
from tracekit.dashboards.library import Library, OpenRun
from tracekit.dashboards.pages.lanes import marks_of, rows_of
from tracekit.dashboards.pages.page import Page, View, of_several_hosts, page, the_run
from tracekit.dashboards.pages.time_range import Range, as_range, buttons, clicks, next_view
from tracekit.dashboards.queries import process_labels

# With more rows, each would get too few marks to show anything, and the page would be metres long.
_ROWS = 100
# Seconds to wait for operators before the rest is shown without them.
_PATIENCE = 0.5
# Processes shown at first: as many as fit one screen or so.
_ROWS_AT_FIRST = 40


def render(view: View) -> Component:
    run = the_run(view)
    labels = process_labels(run.processes())
    choose = dmc.MultiSelect(
        id="timeline-processes",
        data=[{"value": str(process), "label": label} for process, label in labels.items()],
        placeholder="processes",
        searchable=True,
        size="xs",
        flex=1,
    )
    return page(
        "Timeline",
        dmc.Stack(
            [
                dmc.Group([buttons("timeline"), choose], gap="sm", align="flex-start", wrap="nowrap"),
                dmc.Text(id="timeline-caption", size="sm", c="dimmed", mih=22),
                dcc.Store(id="timeline-run", data={"run": run.name, "query": dict(view.query)}),
                dcc.Store(id="timeline-range"),
                dcc.Interval(id="timeline-again", interval=1000, disabled=True),
                dcc.Loading(
                    dcc.Graph(id="timeline", figure=EMPTY, config=CONFIG),
                    type="dot",
                    delay_show=400,
                    overlay_style={"visibility": "visible", "opacity": 0.5},
                ),
            ],
            gap="xs",
        ),
        note="Drag to zoom, Shift-drag to move, double-click for the whole run. What is too short to see is drawn"
        " as one block: the fainter, the less of it is covered." + of_several_hosts(run.run),
    )


def register(app: Dash, library: Library) -> None:
    app.callback(
        output=[
            Output("timeline", "figure"),
            Output("timeline", "style"),
            Output("timeline-range", "data"),
            Output("timeline-caption", "children"),
            Output("timeline-processes", "value"),
            Output("timeline-again", "disabled"),
        ],
        inputs={
            "change": Input("timeline", "relayoutData"),
            "processes": Input("timeline-processes", "value"),
            "clicks": clicks("timeline"),
            "again": Input("timeline-again", "n_intervals"),
        },
        state={"now": State("timeline-range", "data"), "asking": State("timeline-run", "data")},
    )(lambda change, processes, clicks, again, now, asking: _update(library, change, processes, now, asking))


def _update(
    library: Library,
    change: Mapping[str, object] | None,
    processes: Sequence[str] | None,
    now: Range | None,
    asking: Mapping[str, object],
) -> tuple[object, ...]:
    run = library.open(str(asking["run"]))
    # Who asks again waits for the rest, and is not shown the same once more.
    index = run.index(0 if ctx.triggered_id == "timeline-again" else _PATIENCE)
    if ctx.triggered_id == "timeline-again" and not index.complete:
        return (no_update,) * 6
    shown = next_view("timeline", ctx.triggered_id, change, now, asking, run.extent())
    if shown is None:
        return (no_update,) * 6
    chosen = [int(process) for process in processes] if processes else at_first(index)
    figure, caption = draw(run, index, shown, chosen)
    style = {"height": f"{figure['layout']['height']}px"}
    value = no_update if processes else [str(process) for process in chosen]
    return figure, style, as_range(*shown), caption, value, index.complete


def at_first(index: Index) -> list[int]:
    """The first processes that together have few enough rows, at least one."""
    counts: dict[int, int] = {}
    for lane in index.lanes:
        counts[lane.key.process] = counts.get(lane.key.process, 0) + 1
    chosen: list[int] = []
    for process, rows in counts.items():
        if not chosen or sum(counts[each] for each in chosen) + rows <= _ROWS_AT_FIRST:
            chosen.append(process)
    return chosen


def draw(run: OpenRun, index: Index, shown: tuple[int, int], processes: Sequence[int]) -> tuple[PlainFigure, str]:
    """The figure of a part of a run for some processes, and a line that says what is in it."""
    steps = run.steps()
    lanes = [number for number, lane in enumerate(index.lanes) if lane.key.process in processes]
    rows, place = rows_of(index, steps, process_labels(run.processes()), lanes[:_ROWS])
    view = index.view(*shown, lanes[:_ROWS], MARKS)
    figure = timeline_figure(marks_of(index, steps, view, place), rows, *shown, origin=index.begin)
    begin = (shown[0] - index.begin) / 1e9
    caption = (
        f"{text.duration(shown[1] - shown[0])} from {begin:,.6g} s on · {text.number(int(view['count'].sum()))} events,"
        f" {text.number(len(view))} blocks drawn"
    )
    if not index.complete:
        caption += " · operators are still being read"
    if len(lanes) > _ROWS:
        caption += f" · the first {_ROWS} of {len(lanes)} rows: choose fewer processes"
    return figure, caption


TIMELINE = Page("timeline", "Timeline", render, register)
