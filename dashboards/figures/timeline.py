"""The timeline: rows of events, or of buckets of events, over time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypedDict

import numpy as np
import pandas as pd

from tracekit.dashboards.figures import text
from tracekit.dashboards.figures.base import AXIS, layout_of
from tracekit.dashboards.figures.colors import COLORS, LABELS

ROW_HEIGHT = 20
_TOP, _BOTTOM = 30, 48
# The width of the drawing on the narrowest screen that it is made for (1280 px), less the names of the rows.
_PIXELS = 900
# The average width of a letter in a bar.
_LETTER = 6.2
_FEWEST = 9
# A bar thinner than this would vanish between pixels; a bucket fainter than this would vanish on the paper.
_THINNEST = 0.7
_FAINTEST = 0.15
# The part of a row that is filled: the rest keeps rows apart.
_FILLED = 0.82


# Plain values as plotly.js takes them: plotly's own classes would check each of thousands of values, which takes longer
# than all the rest.
Trace = dict[str, object]


class PlainFigure(TypedDict):
    """A figure as plotly.js takes it."""

    data: list[Trace]
    layout: dict[str, Any]


@dataclass(frozen=True)
class Row:
    """A row of the timeline. `title` heads a process and has no events; `noun` is what one event is called."""

    label: str
    noun: str = "event"
    title: bool = False


def timeline_figure(marks: pd.DataFrame, rows: Sequence[Row], begin: int, end: int, origin: int) -> PlainFigure:
    """Draw [begin, end) (ns); the axis counts seconds from `origin`.

    marks: row (position in `rows`), start_ns, duration_ns, name, colour (key of COLORS), count, covered_ns,
    name_covered_ns, bucket (whether it stands for several events), bottom and height (the part of the row that it
    fills).
    """
    ticks = [at for at, row in enumerate(rows) if row.label and not row.title]
    titles = [at for at, row in enumerate(rows) if row.title]
    xaxis = {
        "range": [(begin - origin) / 1e9, (end - origin) / 1e9],
        "title": {"text": "time since the start of the run (s)", "standoff": 10},
        "exponentformat": "none",
        "nticks": 8,
    }
    yaxis = {
        "range": [len(rows) - 0.5, -0.5],
        "fixedrange": True,
        "showgrid": False,
        "ticklabelstandoff": 8,
        "tickmode": "array",
        "tickvals": ticks,
        "ticktext": [text.label(rows[at].label, 22) for at in ticks],
    }
    layout = layout_of(ROW_HEIGHT * len(rows) + _TOP + _BOTTOM) | {
        "margin": {"l": 130, "r": 16, "t": _TOP, "b": _BOTTOM},
        "barmode": "overlay",
        "bargap": 0,
        "showlegend": True,
        "xaxis": AXIS | xaxis,
        "yaxis": AXIS | yaxis,
        "shapes": [_line_above(at) for at in titles],
        "annotations": [_title(rows[at].label, at) for at in titles],
    }
    return {"data": event_bars(marks, [row.noun for row in rows], end - begin, origin), "layout": layout}


def _line_above(at: int) -> dict[str, object]:
    return {"type": "line", "xref": "paper", "x0": -0.2, "x1": 1, "y0": at - 0.5, "y1": at - 0.5, "line": {"width": 1}}


def _title(label: str, at: int) -> dict[str, object]:
    words = f"<b>{text.label(label, 100)}</b>"
    return {"text": words, "xref": "paper", "x": 0, "xanchor": "left", "y": at, "yanchor": "middle", "showarrow": False}


def event_bars(marks: pd.DataFrame, nouns: Sequence[str], view: int, origin: int) -> list[Trace]:
    """The marks of a view of so many ns as bars, a trace for each colour. `nouns`: for each row, what an event is
    called."""
    colours = [key for key in COLORS if (marks["colour"] == key).any()]
    return [_bars(marks[marks["colour"] == colour], nouns, colour, view, origin) for colour in colours]


def _bars(marks: pd.DataFrame, nouns: Sequence[str], colour: str, view: int, origin: int) -> Trace:
    duration = marks["duration_ns"].to_numpy()
    pixels = duration / view * _PIXELS
    height = marks["height"].to_numpy()
    # What a bucket covers is shown by its height or by its shade.
    coverage = np.clip(marks["covered_ns"].to_numpy() / np.maximum(duration, 1) / height, _FAINTEST, 1)
    middle = marks["row"].to_numpy() + _FILLED * (0.5 - marks["bottom"].to_numpy() - height / 2)
    bucket = marks["bucket"].to_numpy(dtype=bool)
    return {
        "type": "bar",
        "name": LABELS[colour],
        "orientation": "h",
        "y": middle.tolist(),
        "base": ((marks["start_ns"].to_numpy() - origin) / 1e9).tolist(),
        "x": (np.maximum(duration, view * _THINNEST / _PIXELS) / 1e9).tolist(),
        "width": (_FILLED * height).tolist(),
        "marker": {
            "color": COLORS[colour],
            "opacity": np.where(bucket, coverage, 1.0).round(3).tolist(),
            "line": {"width": np.where(bucket | (pixels < 4), 0.0, 0.6).tolist()},
        },
        "text": [
            "" if is_bucket else _inside(name, int(width / _LETTER))
            for name, width, is_bucket in zip(marks["name"], pixels, bucket, strict=True)
        ],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "constraintext": "none",
        "insidetextfont": {"color": "white", "size": 11},
        "hovertext": [_hover(_Mark(*values), nouns, origin) for values in _values(marks)],
        "hovertemplate": "%{hovertext}<extra></extra>",
    }


def _inside(name: str, letters: int) -> str:
    """A name inside a bar with room for so many letters; nothing where the rest would not tell what it is."""
    return text.label(name, letters) if letters >= min(len(name), _FEWEST) and letters > 2 else ""


@dataclass(frozen=True, slots=True)
class _Mark:
    row: int
    start_ns: int
    duration_ns: int
    name: str
    count: int
    covered_ns: int
    name_covered_ns: int
    bucket: bool


def _values(marks: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    return zip(*(marks[field.name].tolist() for field in fields(_Mark)), strict=True)


def _hover(mark: _Mark, nouns: Sequence[str], origin: int) -> str:
    at = f"at {(mark.start_ns - origin) / 1e9:,.6f} s"
    name = text.label(mark.name, 100)
    if not mark.bucket:
        return f"<b>{name}</b><br>{text.duration(mark.duration_ns)} · {at}"
    covered, most = mark.covered_ns / mark.duration_ns, mark.name_covered_ns / mark.covered_ns
    return (
        f"<b>{text.number(mark.count)} × {nouns[mark.row]}</b> within {text.duration(mark.duration_ns)} {at}<br>"
        f"cover {text.percent(covered)} of it, {text.percent(most)} of that {name}"
    )
