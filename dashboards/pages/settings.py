"""Settings: what is recommended, what it should gain, why, and the command that applies it."""

from collections.abc import Sequence
from urllib.parse import urlencode

import dash_mantine_components as dmc
import msgspec
from dash import html
from dash.development.base_component import Component

from tracekit.analysis.report_schema import Gain, Setting
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
    cards = [_card(setting) for setting in report.settings]
    if not cards:
        why = text.one_line(report.advice, 1000) or "No advisor had anything to say about this run."
        cards = [section("No change is recommended", nothing(why))]
    return page("Settings", *cards, note="Gain: the share of a step's time that the change saves, as an interval.")


def recommendations(settings: Sequence[Setting]) -> list[Component]:
    """A line for each setting: its value now, the one recommended, and what that should save."""
    return [
        dmc.Text(
            [
                dmc.Code(text.one_line(each.name)),
                f" {_value(each.current)} → ",
                html.B(_value(each.recommended)),
                f", saves {text.percent(each.gain.expected)} of a step"
                f" ({text.percent(each.gain.low)} to {text.percent(each.gain.high)})",
            ],
            size="sm",
        )
        for each in settings
    ]


def what_follows(view: View, run: OpenRun, prefix: str, otherwise: str) -> Component:
    """The run's recommendations whose names begin with the prefix, and a link to all; or why there is none."""
    report = run.report()
    lines = recommendations([each for each in report.settings if each.name.startswith(prefix)])
    if lines:
        lines.append(link("Gain, reason and how to apply", f"{view.prefix}settings?{urlencode({'run': run.name})}"))
    else:
        lines = [nothing(text.one_line(report.advice, 1000) or otherwise)]
    return section("What follows", *lines)


def _card(setting: Setting) -> Component:
    change = dmc.Group(
        [
            dmc.Text(_value(setting.current), fz=22, c="dimmed"),
            dmc.Text("→", fz=22, c="dimmed"),
            dmc.Text(_value(setting.recommended), fz=22, fw=700),
        ],
        gap="xs",
    )
    badges = dmc.Group(
        [
            dmc.Badge(_BASIS.get(setting.basis, setting.basis), variant="light", color="blue", tt="none"),
            dmc.Badge(
                _EFFECT.get(setting.effect, setting.effect),
                variant="light",
                color="green" if setting.effect == "identical" else "orange",
                tt="none",
            ),
        ],
        gap="xs",
    )
    left = dmc.Stack([dmc.Code(text.one_line(setting.name), fz="sm"), change, badges], gap="xs", align="flex-start")
    right = dmc.Stack(
        [_gain(setting.gain), dmc.Text(text.one_line(setting.why, 600), size="sm"), copyable(setting.apply)], gap="sm"
    )
    grid = dmc.Grid([dmc.GridCol(left, span=4), dmc.GridCol(right, span=8)], gutter="lg")
    return dmc.Paper(grid, withBorder=True, p="md", radius="md")


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
