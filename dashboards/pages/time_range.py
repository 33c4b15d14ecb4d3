"""The part of a run that is in view, and how buttons and mouse change it."""

import re
from collections.abc import Mapping
from typing import TypedDict

import dash_mantine_components as dmc
from dash import Input
from dash.development.base_component import Component

# Deeper than the clock tells apart.
NARROWEST_NS = 1_000

_EDGE = re.compile(r"xaxis\d*\.range\[([01])\]")
_RANGE = re.compile(r"xaxis\d*\.range")
_RESET = re.compile(r"xaxis\d*\.autorange")

# Buttons: name -> label, what it says, where the new begin and end lie in the present view (0 its begin, 1 its end).
BUTTONS = {
    "earlier": ("←", "earlier", (-0.5, 0.5)),
    "closer": ("+", "zoom in", (0.25, 0.75)),
    "wider": ("−", "zoom out", (-1.5, 2.5)),
    "later": ("→", "later", (0.5, 1.5)),
}


class Range(TypedDict):
    """A part of a run in ns, Unix time. As text: JavaScript has no integers of this size."""

    begin: str
    end: str


def as_range(begin: int, end: int) -> Range:
    return {"begin": str(begin), "end": str(end)}


def after_button(name: str, now: tuple[int, int], whole: tuple[int, int]) -> tuple[int, int]:
    """The view after a button of BUTTONS, or `whole`."""
    if name not in BUTTONS:
        return whole
    left, right = BUTTONS[name][2]
    length = now[1] - now[0]
    return clamped(now[0] + round(left * length), now[0] + round(right * length), whole)


def after_drag(
    change: Mapping[str, object] | None, now: tuple[int, int], whole: tuple[int, int]
) -> tuple[int, int] | None:
    """The view after what plotly reports (`relayoutData`, seconds since the start of the run); None when it is no
    zoom."""
    edges: dict[str, object] = {}
    for key, value in (change or {}).items():
        if (edge := _EDGE.fullmatch(key)) is not None:
            edges[edge[1]] = value
        elif _RANGE.fullmatch(key) and isinstance(value, list) and len(value) == 2:
            edges = {"0": value[0], "1": value[1]}
        elif _RESET.fullmatch(key):
            return whole
    left, right = edges.get("0"), edges.get("1")
    if not isinstance(left, int | float) or not isinstance(right, int | float):
        return None
    return clamped(whole[0] + round(left * 1e9), whole[0] + round(right * 1e9), whole)


def clamped(begin: int, end: int, whole: tuple[int, int]) -> tuple[int, int]:
    """The view moved and cut to lie within the run, and not too narrow."""
    length = min(max(end - begin, NARROWEST_NS), whole[1] - whole[0])
    begin = min(max(begin, whole[0]), whole[1] - length)
    return begin, begin + length


def asked(query: Mapping[str, str], whole: tuple[int, int]) -> tuple[int, int]:
    """The view that a link asks for by `from` and `to` (ns, Unix time); the whole run when it does not."""
    try:
        return clamped(int(query["from"]), int(query["to"]), whole)
    except (KeyError, ValueError):
        return whole


def next_view(
    page: str,
    trigger: object,
    change: Mapping[str, object] | None,
    now: Range | None,
    asking: Mapping[str, object],
    whole: tuple[int, int],
) -> tuple[int, int] | None:
    """The view after what happened on a page; None when it stays as it is. `trigger` is the id of what changed,
    `asking` the page's `{"run": …, "query": …}`."""
    if now is None:
        query = asking["query"]
        return asked(query if isinstance(query, dict) else {}, whole)
    shown = int(now["begin"]), int(now["end"])
    if trigger == page:
        return after_drag(change, shown, whole)
    name = str(trigger).removeprefix(f"{page}-")
    return after_button(name, shown, whole) if name in [*BUTTONS, "whole"] else shown


def buttons(page: str) -> Component:
    """The buttons of a page; their ids are `<page>-<name>`."""
    moves = [
        dmc.Button(label, id=f"{page}-{name}", variant="default", size="xs", px="sm", **{"aria-label": title})
        for name, (label, title, _) in BUTTONS.items()
    ]
    whole = dmc.Button("whole run", id=f"{page}-whole", variant="default", size="xs")
    return dmc.ButtonGroup([*moves, whole])


def clicks(page: str) -> list[Input]:
    """The clicks on the buttons of a page, as inputs of its callback."""
    return [Input(f"{page}-{name}", "n_clicks") for name in [*BUTTONS, "whole"]]
