"""Rows as text: a table for eyes, CSV for spreadsheets, JSON for programs. Each yields pieces of the output.

Raises TracekitError for dates that Python cannot hold.
"""

import csv
import io
from collections.abc import Callable, Iterator

import msgspec
import pyarrow as pa

from tracekit.analysis.words import shortened
from tracekit.errors import TracekitError

_CELL = 60  # a wider cell of the table for eyes loses its middle
_PIECE = 10_000  # rows turned into Python objects at a time
# A spreadsheet takes a cell that begins with one of these for a formula; names of layers and files may.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def as_table(table: pa.Table) -> Iterator[str]:
    """Columns side by side, numbers flush right, and how many rows there are."""
    rows = [[_cell(value) for value in row] for row in _rows(table)]
    heads = [shortened(name, _CELL) for name in table.column_names]
    widths = [max([len(head), *(len(row[at]) for row in rows)]) for at, head in enumerate(heads)]
    flush = [str.rjust if _is_number(kind) else str.ljust for kind in table.schema.types]
    for row in [heads, ["-" * width for width in widths], *rows]:
        cells = [put(cell, width) for put, cell, width in zip(flush, row, widths, strict=True)]
        yield "  ".join(cells).rstrip() + "\n"
    yield f"({len(rows)} row{'' if len(rows) == 1 else 's'})\n"


def as_csv(table: pa.Table) -> Iterator[str]:
    """RFC 4180, with a head line. Text that a spreadsheet would run as a formula gets a quote in front."""
    yield _csv_line(table.column_names)
    for row in _rows(table):
        yield _csv_line(row)


def as_json(table: pa.Table) -> Iterator[str]:
    """One array of objects, a line each; what is not known or not a number is null."""
    encoder = msgspec.json.Encoder(decimal_format="number", enc_hook=str)  # times in ns are pandas'
    before = "["
    for row in _rows(table):
        yield before + encoder.encode(dict(zip(table.column_names, row, strict=True))).decode()
        before = ",\n "
    yield "[]\n" if before == "[" else "]\n"


WRITERS: dict[str, Callable[[pa.Table], Iterator[str]]] = {"table": as_table, "csv": as_csv, "json": as_json}


def _rows(table: pa.Table) -> Iterator[tuple[object, ...]]:
    if not table.num_columns:
        return
    for batch in table.to_batches(max_chunksize=_PIECE):
        yield from zip(*map(_values, table.column_names, batch.columns), strict=True)


def _values(name: str, column: pa.Array) -> list[object]:
    try:
        return column.to_pylist()
    except (OverflowError, ValueError) as error:
        raise TracekitError(
            f"the column {shortened(name, _CELL)}: has a date out of the years 1 to 9999; times here are ns, as for"
            " make_timestamp_ns(); any date is shown as text: CAST(... AS VARCHAR)"
        ) from error


def _cell(value: object) -> str:
    return "" if value is None else shortened(str(value), _CELL)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _csv_line(values: "list[str] | tuple[object, ...]") -> str:
    line = io.StringIO()
    csv.writer(line).writerow([_harmless(value) for value in values])
    return line.getvalue()


def _harmless(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
