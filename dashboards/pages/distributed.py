"""Distributed: who waited for whom and why, and how well the ranks work together."""

import dash_mantine_components as dmc
import plotly.graph_objects as go
from dash.development.base_component import Component

from tracekit.analysis.clocks import aligned
from tracekit.analysis.delays import causes
from tracekit.analysis.meetings import find_meetings
from tracekit.analysis.report_schema import RankGroup, Report
from tracekit.dashboards.figures import text
from tracekit.dashboards.figures.colors import LINES, LOADING_COLORS, PHASE_COLORS
from tracekit.dashboards.figures.distributed import buckets_figure, efficiency_figure, meetings_figure, middle_of
from tracekit.dashboards.figures.ranking import Part, ranking_figure
from tracekit.dashboards.pages.page import Page, View, graph, nothing, page, section, the_run

_GROUPS, _MEETINGS, _MOST_LANES = 4, 24, 64


def render(view: View) -> Component:
    run = the_run(view)
    report = run.report()
    if not report.ranks and report.buckets is None:
        return page("Distributed", section("No ranks that wait for each other were seen in this run", *_why()))
    drawn = list(zip(find_meetings(run.run), report.ranks, strict=False))
    return page(
        "Distributed",
        section("Whose delays the others waited for", *_causes(report)) if report.ranks else None,
        section("What a step would take with other gradient buckets", graph(buckets_figure(report.buckets)))
        if report.buckets
        else None,
        *(
            section(
                f"Group {text.one_line(group.group, 40)}: {len(group.ranks)} ranks, {group.meetings} meetings",
                dmc.Text(_in_words(group), size="sm"),
                graph(meetings_figure(aligned(meetings)[0], causes(meetings), *middle_of(meetings, _MEETINGS)))
                if len(group.ranks) <= _MOST_LANES
                else nothing(f"{len(group.ranks)} ranks are more than can be drawn."),
                graph(efficiency_figure(group.efficiency)) if group.efficiency else None,
                graph(_path(group)) if group.path else None,
            )
            for meetings, group in drawn[:_GROUPS]
        ),
        note="Ranks meet where they wait for each other: in a collective, and at the end of a backward pass for its"
        " gradients. Nobody leaves before the last one has come.",
    )


def _why() -> list[Component]:
    return [nothing("It has one process, or its ranks were not seen to communicate through torch.distributed.")]


def _causes(report: Report) -> list[Component]:
    found = [finding for finding in report.findings if finding.id == "delay.root_cause"]
    if not found:
        return [nothing("No rank kept the others waiting in the usual step.")]
    return [dmc.Text(text.one_line(finding.title, 300), size="sm") for finding in found]


def _in_words(group: RankGroup) -> str:
    words = [
        f"Of their time the ranks waited {group.waited:.1%} for the last one to come (of that {group.kept:.0%} because"
        f" it was kept from its CPU), and {group.transfer:.1%} for the transfer."
    ]
    words += [
        f"The clock of {text.one_line(clock.host, 40)} was {clock.offset_ms:.3f} ms ahead, {clock.drift_ppm:+.1f} ppm"
        f" (+- {clock.unsure_ms:.3f} ms); times are corrected."
        for clock in group.clocks
    ]
    return " ".join(words)


def _path(group: RankGroup) -> go.Figure:
    """What the path through all ranks consists of."""
    colors = PHASE_COLORS | LOADING_COLORS
    parts = [
        Part(name, colors.get(name, LINES[number % len(LINES)]), [seconds * 1e9])
        for number, (name, seconds) in enumerate(group.path.items())
        if seconds > 0
    ]
    return ranking_figure(["critical path"], parts, "on the path that decides how long it takes")


DISTRIBUTED = Page("distributed", "Distributed", render)
