"""Runs: what has been recorded; a click opens one."""

import shlex
from urllib.parse import urlencode

from dash import Dash, Input, Output, no_update
from dash.development.base_component import Component

from tracekit.dashboards.figures import text
from tracekit.dashboards.library import Entry, Library
from tracekit.dashboards.pages.page import Cell, Column, Page, View, page, table

_COLUMNS = [
    Column("name", "run"),
    Column("started", "started", "moment", 160),
    Column("duration", "duration", "duration", 95),
    Column("command", "command"),
    Column("condition", "condition", width=115),
    Column("end", "ended", width=125),
    Column("overhead", "overhead", "percent", 110, "what recording cost, as tracekit estimates it, of the run's time"),
]


def render(view: View) -> Component:
    rows = [_row(entry) for entry in view.library.entries()]
    return page("Runs", table("runs", _COLUMNS, rows, height=640, link=True), note="Click a run to open it.")


def register(app: Dash, library: Library) -> None:
    prefix = app.config.requests_pathname_prefix

    def follow(cell: dict[str, object] | None) -> object:
        """To the overview of the run that was clicked."""
        name = str(cell["rowId"]) if cell else None
        if name not in library.names():
            return no_update
        library.warm(name)
        return f"{prefix}overview?{urlencode({'run': name})}"

    app.callback(Output("url", "href"), Input("runs", "cellClicked"), prevent_initial_call=True)(follow)


def _row(entry: Entry) -> dict[str, Cell]:
    if not entry.manifests:
        return {"name": entry.name, "end": "cannot be opened", "command": text.one_line(entry.problem, 300)}
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
