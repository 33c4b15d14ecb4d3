"""What is recommended, as lines of text: of a run and of a study alike."""

from collections.abc import Sequence
from itertools import groupby

from tracekit.analysis.layout import ROWS, Lines, wrapped
from tracekit.analysis.report_schema import Gain, Setting
from tracekit.analysis.words import shortened, visible

_NAME = 46


def together(settings: Sequence[Setting]) -> list[list[Setting]]:
    """Those that go together: they have one gain, that of all of them."""
    return [list(group) for _, group in groupby(settings, lambda each: (each.gain, each.basis))]


def settings_lines(settings: Sequence[Setting]) -> Lines:
    """Each with its values, its gain, what that rests on, what it changes in the results, and why."""
    lines: Lines = []
    for group in together(settings):
        changes = "; ".join(f"{each.name}: {_change(each)}" for each in group)
        lines += wrapped(visible(f"{changes}, {_gain(group[0].gain, 'together ' * (len(group) > 1))}"))
        effects = list(dict.fromkeys(each.effect for each in group))
        of_each = ", ".join(f"{each.effect} ({each.name.rpartition('.')[2]})" for each in group)
        effect = of_each if len(effects) > 1 else effects[0]
        lines += wrapped(visible(f"basis: {group[0].basis}; effect on results: {effect}. {whys(group)}"))
    return lines


def whys(group: Sequence[Setting]) -> str:
    """Why, once for all of which it is the same."""
    return ". ".join(dict.fromkeys(each.why for each in group if each.why))


def _gain(gain: Gain, together: str) -> str:
    ends = (gain.low, gain.high) if gain.expected >= 0 else (-gain.high, -gain.low)
    verb = "save" if gain.expected >= 0 else "cost"
    verb += "s" * (not together)
    return f"{together}{verb} {abs(gain.expected):.0%} of a step ({ends[0]:.0%} to {ends[1]:.0%})"


def _change(setting: Setting) -> str:
    plan = setting.recommended
    if not isinstance(plan, dict):
        return f"{plan}, not set before" if setting.current is None else f"{plan} instead of {setting.current}"
    shown = [f"{shortened(layer, _NAME)} = {count}" for layer, count in list(plan.items())[:ROWS]]
    return ", ".join(shown) + (f" and {len(plan) - ROWS} more" if len(plan) > ROWS else "")
