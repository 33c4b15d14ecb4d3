"""Loading: what the program waits for, who makes its batches, and what other settings would do."""

from collections.abc import Sequence

import dash_mantine_components as dmc
import plotly.graph_objects as go
from dash.development.base_component import Component

from tracekit.advice.loader_findings import NOTABLE
from tracekit.analysis.batches import made_batches
from tracekit.analysis.report_schema import LoaderSummary, Report
from tracekit.analysis.samples import slowest_files, slowest_samples
from tracekit.analysis.text import said_of_loaders
from tracekit.analysis.words import shell_line
from tracekit.dashboards.figures import text
from tracekit.dashboards.figures.colors import LINES
from tracekit.dashboards.figures.loading import Mark, surface_figure, workers_figure
from tracekit.dashboards.figures.ranking import Part, ranking_figure
from tracekit.dashboards.library import OpenRun
from tracekit.dashboards.pages.page import (
    Column,
    Page,
    View,
    copyable,
    graph,
    nothing,
    page,
    section,
    table,
    the_run,
)
from tracekit.dashboards.pages.rows import as_rows
from tracekit.dashboards.pages.settings import what_follows

_LOADERS = 6
_BATCHES = 60
_SAMPLES = 100
_CAUSES = ("storage", "cpu", "transfer", "consumer", "startup")
_NS_PER_MS = 1e6
_ORDER = {
    "run": "the order of its samples is known when the run begins",
    "epoch": "the order of its samples is known when an epoch begins",
    "none": "the order of its samples is not known beforehand",
}
_COLUMNS = [
    Column("index", "sample", "number", 110, "its index in the data set"),
    Column("times", "looked at", "number", 110),
    Column("wall_ns", "takes", "duration", 110, "the median"),
    Column("cpu_ns", "computing", "duration", 110),
    Column("waited_ns", "waiting", "duration", 110, "for storage, for a lock, or for a CPU"),
]
_FILES = [
    Column("path", "file or object", "text", 420),
    Column("times", "looked at", "number", 110, "how many batches read it"),
    Column("reads", "reads", "number", 100, "of each such time"),
    Column("bytes", "bytes", "number", 120, "of each such time"),
    Column("wall_ns", "takes", "duration", 110, "of each such time"),
    Column("cpu_ns", "computing", "duration", 110),
]


def render(view: View) -> Component:
    run = the_run(view)
    report = run.report()
    if not report.loaders and not run.run.manifest.loaders:
        return page("Loading", section("No loader was seen in this run", *_how_to(run.run.manifest.command)))
    shown, said = report.loaders[:_LOADERS], said_of_loaders(report)
    more = len(report.loaders) - len(shown)
    return page(
        "Loading",
        what_follows(view, run, "loader.", "No other setting of a loader is recommended."),
        section("What the program waits for", graph(_waits(run, shown)), note="by what would have to be faster")
        if shown
        else None,
        section("What was found", *(dmc.Text(text.sentence(each.title), size="sm") for each in said)) if said else None,
        *(_loader(run, report, loader) for loader in shown),
        nothing(f"{more} more loaders are in findings.json.") if more > 0 else None,
        _slowest(run),
        _slowest_files(run),
        note="Loaders as they were iterated over in the process that stands for the run. Predictions replay what the"
        " batches of this run cost at other settings.",
    )


def _how_to(command: list[str]) -> list[Component]:
    return [
        nothing("It has no torch DataLoader, or was recorded without the collector `loading`:"),
        copyable(shell_line(["tracekit", "record", "--", *command])),
    ]


def _waits(run: OpenRun, loaders: Sequence[LoaderSummary]) -> go.Figure:
    """How long the program waited for each loader, by what would have to be faster."""
    windows = (run.steps().window(each.process) or (0, 0) for each in loaders)
    waited = [each.wait * (end - start) for each, (start, end) in zip(loaders, windows, strict=True)]
    parts = [
        Part(cause, LINES[number], [each.split.get(cause, 0.0) * ns for each, ns in zip(loaders, waited, strict=True)])
        for number, cause in enumerate(_CAUSES)
    ]
    return ranking_figure([each.loader for each in loaders], parts, "waited in all")


def _loader(run: OpenRun, report: Report, loader: LoaderSummary) -> Component:
    batches = made_batches(run.run, loader.process)
    batches = batches[batches["loader"] == loader.loader].sort_values("asked_ns")
    middle = max(len(batches) // 2 - _BATCHES // 2, 0)
    batches = batches[middle : middle + _BATCHES]
    steps = run.steps().of(loader.process)
    steps = steps[steps["start_ns"].between(batches["asked_ns"].min(), batches["received_ns"].max())]
    return section(
        f"{text.one_line(loader.loader, 60)} ({text.one_line(loader.place, 60) or 'place not seen'})",
        dmc.Text(_in_words(loader), size="sm"),
        graph(surface_figure(loader.forecasts, _marks(report, loader))),
        dmc.Text(f"{len(batches)} batches in the middle of the run:", size="sm", c="dimmed"),
        graph(workers_figure(batches, steps[: 2 * _BATCHES])),
    )


def _in_words(loader: LoaderSummary) -> str:
    workers = (
        f"{loader.num_workers} workers, {loader.prefetch_factor} batches ahead each"
        if loader.num_workers
        else "no workers"
    )
    each = text.duration(loader.batch_ms * _NS_PER_MS)
    sentences = [
        f"{workers}; {loader.batches} batches in {loader.epochs} epochs, {each} each;"
        f" the program waited for them {loader.wait:.0%} of the time.",
    ]
    if loader.order >= NOTABLE:
        sentences.append(f"{loader.order:.0%} of the waiting would go if batches were delivered in any order.")
    if loader.predictability in _ORDER:
        sentences.append(f"As far as was seen, {_ORDER[loader.predictability]}.")
    if not loader.probed:
        sentences.append(
            f"No more than {loader.readers} were being made at once: beyond that the predictions are a range."
        )
    return " ".join(sentences)


def _marks(report: Report, loader: LoaderSummary) -> list[Mark]:
    values = {each.name: each.recommended for each in report.settings}
    now = Mark("now", loader.num_workers, loader.prefetch_factor, "circle")
    workers = values.get(f"loader.{loader.loader}.num_workers", loader.num_workers)
    factor = values.get(f"loader.{loader.loader}.prefetch_factor", loader.prefetch_factor)
    if (
        not isinstance(workers, int)
        or not isinstance(factor, int)
        or (workers, factor) == (now.num_workers, now.prefetch_factor)
    ):
        return [now]
    return [now, Mark("recommended", workers, factor, "star")]


def _slowest(run: OpenRun) -> Component | None:
    samples = slowest_samples(run.run, _SAMPLES)
    if samples.empty:
        return None
    rows = as_rows(samples, [column.field for column in _COLUMNS])
    return section("Slowest samples", table("samples", _COLUMNS, rows), note="of those that were looked at one by one")


def _slowest_files(run: OpenRun) -> Component | None:
    files = slowest_files(run.run, _SAMPLES)
    if files.empty:
        return None
    rows = as_rows(files, [column.field for column in _FILES])
    note = "of those that Python, fsspec or HTTP read for batches that were looked at"
    return section("Slowest files", table("files", _FILES, rows), note=note)


LOADING = Page("loading", "Loading", render)
