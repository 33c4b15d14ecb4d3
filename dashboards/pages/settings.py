"""Settings: what is recommended, what it should gain, why, and the command that applies it."""

from collections.abc import Sequence
from urllib.parse import urlencode

import dash_mantine_components as dmc
import msgspec
from dash import html
from dash.development.base_component import Component

from tracekit.analysis.report_schema import Gain, Setting
from tracekit.analysis.text_settings import together, whys
from tracekit.analysis.words import shell_line
from tracekit.dashboards.figures import text
from tracekit.dashboards.library import OpenRun
from tracekit.dashboards.pages.page import Page, View, copyable, link, nothing, page, section, the_run

_BASIS = {
    "measured": "from measurements",
    "model": "from a model of this run",
    "probe": "from a short probe",
    "rule": "from a rule, not measured",
}
_EFFECT = {
    "identical": "results stay identical",
    "order": "changes the order of samples",
    "augmentation": "changes what is drawn at random (augmentation, dropout)",
    "numerics": "changes the numbers",
}


def render(view: View) -> Component:
    run = the_run(view)
    report = run.report()
    cards = [_card(group) for group in together(report.settings)]
    if not cards:
        why = text.sentence(report.advice) or "No advisor had anything to say about this run."
        cards = [section("No change is recommended", nothing(why))]
    if report.settings and not (run.run.path / "settings.toml").is_file():
        first = copyable(shell_line(["tracekit", "analyze", str(run.run.path)]))
        cards.insert(0, section("Not in a file yet", nothing("What is recommended is written into one by"), first))
    return page("Settings", *cards, note="Gain: the share of a step's time that the change saves, as an interval.")


def recommendations(settings: Sequence[Setting]) -> list[Component]:
    """A line for each setting, or for those that go together: its value now, the one recommended, and what that should
    save."""
    lines: list[Component] = []
    for group in together(settings):
        gain = group[0].gain
        words: list[Component | str] = []
        for each in group:
            change = f" {_value(each.current)} → "
            words += [dmc.Code(text.one_line(each.name)), change, html.B(_value(each.recommended)), ", "]
        saves = "together save" if len(group) > 1 else "saves"
        ends = f"({text.percent(gain.low)} to {text.percent(gain.high)})"
        words.append(f"{saves} {text.percent(gain.expected)} of a step {ends}; {_effect(group)}")
        lines.append(dmc.Text(words, size="sm"))
    return lines


def what_follows(view: View, run: OpenRun, prefix: str, otherwise: str) -> Component:
    """The run's recommendations whose names begin with the prefix, and a link to all; or why there is none."""
    report = run.report()
    lines = recommendations([each for each in report.settings if each.name.startswith(prefix)])
    if lines:
        lines.append(link("Gain, reason and how to apply", f"{view.prefix}settings?{urlencode({'run': run.name})}"))
    else:
        lines = [nothing(text.sentence(report.advice) or otherwise)]
    return section("What follows", *lines)


def _card(group: Sequence[Setting]) -> Component:
    """Settings that have one gain."""
    is_same = all(each.effect == "identical" for each in group)
    badges = dmc.Group(
        [
            dmc.Badge(_BASIS.get(group[0].basis, group[0].basis), variant="light", color="blue", tt="none"),
            dmc.Badge(_effect(group), variant="light", color="green" if is_same else "orange", tt="none"),
        ],
        gap="xs",
    )
    left = dmc.Stack([*(part for each in group for part in _change(each)), badges], gap="xs", align="flex-start")
    right = dmc.Stack(
        [
            _gain(group[0].gain),
            dmc.Text(text.sentence(whys(group)), size="sm"),
            *(copyable(apply) for apply in dict.fromkeys(each.apply for each in group)),
        ],
        gap="sm",
    )
    grid = dmc.Grid([dmc.GridCol(left, span=4), dmc.GridCol(right, span=8)], gutter="lg")
    return dmc.Paper(grid, withBorder=True, p="md", radius="md")


def _change(setting: Setting) -> list[Component]:
    values = [
        dmc.Text(_value(setting.current), fz=22, c="dimmed"),
        dmc.Text("→", fz=22, c="dimmed"),
        dmc.Text(_value(setting.recommended), fz=22, fw=700),
    ]
    return [dmc.Code(text.one_line(setting.name), fz="sm"), dmc.Group(values, gap="xs")]


def _effect(group: Sequence[Setting]) -> str:
    """What they change in the results."""
    effects = list(dict.fromkeys(each.effect for each in group))
    differ = [each for each in effects if each != "identical"]
    return "; ".join(_EFFECT.get(each, each) for each in differ or effects)


def _gain(gain: Gain) -> Component:
    """The interval in words and as a bar from the lower to the higher end, on a scale that holds zero."""
    low, high = min(gain.low, 0.0), max(gain.high, 0.05)

    def at(share: float) -> str:
        return f"{100 * (share - low) / (high - low):.2f}%"

    bar = html.Div(
        [
            html.Div(style={"left": at(gain.low), "width": f"calc({at(gain.high)} - {at(gain.low)})"}),
            html.Div(className="zero", style={"left": at(0.0)}),
            html.Div(className="expected", style={"left": at(gain.expected)}),
        ],
        className="interval",
        style={"maxWidth": "420px"},
    )
    words = [
        html.B(text.percent(gain.expected)),
        f" of a step expected, {text.percent(gain.low)} to {text.percent(gain.high)}",
    ]
    return dmc.Stack([dmc.Text(words, size="sm"), bar], gap=6)


def _value(value: object) -> str:
    plain = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return "not set" if value is None else text.one_line(plain, 60)


SETTINGS = Page("settings", "Settings", render)
