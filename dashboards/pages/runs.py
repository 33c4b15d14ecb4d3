"""Runs: what has been recorded, and the studies made of it; a click opens one."""

import shlex
from urllib.parse import urlencode

import dash_mantine_components as dmc
from dash import Dash, Input, Output, no_update
from dash.development.base_component import Component

from tracekit.dashboards.figures import text
from tracekit.dashboards.library import Entry, Library
from tracekit.dashboards.pages.page import Cell, Column, Page, View, nothing, page, table
from tracekit.dashboards.studies import SHOWN_ON, StudyEntry
from tracekit.errors import RunError
from tracekit.study.statistics import Comparison

_COLUMNS = [
    Column("name", "run"),
    Column("started", "started", "moment", 160),
    Column("duration", "duration", "duration", 95),
    Column("command", "command"),
    Column("condition", "condition", width=115),
    Column("end", "ended", width=125),
    Column("overhead", "overhead", "percent", 110, "what recording cost, as tracekit estimates it, of the run's time"),
]

_STUDY_COLUMNS = [
    Column("name", "study"),
    Column("written", "ended", "moment", 160),
    Column("kind", "kind", width=95),
    Column("command", "command"),
    Column("blocks", "blocks", "number", 90, "runs of the command that were compared"),
    Column("result", "result"),
]


def render(view: View) -> Component:
    runs = [_row(entry) for entry in view.library.entries()]
    studies = [study_row(entry) for entry in view.library.study_entries()]
    shown = table("runs", _COLUMNS, runs, height=640, link=True) if runs else nothing("There are studies only.")
    if not studies:
        return page("Runs", shown, note="Click a run to open it.")
    return page(
        "Runs",
        shown,
        dmc.Title("Studies", order=3, className="page-title"),
        table("studies", _STUDY_COLUMNS, studies, link=True),
        note="Click a run or a study to open it.",
    )


def register(app: Dash, library: Library) -> None:
    prefix = app.config.requests_pathname_prefix

    def follow(cell: dict[str, object] | None) -> object:
        """To the overview of the run that was clicked."""
        name = str(cell["rowId"]) if cell else None
        if name not in library.names():
            return no_update
        library.warm(name)
        return f"{prefix}overview?{urlencode({'run': name})}"

    def follow_study(cell: dict[str, object] | None) -> object:
        """To the study that was clicked; the other pages then show the run that it explored, where there is one."""
        name = str(cell["rowId"]) if cell else ""
        if name not in library.study_names():
            return no_update
        query = {"study": name}
        where = "settings"
        try:
            study, explored = library.study(name)
            where = SHOWN_ON.get(study.study, where)
        except RunError:
            explored = None  # the page will say why it cannot be opened
        if explored is not None:
            query["run"] = explored
        return f"{prefix}{where}?{urlencode(query)}"

    app.callback(Output("url", "href"), Input("runs", "cellClicked"), prevent_initial_call=True)(follow)
    app.callback(
        Output("url", "href", allow_duplicate=True), Input("studies", "cellClicked"), prevent_initial_call=True
    )(follow_study)


def _row(entry: Entry) -> dict[str, Cell]:
    if not entry.manifests:
        return {"name": entry.name, "end": "cannot be opened", "command": text.sentence(entry.problem)}
    first = entry.manifests[0]
    ends = [manifest.ended_ns for manifest in entry.manifests]
    last = max((end for end in ends if end is not None), default=None)
    return {
        "name": entry.name,
        "started": first.started_ns or None,
        "duration": last - first.started_ns if last else None,
        "command": text.one_line(shlex.join(first.command), 300),
        "condition": text.one_line(first.condition),
        "end": how_it_ended(entry),
        "overhead": max(manifest.overhead.total for manifest in entry.manifests),
    }


def study_row(entry: StudyEntry) -> dict[str, Cell]:
    """A study as a row: how much was run, and what came of it."""
    row: dict[str, Cell] = {"name": entry.name, "written": entry.written_ns or None}
    if entry.study is None:
        return row | {"kind": "unreadable", "command": text.sentence(entry.problem)}
    study = entry.study
    return row | {
        "kind": text.one_line(study.study, 40),
        "command": text.one_line(shlex.join(study.command), 300),
        "blocks": sum(len(blocks) for blocks in study.blocks_ms.values()),
        "result": _result(study.comparisons),
    }


def _result(comparisons: list[Comparison]) -> str:
    """The comparison that shows the largest certain gain; without one, how the first came out."""
    if not comparisons:
        return "nothing was compared"
    faster = [each for each in comparisons if each.verdict == "faster" and not each.in_one_process]
    said = max(faster, key=lambda each: each.gain.expected) if faster else comparisons[0]
    saves = f", saves {text.percent(said.gain.expected)}" if faster else ""
    return f"{text.one_line(said.b)} against {text.one_line(said.a)}: {said.verdict}{saves}"


def how_it_ended(entry: Entry) -> str:
    """In words: recording, cut off, or how the command ended."""
    if any(manifest.ended_ns is None for manifest in entry.manifests):
        return "not ended in order"
    failed = [manifest for manifest in entry.manifests if manifest.exit_code or manifest.exit_signal]
    if not failed:
        return "well"
    signal = failed[0].exit_signal
    return f"killed by signal {signal}" if signal else f"exit code {failed[0].exit_code}"


RUNS = Page("", "Runs", render, register, about_a_run=False)
