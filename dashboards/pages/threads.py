"""Threads: what every layer takes at every thread count, the plan that follows, and the studies that compare them."""

from dash.development.base_component import Component

from tracekit.analysis.words import shell_line
from tracekit.dashboards.pages.exploration import exploration_parts
from tracekit.dashboards.pages.page import Page, View, copyable, nothing, page, section, the_run
from tracekit.dashboards.pages.settings import what_follows


def render(view: View) -> Component:
    run = the_run(view)
    report = run.report()
    if report.exploration is None:
        return page("Threads", section("No thread counts were tried in this run", *_how_to(run.run.manifest.command)))
    return page(
        "Threads",
        what_follows(view, run, "threads.", "No other thread count is recommended."),
        *exploration_parts(report.exploration),
        note="One run under several thread counts in turn. Intervals are of the median over rounds, at 95 %.",
    )


def _how_to(command: list[str]) -> list[Component]:
    return [
        nothing("To see what each layer takes with how many threads, record one that tries them, or make a study:"),
        copyable(shell_line(["tracekit", "record", "--explore", "threads", "--", *command])),
        copyable(shell_line(["tracekit", "study", "threads", "--", *command])),
    ]


THREADS = Page("threads", "Threads", render)
