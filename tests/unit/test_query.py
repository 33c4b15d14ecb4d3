"""Rows as table, CSV and JSON."""

import csv
import io
import json
from decimal import Decimal

import pyarrow as pa

from tracekit.cli.rows import as_csv, as_json, as_table

ROWS = pa.table(
    {
        "name": ["=1+1", "@x", "a\nb", 'say "hi", you', None],
        "ns": pa.array([1, -2, 3, 2**62, None], pa.int64()),
        "sum": pa.array([Decimal(2) ** 70, None, None, None, None], pa.decimal128(38, 0)),
        "share": [0.5, float("nan"), None, None, None],
    }
)


def test_csv_is_read_back_and_runs_no_formula() -> None:
    head, *rows = csv.reader(io.StringIO("".join(as_csv(ROWS))))
    assert head == ["name", "ns", "sum", "share"]
    assert [row[0] for row in rows] == ["'=1+1", "'@x", "a\nb", 'say "hi", you', ""]
    assert [row[1] for row in rows] == ["1", "-2", "3", str(2**62), ""]


def test_json_is_one_array_of_objects() -> None:
    rows = json.loads("".join(as_json(ROWS)))
    assert rows[0] == {"name": "=1+1", "ns": 1, "sum": 2**70, "share": 0.5}
    assert rows[1]["share"] is None
    assert rows[3]["ns"] == 2**62
    assert json.loads("".join(as_json(ROWS[:0]))) == []


def test_table_is_one_line_a_row() -> None:
    lines = "".join(as_table(ROWS)).splitlines()
    assert len(lines) == len(ROWS) + 3
    assert lines[-1] == "(5 rows)"
    assert "a\\nb" in lines[4]


def test_pieces_join_without_a_seam() -> None:
    many = pa.table({"n": list(range(25_000))})
    assert len(json.loads("".join(as_json(many)))) == 25_000
    assert len("".join(as_csv(many)).splitlines()) == 25_001
