"""Noise: what may share the node, how much of it, and what it costs."""

from collections.abc import Sequence

from dash.development.base_component import Component

from tracekit.analysis.noise import noise_blocks, noise_log
from tracekit.analysis.noise_verdicts import MARGIN
from tracekit.analysis.words import shell_line
from tracekit.dashboards.figures.noise import blocks_in_time_figure
from tracekit.dashboards.pages.noise_parts import noise_parts
from tracekit.dashboards.pages.page import Page, View, copyable, graph, nothing, page, section, the_run


def render(view: View) -> Component:
    run = the_run(view)
    noises = [noise for manifest in run.run.manifests for noise in manifest.noise]
    if not noises:
        return page("Noise", section("No noise was made beside this run", *_how(run.report().command)))
    steps = run.steps()
    blocks = noise_blocks(noise_log(run.run), steps)
    return page(
        "Noise",
        section(
            "Steps over time, and when there was noise",
            graph(blocks_in_time_figure(steps.of(steps.main), blocks, int(steps.frame["start_ns"].min())))
            if blocks
            else nothing("There was noise all the time or never while steps were seen: nothing to compare it with."),
        ),
        *noise_parts(run.report().noise, MARGIN),
        note="Each stretch with noise is set against the silence before and after it.",
    )


def _how(command: Sequence[str]) -> list[Component]:
    """How to make some."""
    return [
        nothing("To see what it does to the steps, let some go on and off beside it, or make a study:"),
        copyable(shell_line(["tracekit", "record", "--noise", "cpu=1", "--pattern", "1s/1s", "--", *command])),
        copyable(shell_line(["tracekit", "study", "noise", "--", *command])),
    ]


NOISE = Page("noise", "Noise", render)
