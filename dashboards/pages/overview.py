"""Overview: what was run, how its steps went, where their time goes, what was found and what is missing."""

import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from urllib.parse import urlencode

import dash_mantine_components as dmc
import msgspec
from dash import Dash, Input, Output, dcc, html
from dash.development.base_component import Component

from tracekit.analysis.report_schema import Finding, Report, StepSummary
from tracekit.dashboards.figures import text
from tracekit.dashboards.figures.colors import PHASE_COLORS
from tracekit.dashboards.figures.steps import phases_figure, steps_figure
from tracekit.dashboards.library import Library, OpenRun
from tracekit.dashboards.pages.page import Page, View, copyable, graph, link, nothing, page, section, swatch, the_run
from tracekit.dashboards.queries import process_labels
from tracekit.run.manifest import Manifest, Missing

# How steps were found, in the words of analysis.steps.
_RULES = {
    "explicit": "marked by the program",
    "optimizer": "by optimizer steps",
    "backward": "by backward passes",
    "batches": "by batches",
    "calls": "by calls of the model",
}


def render(view: View) -> Component:
    run = the_run(view)
    return page(
        "Overview",
        _figures(run),
        section("Where a step's time goes", _phases(run.step_summary()), note=_phases_from(run.step_summary())),
        dmc.SimpleGrid(
            [
                section("Steps", graph(steps_figure(run.main_steps(), run.extent()[0])), note="duration over time"),
                section("Phases", graph(phases_figure(run.main_phases())), note="mean of neighbouring steps"),
            ],
            cols=2,
        ),
        dmc.SimpleGrid(
            [
                dmc.Stack(
                    [
                        # What takes longer comes by itself: the rest of the page need not wait for it.
                        dcc.Store(id="overview-run", data=run.name),
                        dcc.Loading(
                            dmc.Stack(id="overview-report", gap="lg", mih=120),
                            type="dot",
                            overlay_style={"visibility": "visible"},
                        ),
                        section("Not captured", *_missing(run.missing())),
                    ],
                    gap="lg",
                ),
                section("The run", _facts(run)),
            ],
            cols=2,
        ),
    )


def register(app: Dash, library: Library) -> None:
    prefix = app.config.requests_pathname_prefix
    app.callback(Output("overview-report", "children"), Input("overview-run", "data"))(
        lambda name: _report(library.open(name).report(), f"{prefix}settings?{urlencode({'run': name})}")
    )


def _report(report: Report, settings: str) -> list[Component]:
    return [_advice(report, settings), section("Findings", *_findings(report))]


def _figures(run: OpenRun) -> Component:
    """The numbers that everyone looks for first."""
    manifests = run.run.manifests
    overhead = max(manifests, key=lambda manifest: manifest.overhead.total).overhead
    steps = run.step_summary()
    tiles = [
        ("Steps", text.number(steps.count), _RULES.get(steps.rule, "")),
        ("Median step", _milliseconds(steps.median_ms), ""),
        ("90 % of steps within", _milliseconds(steps.p90_ms), ""),
        ("Run time", _run_time(manifests), _end(manifests)),
        ("Processes", text.number(len(run.processes())), f"on {len(manifests)} hosts" if len(manifests) > 1 else ""),
        ("Cost of recording", text.percent(overhead.total), f"budget {text.percent(overhead.budget)}"),
    ]
    return dmc.SimpleGrid([_tile(*tile) for tile in tiles], cols=6, spacing="sm")


def _milliseconds(value: float | None) -> str:
    return "–" if value is None else text.duration(value * 1e6)


def _tile(title: str, value: str, note: str) -> Component:
    lines = [dmc.Text(title, size="xs", c="dimmed"), dmc.Text(value, fw=600, fz=22, lh=1.2)]
    if note:
        lines.append(dmc.Text(note, size="xs", c="dimmed"))
    return dmc.Paper(dmc.Stack(lines, gap=2), withBorder=True, p="sm", radius="md")


def _run_time(manifests: list[Manifest]) -> str:
    ends = [manifest.ended_ns for manifest in manifests if manifest.ended_ns is not None]
    return text.long_duration(max(ends) - manifests[0].started_ns) if ends else "–"


def _end(manifests: list[Manifest]) -> str:
    if any(manifest.ended_ns is None for manifest in manifests):
        return "did not end in order"
    code = next((manifest.exit_code for manifest in manifests if manifest.exit_code), 0)
    return f"exit code {code}" if code else ""


def _phases_from(steps: StepSummary) -> str:
    known = "" if steps.phase_steps == steps.count else f" in the {steps.phase_steps:,} steps of which it is known"
    return f"mean share of each phase{known}"


def _phases(steps: StepSummary) -> Component:
    """One bar of all phases, and what each colour is."""
    phases = [phase for phase in steps.phases if phase.share > 0]
    if not phases:
        return nothing("No steps were found, so there are no phases.")
    median = (steps.median_ms or 0.0) * 1e6
    bar = dmc.ProgressRoot(
        [
            dmc.ProgressSection(value=100 * phase.share, color=PHASE_COLORS.get(phase.name, PHASE_COLORS["other"]))
            for phase in phases
        ],
        h=18,
        radius="sm",
    )
    legend = [
        dmc.Stack(
            [
                dmc.Text([swatch(PHASE_COLORS.get(phase.name, PHASE_COLORS["other"])), phase.name], size="sm"),
                dmc.Text([html.B(text.percent(phase.share)), f" ≈ {text.duration(phase.share * median)}"], size="sm"),
            ],
            gap=0,
        )
        for phase in phases
    ]
    return dmc.Stack([bar, dmc.SimpleGrid(legend, cols=6, spacing="sm")], gap="sm")


def _findings(report: Report) -> list[Component]:
    shown = [_finding(each) for each in report.findings if each.id != "recording.missing"]  # has a section of its own
    return shown or [nothing("Nothing stands out.")]


def _finding(finding: Finding) -> Component:
    """What was found; a click shows the evidence."""
    evidence = [
        html.Tr([html.Td(text.one_line(name.replace("_", " "))), html.Td(_shown(value))])
        for name, value in finding.evidence.items()
        if not isinstance(value, dict | list)  # what is ranked or counted has a page of its own
    ]
    title = text.sentence(finding.title)
    if not evidence:
        return dmc.Text(title, size="sm", className="finding")
    table = dmc.Table(html.Tbody(evidence), className="facts", fz="xs", verticalSpacing=2, c="dimmed")
    return html.Details([html.Summary(title), table], className="finding")


def _shown(value: object) -> str:
    if isinstance(value, float):
        return text.significant(value)
    if value is None:
        return "not set"
    plain = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text.one_line(plain, 240)


def _missing(notes: Sequence[Missing]) -> list[Component]:
    if not notes:
        return [nothing("Everything that was asked for was captured.")]
    return [
        dmc.Text([html.B(text.one_line(note.what, 200)), f": {text.sentence(note.why)}"], size="sm") for note in notes
    ]


def _advice(report: Report, settings: str) -> Component:
    if not report.settings:
        return section("Recommended settings", nothing(report.advice or "None."))
    lines = [
        dmc.Text([dmc.Code(each.name), f" {_shown(each.current)} → ", html.B(_shown(each.recommended))], size="sm")
        for each in report.settings
    ]
    return section("Recommended settings", *lines, link("Gain, reason and how to apply", settings))


def _facts(run: OpenRun) -> Component:
    manifest = run.run.manifest
    cpu, torch = manifest.cpu, manifest.torch
    started = datetime.fromtimestamp(manifest.started_ns / 1e9, UTC).astimezone()
    facts: list[tuple[str, str | Component]] = [
        ("command", copyable(shlex.join(manifest.command))),
        ("directory", text.one_line(manifest.directory, 200) or "–"),
        ("condition", text.one_line(manifest.condition)),
        ("settings", _shown(manifest.settings) if manifest.settings else "none"),
        ("started", f"{started:%Y-%m-%d %H:%M:%S %Z}"),
        ("hosts", ", ".join(text.one_line(each.host) for each in run.run.manifests)),
        ("processes", ", ".join(process_labels(run.processes()).values()) or "none"),
        ("CPU", f"{cpu.model or 'unknown'}, {len(cpu.affinity)} of {cpu.logical} CPUs, quota {cpu.quota or 'none'}"),
        (
            "torch",
            f"{torch.version}, {torch.intra_op} threads, {torch.inter_op} between operators" if torch else "not seen",
        ),
        ("GPUs", ", ".join(manifest.gpus) or "none seen"),
        ("collectors", ", ".join(manifest.collectors) or "–"),
        ("profiler", manifest.profile),
    ]
    rows = [html.Tr([html.Td(name), html.Td(value)]) for name, value in facts]
    return dmc.Table(html.Tbody(rows), className="facts", fz="sm", verticalSpacing=4)


OVERVIEW = Page("overview", "Overview", render, register)
