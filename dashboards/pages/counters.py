"""Counters: what the CPUs, memory and devices did, on the same time axis as the steps."""

from collections.abc import Mapping, Sequence

import dash_mantine_components as dmc
import pandas as pd
import plotly.graph_objects as go
from dash import Dash, Input, Output, State, ctx, dcc, no_update
from dash.development.base_component import Component

from tracekit.dashboards.figures import text
from tracekit.dashboards.figures.base import CONFIG, EMPTY
from tracekit.dashboards.figures.counters import Panel, counters_figure
from tracekit.dashboards.library import Library, OpenRun
from tracekit.dashboards.pages.lanes import marks_of
from tracekit.dashboards.pages.page import Page, View, nothing, of_several_hosts, page, the_run
from tracekit.dashboards.pages.time_range import Range, as_range, buttons, clicks, next_view
from tracekit.dashboards.queries import MACHINE, counter_names, counter_series, described, process_labels
from tracekit.run.counter_names import Counter

# Shown at first, of those that there are: what decides between "the CPUs are busy" and "the CPUs are fought over".
_AT_FIRST = (
    "process.cpu_ns",
    "thread.run_delay_ns",
    "host.cpu_busy_ns",
    "process.rss_bytes",
    "cgroup.throttled_ns",
    "psi.cpu.some_ns",
)
# Lines of one panel that can still be told apart, and marks of the steps on top.
_LINES = 6
_STEP_MARKS = 1_200
_BINS = 400


def render(view: View) -> Component:
    run = the_run(view)
    names = counter_names(run.run)
    if names.empty:
        return page(
            "Counters", nothing("No counter was recorded: the collector was off, or the run ended before a sample.")
        )
    known = names["counter"].tolist()
    chosen = [name for name in _AT_FIRST if name in known] or known[:4]
    choose = dmc.MultiSelect(
        id="counters-chosen",
        data=[{"value": name, "label": text.one_line(name)} for name in known],
        value=chosen,
        searchable=True,
        size="xs",
        flex=1,
    )
    return page(
        "Counters",
        dmc.Stack(
            [
                dmc.Group([buttons("counters"), choose], gap="sm", align="flex-start", wrap="nowrap"),
                dmc.Text(id="counters-caption", size="sm", c="dimmed", mih=22),
                dcc.Store(id="counters-run", data={"run": run.name, "query": dict(view.query)}),
                dcc.Store(id="counters-range"),
                dcc.Loading(
                    dcc.Graph(id="counters", figure=EMPTY, config=CONFIG),
                    type="dot",
                    delay_show=400,
                    overlay_style={"visibility": "visible", "opacity": 0.5},
                ),
            ],
            gap="xs",
        ),
        note="Drag to zoom, Shift-drag to move, double-click for the whole run. A gap in a line: no reading."
        + of_several_hosts(run.run),
    )


def register(app: Dash, library: Library) -> None:
    app.callback(
        output=[
            Output("counters", "figure"),
            Output("counters", "style"),
            Output("counters-range", "data"),
            Output("counters-caption", "children"),
        ],
        inputs={
            "change": Input("counters", "relayoutData"),
            "chosen": Input("counters-chosen", "value"),
            "clicks": clicks("counters"),
        },
        state={"now": State("counters-range", "data"), "asking": State("counters-run", "data")},
    )(lambda change, chosen, clicks, now, asking: _update(library, change, chosen or [], now, asking))


def _update(
    library: Library,
    change: Mapping[str, object] | None,
    chosen: Sequence[str],
    now: Range | None,
    asking: Mapping[str, object],
) -> tuple[object, ...]:
    run = library.open(str(asking["run"]))
    whole = run.extent()
    shown = next_view("counters", ctx.triggered_id, change, now, asking, whole)
    if shown is None:
        return (no_update,) * 4
    figure, caption = draw(run, shown, chosen)
    return figure, {"height": f"{figure.layout.height}px"}, as_range(*shown), caption


def draw(run: OpenRun, shown: tuple[int, int], chosen: Sequence[str]) -> tuple[go.Figure, str]:
    """The figure of a part of a run for some counters, and a line that says what is in it."""
    labels = {MACHINE: "machine"} | process_labels(run.processes())
    sources = dict(counter_names(run.run)[["counter", "sources"]].itertuples(index=False))
    panels = [_panel(run, name, sources.get(name, ""), labels, shown) for name in chosen]
    figure = counters_figure(panels, _loop(run, shown), *shown, origin=run.extent()[0])
    return figure, f"{text.duration(shown[1] - shown[0])} in {_BINS} intervals"


def _panel(run: OpenRun, name: str, sources: str, labels: Mapping[int, str], shown: tuple[int, int]) -> Panel:
    """One counter, at most `_LINES` processes: those with the highest mean."""
    series = counter_series(run.run, name, list(labels), *shown, _BINS)
    counter = described(name)
    factor, unit = _unit(counter)
    highest = sorted(series, key=lambda process: -pd.Series(series[process][1]).mean())[:_LINES]
    lines = {
        labels.get(process, str(process)): (series[process][0], series[process][1] * factor) for process in highest
    }
    left_out = f", {len(series) - _LINES} lower processes not shown" if len(series) > _LINES else ""
    meaning = f" — {counter.meaning}" if counter.meaning else ""
    return Panel(f"{name}{meaning} ({sources}{left_out})", unit, lines)


def _unit(counter: Counter) -> tuple[float, str]:
    """The factor from a value of `counter_series` to what is drawn, and the unit of that."""
    if counter.level:
        return _LEVELS.get(counter.unit, (1.0, ""))
    if counter.unit == "ns" and counter.name.endswith(_ON_A_CPU):
        return 1.0, "CPUs"
    return _INCREASES[counter.unit]


# Increases are rates per ns: time per time is in seconds a second, which for time on a CPU is a number of CPUs.
_INCREASES = {"ns": (1.0, "s / s"), "bytes": (1e9, "B / s"), "count": (1e9, "1 / s"), "percent": (1e9, "% / s")}
_LEVELS = {"ns": (1e-9, "s"), "bytes": (1.0, "B"), "percent": (1.0, "%")}
_ON_A_CPU = ("cpu_ns", "clock_ns", "user_ns", "system_ns", "cpu_busy_ns", "steal_ns")


def _loop(run: OpenRun, shown: tuple[int, int]) -> pd.DataFrame:
    """The steps and phases of the process that stands for the run, as marks on rows 0 and 1."""
    index, steps = run.outline(), run.steps()
    place = {
        number: ["step", "phase"].index(lane.kind)
        for number, lane in enumerate(index.lanes)
        if lane.key.process == steps.main and (lane.kind == "phase" or (lane.kind == "step" and lane.key.depth == 0))
    }
    return marks_of(index, steps, index.view(*shown, list(place), _STEP_MARKS), place)


COUNTERS = Page("counters", "Counters", render, register)
