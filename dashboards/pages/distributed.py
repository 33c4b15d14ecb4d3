"""Distributed: who waited for whom and why, and how well the ranks work together."""

from collections.abc import Sequence

import dash_mantine_components as dmc
import plotly.graph_objects as go
from dash.development.base_component import Component

from tracekit.analysis.clocks import aligned
from tracekit.analysis.delays import causes
from tracekit.analysis.meetings import find_meetings
from tracekit.analysis.ranks import NOT_TOLD
from tracekit.analysis.report_schema import ClockSummary, RankGroup, Report
from tracekit.analysis.text_ranks import CAUSES, OF_BUCKETS, why_none_is_named
from tracekit.dashboards.figures import text
from tracekit.dashboards.figures.colors import LINES, LOADING_COLORS, PHASE_COLORS
from tracekit.dashboards.figures.distributed import (
    buckets_figure,
    efficiency_figure,
    meetings_figure,
    middle_of,
    what_if_figure,
)
from tracekit.dashboards.figures.ranking import Part, ranking_figure
from tracekit.dashboards.pages.page import Page, View, graph, nothing, page, section, the_run
from tracekit.dashboards.queries import buckets_between
from tracekit.run.reader import Run

_GROUPS, _MEETINGS, _MOST_LANES, _MOST_BUCKETS, _MOST_KINDS = 4, 24, 64, 4000, 12


def render(view: View) -> Component:
    run = the_run(view)
    report = run.report()
    causes_told, of_buckets = _said(report, CAUSES), _said(report, OF_BUCKETS)
    causes_told += [nothing(f"{why}.") for why in why_none_is_named(report, _GROUPS)]
    if not causes_told and not of_buckets and report.buckets is None:
        why = _why(run.run, report)
        return page("Distributed", section("No ranks that wait for each other were seen in this run", why))
    groups = report.ranks[:_GROUPS]
    drawn = run.once("meetings", lambda: _meetings(run.run, groups))
    more = len(report.ranks) - len(groups)
    return page(
        "Distributed",
        section("Whose delays the others waited for", *causes_told) if causes_told else None,
        section("Parameters that a backward pass may leave unused", *of_buckets) if of_buckets else None,
        section(
            "What a step would take with other gradient buckets",
            graph(buckets_figure(report.buckets)),
            graph(what_if_figure(report.buckets)) if report.buckets.what_if else None,
        )
        if report.buckets
        else None,
        *(
            section(
                f"Group {text.one_line(group.group, 40)}{f', attempt {group.attempt}' if group.attempt else ''}:"
                f" {len(group.ranks)} ranks, {group.meetings} meetings",
                dmc.Text(_in_words(group), size="sm"),
                graph(figure)
                if figure is not None
                else nothing(f"{len(group.ranks)} ranks are more than can be drawn."),
                graph(efficiency_figure(group.efficiency)) if group.efficiency else None,
                graph(_path(group)) if group.path else None,
                graph(_communication(group)) if group.communication else None,
            )
            for figure, group in zip(drawn, groups, strict=True)
        ),
        nothing(f"{more} more groups met less often; findings.json has them.") if more > 0 else None,
        note="Ranks meet where they wait for each other: in a collective, and at the end of a backward pass for its"
        " gradients. Nobody leaves before the last one has come.",
    )


def _why(run: Run, report: Report) -> Component:
    untold = [note for note in report.missing if note.what.startswith(NOT_TOLD)]
    if untold:
        return nothing(" ".join(text.sentence(f"Not known is {note.what}: {note.why}.") for note in untold))
    if int(run.sql("SELECT count(*) AS rows FROM collectives")["rows"].iloc[0]):
        return nothing(
            "Its ranks communicated, but not two of them were seen to wait for each other at least twice: on a GPU"
            " communication goes on when the program does, and who sends or receives meets nobody."
        )
    return nothing("It has one process, or its ranks were not seen to communicate through torch.distributed.")


def _meetings(run: Run, groups: Sequence[RankGroup]) -> list[go.Figure | None]:
    """The meetings in the middle of the run, by group; None of one with more ranks than can be drawn."""
    found: list[go.Figure | None] = [None] * len(groups)
    if any(len(group.ranks) <= _MOST_LANES for group in groups):
        met = (each for each in find_meetings(run) if each.is_possible and each.entered.shape[1] > 1)
        for at, as_recorded in zip(range(len(groups)), met, strict=False):
            meetings, clocks = aligned(as_recorded)
            if len(meetings.ranks) <= _MOST_LANES:
                first, last = middle_of(meetings, _MEETINGS)
                begin, end = int(meetings.left[:, first].min()), int(meetings.left[:, last].max())
                buckets = buckets_between(run, meetings, clocks, begin, end)
                drawn = buckets if len(buckets) <= _MOST_BUCKETS else None
                found[at] = meetings_figure(meetings, causes(meetings), first, last, drawn)
    return found


def _said(report: Report, of: str | tuple[str, ...]) -> list[Component]:
    found = [finding for finding in report.findings if finding.id.startswith(of)]
    return [dmc.Text(text.sentence(finding.title), size="sm") for finding in found]


def _in_words(group: RankGroup) -> str:
    words = [
        f"Of their time the ranks waited {group.waited:.1%} for the last one to come (of that {group.kept:.0%} because"
        f" it was kept from its CPU), and {group.transfer:.1%} for the transfer."
    ]
    if group.overlap is not None:
        least, most = group.overlap
        words.append(f"They went on beside {least:.0%} to {most:.0%} of what was under way.")
    if group.looked_at < 1:
        words.append(f"{group.looked_at:.1%} of their meetings were looked at, in stretches over the whole run.")
    return " ".join([*words, *map(_of_clock, group.clocks)])


def _of_clock(clock: ClockSummary) -> str:
    host = text.one_line(clock.host, 40)
    if clock.unsure_ms < 0:
        return (
            f"The clock of {host} jumped, or too few meetings tell how it runs: no line fits, so who waited for whom is"
            " not to be trusted."
        )
    unevenly = f", unevenly ({clock.pieces} pieces)" * (clock.pieces > 1)
    return (
        f"The clock of {host} was {clock.offset_ms:.3f} ms ahead, {clock.drift_ppm:+.1f} ppm{unevenly}"
        f" (+- {clock.unsure_ms:.3f} ms); times are corrected."
    )


def _communication(group: RankGroup) -> go.Figure:
    """What each collective and bucket takes a rank, each time."""
    kinds = group.communication[:_MOST_KINDS]
    parts = [
        Part("waiting for the last one", PHASE_COLORS["communication"], [kind.wait_ms * 1e6 for kind in kinds]),
        Part("transfer, at most", LINES[0], [kind.transfer_ms * 1e6 for kind in kinds]),
    ]
    return ranking_figure([kind.name for kind in kinds], parts, "of a rank on average, each time")


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
