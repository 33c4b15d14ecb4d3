"""A study, on the page that is about what it compares: what every condition took, and which are faster."""

from collections.abc import Sequence
from urllib.parse import urlencode

import dash_mantine_components as dmc
from dash.development.base_component import Component

from tracekit.analysis.text_settings import together, whys
from tracekit.analysis.words import shell_line
from tracekit.dashboards.figures import text
from tracekit.dashboards.figures.study import blocks_figure
from tracekit.dashboards.pages.exploration import guidelines_part
from tracekit.dashboards.pages.noise_parts import noise_parts
from tracekit.dashboards.pages.page import Cell, Column, View, copyable, graph, link, nothing, page, section, table
from tracekit.dashboards.pages.settings import recommendations
from tracekit.dashboards.studies import SHOWN_ON
from tracekit.study.result import WHY_MEAN, Study, predictions
from tracekit.study.statistics import Comparison

_TITLES = {
    "threads": "Study of thread counts",
    "loading": "Study of loaders",
    "ddp": "Study of gradient buckets",
    "noise": "Study of noise",
    "verify": "Verification",
}
# What the run tells that a study began with.
_EXPLORED = {
    "threads": "Times of each layer, in the run that explored",
    "loading": "The loaders of the run that it began with",
    "ddp": "The ranks of the run that it began with, and their buckets",
}
# Below so many pairs an interval has no ends.
_FEWEST_PAIRS = 2

_COLUMNS = [
    Column("b", "condition"),
    Column("a", "against"),
    Column("verdict", "verdict", width=110, help="of the condition on the left"),
    Column("expected", "saves", "percent", 95, "of a step"),
    Column("low", "at least", "percent", 100, "the lower end of the interval"),
    Column("high", "at most", "percent", 100, "the upper end of the interval, at 95 % or more"),
    Column("pairs", "pairs", "number", 80, "blocks of the same round"),
    Column("why", "what is missing"),
]


def render_study(view: View, name: str) -> Component:
    """A study by its name. Raises RunError when there is none."""
    study, explored = view.library.study(name)
    where = SHOWN_ON.get(study.study, "overview")
    return page(
        _TITLES.get(study.study, "Study"),
        section("The command", copyable(shell_line(study.command))),
        *noise_parts(study.noise, study.comparisons[0].margin if study.comparisons else 0.0, study.mixes),
        _distributions(study),
        section("Comparisons", *_comparisons(study.comparisons), *(dmc.Text(line, size="sm") for line in words(study))),
        _recommended(study, f"{view.prefix}{where}?{urlencode({'run': explored})}" if explored else None),
        guidelines_part(study.guidelines),
        note="A block is a run of the command in a process of its own; the conditions took turns. Where a comparison is"
        " in one process, blocks are of some steps of it.",
    )


def words(study: Study) -> list[str]:
    """What was predicted, the noise floor, why it goes by the mean step if it does, why the study ended and how its
    runs met, a sentence each."""
    floor = f"The noise floor is {text.percent(study.floor)}: a condition may seem to save so much over itself."
    if study.floor >= 1:
        floor = "The noise floor is not known: that takes at least three rounds."
    ended = [f"The study ended: {text.sentence(study.stopped)}."] if study.stopped else []
    predicted = [text.sentence(each) for each in predictions(study)]
    how = [f"The {text.sentence(study.interleaved)}."] if study.interleaved else []
    mean = [f"Conditions are {WHY_MEAN}."] if study.by_mean else []
    return [*predicted, floor, *mean, *ended, *how]


def _distributions(study: Study) -> Component:
    if not any(study.blocks_ms.get(each.name) for each in study.conditions):
        return section("Conditions", nothing("No condition was measured."))
    return section(
        "Conditions",
        graph(blocks_figure(study.conditions, study.blocks_ms, study.step)),
        note="a point is a block; diamond: the median and its 95 % interval",
    )


def _comparisons(comparisons: Sequence[Comparison]) -> list[Component]:
    if not comparisons:
        return [nothing("Nothing was compared.")]
    return [table("comparisons", _COLUMNS, [comparison_row(each) for each in comparisons])]


def comparison_row(each: Comparison) -> dict[str, Cell]:
    """A comparison as a row; the interval is left out where there is none."""
    bounded = each.pairs >= _FEWEST_PAIRS
    return {
        "a": text.one_line(each.a) + (", in one process" if each.in_one_process else ""),
        "b": text.one_line(each.b),
        "verdict": each.verdict,
        "expected": each.gain.expected if each.pairs else None,
        "low": each.gain.low if bounded else None,
        "high": each.gain.high if bounded else None,
        "pairs": each.pairs,
        "why": text.one_line(each.why, 200),
    }


def _recommended(study: Study, exploration: str | None) -> Component | None:
    """What the study led to, and where to see what each layer took."""
    lines = recommendations(study.settings)
    lines += [dmc.Text(text.sentence(whys(group)), size="sm") for group in together(study.settings)]
    lines += [copyable(how) for how in dict.fromkeys(each.apply for each in study.settings)]
    if not lines and study.advice:
        lines = [nothing(text.sentence(study.advice))]
    if exploration:
        lines.append(link(_EXPLORED.get(study.study, "The run that it began with"), exploration))
    elif study.explored:
        lines.append(nothing("The run that explored is not there any more."))
    return section("Recommended", *lines) if lines else None
