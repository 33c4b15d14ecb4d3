"""Lines of a text report: tables, wrapped text, amounts; at most 100 columns wide but for a command to type."""

import textwrap
from collections.abc import Iterable, Sequence

WIDTH = 100
ROWS = 12  # of a ranking; the JSON and the dashboard have more

Lines = list[str]


def wrapped(text: str) -> Lines:
    # Not at hyphens: commands and paths are there to be copied.
    return textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Lines:
    """Columns as wide as their widest cell, the first flush left and the others flush right."""
    whole = [head, *rows]
    widths = [max(len(row[column]) for row in whole) for column in range(len(head))]
    flush = [str.ljust, *[str.rjust] * (len(head) - 1)]
    cells = [[put(cell, width) for put, cell, width in zip(flush, row, widths, strict=True)] for row in whole]
    return ["  " + "  ".join(row) for row in cells]


def more(count: int) -> Lines:
    return [f"  … and {count - ROWS} more"] if count > ROWS else []


def ms(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f} ms" if value < 10 else f"{value:,.1f} ms"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
