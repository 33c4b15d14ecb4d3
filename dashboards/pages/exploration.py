"""The parts of the page Threads that show an exploration: times per count, the plan over the step, guidelines."""

from collections.abc import Sequence

import dash_mantine_components as dmc
from dash.development.base_component import Component

from tracekit.analysis.report_schema import Guideline, LayerThreadTimes, ThreadExploration
from tracekit.dashboards.exploring import (
    by_difference,
    difference_ms,
    in_threads,
    in_words,
    known,
    layer_label,
    planned_step,
    step_at,
)
from tracekit.dashboards.figures import text
from tracekit.dashboards.figures.plan import plan_figure
from tracekit.dashboards.figures.threads import Line, times_figure
from tracekit.dashboards.pages.page import Cell, Column, graph, section, table

_LINES = 8
_MS = 1e6


def exploration_parts(found: ThreadExploration) -> list[Component]:
    """Everything that an exploration has shown, but for the settings that follow from it."""
    parts: list[Component | None] = [_problem(found), _times(found), _plan(found), _measured(found)]
    parts.append(guidelines_part(found.guidelines))
    if found.layers:
        parts.append(table("thread-times", _columns(found.counts), _rows(found)))
    return [part for part in parts if part is not None]


def guidelines_part(guidelines: Sequence[Guideline]) -> Component | None:
    """Simple sentences and how good they are; nothing where none were made."""
    if not guidelines:
        return None
    columns = [
        Column("sentence", "guideline"),
        Column("beats", "beats", "share", 130, "the share of all configurations that are slower"),
        Column("configurations", "of configurations", "number", 170, "how many were compared"),
    ]
    rows: list[dict[str, Cell]] = [
        {
            "sentence": text.sentence(each.sentence),
            "beats": each.beats,
            "configurations": each.configurations,
        }
        for each in guidelines
    ]
    grids = dict.fromkeys(text.sentence(each.grid) for each in guidelines)
    compared = dmc.Text(f"Compared with {'; '.join(grids)}.", size="sm", c="dimmed")
    return section("Guidelines", table("guidelines", columns, rows), compared, note="the best first")


def _problem(found: ThreadExploration) -> Component | None:
    if not found.problem:
        return None
    return dmc.Alert(text.sentence(found.problem), title="Nothing can be concluded", color="yellow")


def _measured(found: ThreadExploration) -> Component:
    return section("How it was measured", *(dmc.Text(sentence, size="sm") for sentence in in_words(found)))


def _times(found: ThreadExploration) -> Component | None:
    """The whole step, and beside it the layers for which the count matters most."""
    if not found.step:
        return None
    step = [Line("the whole step", found.step, found.current)]
    shown = by_difference(found.layers)[:_LINES]
    lines = [Line(layer_label(each), each.times, each.planned, each.direction == "backward") for each in shown]
    whole = section(
        "The whole step",
        graph(times_figure(step, found.counts, "step")),
        note=f"now: {in_threads(found.current)}",
    )
    note = "the largest differences first; diamond: the plan, dotted: backward"
    layers = section("Layers", graph(times_figure(lines, found.counts, "time in a step")), note=note)
    return dmc.Grid([dmc.GridCol(whole, span=4), dmc.GridCol(layers, span=8)], gutter="lg")


def _plan(found: ThreadExploration) -> Component | None:
    """The step as planned above the step as it is."""
    planned = planned_step(found.layers)
    if not planned:
        return None
    strips = {"planned": planned, "now": step_at(found.layers, found.current)}
    return section(
        "The plan over a step",
        graph(plan_figure(strips, found.counts)),
        note="layers in the order in which they run, without what changing the count takes",
    )


def _columns(counts: Sequence[int]) -> list[Column]:
    return [
        Column("layer", "layer"),
        Column("direction", "direction", width=105),
        Column("calls", "calls / step", "number", 120),
        *(
            Column(f"at_{count}", in_threads(count), "duration", 105, "per step: the median over rounds")
            for count in counts
        ),
        Column("difference", "difference", "duration", 120, "from the fastest count to the slowest"),
        Column("planned", "planned", "number", 105, "the count that the plan gives it"),
    ]


def _rows(found: ThreadExploration) -> list[dict[str, Cell]]:
    return [_row(layer, found.counts) for layer in by_difference(found.layers)]


def _row(layer: LayerThreadTimes, counts: Sequence[int]) -> dict[str, Cell]:
    row: dict[str, Cell] = {
        "layer": text.one_line(layer.layer, 200),
        "direction": layer.direction,
        "calls": layer.calls,
        "difference": difference_ms(layer) * _MS,
        "planned": layer.planned,
    }
    for count in counts:
        time = layer.times.get(str(count))
        row[f"at_{count}"] = time.expected * _MS if time is not None and known(time) else None
    return row
