"""From frames to what a table in the browser takes."""

from collections.abc import Sequence

import pandas as pd

from tracekit.dashboards.figures import text
from tracekit.dashboards.pages.page import Cell


def as_rows(frame: pd.DataFrame, columns: Sequence[str]) -> list[dict[str, Cell]]:
    """The rows of a frame as plain values: what is not known is None, names are on one line."""
    fields = {column: [_plain(value) for value in frame[column].tolist()] for column in columns}
    return [dict(zip(fields, values, strict=True)) for values in zip(*fields.values(), strict=True)]


def _plain(value: object) -> Cell:
    if isinstance(value, str):
        return text.one_line(value, 200)
    if isinstance(value, bool | int):
        return value
    return value if isinstance(value, float) and value == value and abs(value) != float("inf") else None
