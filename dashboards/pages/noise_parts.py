"""The parts of a page that show what noises did: of a run, and of a study."""

from collections.abc import Sequence

import dash_mantine_components as dmc
from dash.development.base_component import Component

from tracekit.analysis.noise_effects import NoiseEffect
from tracekit.analysis.noise_findings import noise_findings
from tracekit.dashboards.figures import text
from tracekit.dashboards.figures.noise import blame_figure, doses_figure, slowdowns_figure
from tracekit.dashboards.pages.page import graph, section
from tracekit.models.noise import Mix


def noise_parts(effects: Sequence[NoiseEffect], margin: float, mixes: Sequence[Mix] = ()) -> list[Component]:
    """The parts of a page that show what noises did."""
    if not effects:
        return []
    said = [dmc.Text(text.sentence(finding.title), size="sm") for finding in noise_findings(effects, margin)]
    together = [
        dmc.Text(
            f"{text.one_line(mix.noise, 200)}: {text.percent(mix.predicted.expected)} was predicted from what each does"
            f" by itself, {text.percent(mix.measured.expected)} was seen",
            size="sm",
        )
        for mix in mixes
    ]
    parts: list[Component | None] = [
        section("Verdicts", graph(slowdowns_figure(effects, margin)), *said, note="diamond: the median step, and 95 %"),
        section("Slowdown against dose", graph(doses_figure(effects))),
        section("Which phase got longer, and through what", graph(blame_figure(effects)), note="of the slowdown")
        if any(each.blame for each in effects)
        else None,
        section("Together", *together) if together else None,
    ]
    return [part for part in parts if part is not None]
