"""Rows as table, CSV and JSON."""

import csv
import io
import json
from decimal import Decimal

import pyarrow as pa
import pytest

from tracekit.cli.rows import WRITERS, as_csv, as_json, as_table
from tracekit.errors import TracekitError

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


@pytest.mark.parametrize("style", WRITERS)
def test_dates_that_python_cannot_hold_are_told(style: str) -> None:
    """As make_timestamp(start_ns), which takes microseconds, or 'infinity'::DATE."""
    for dates in (pa.array([2**60], pa.timestamp("us")), pa.array([2**31 - 1], pa.date32())):
        with pytest.raises(TracekitError, match="the column began: has a date"):
            list(WRITERS[style](pa.table({"began": dates})))


def test_times_in_nanoseconds_are_whole() -> None:
    rows = pa.table({"began": pa.array([1_700_000_000_000_000_001], pa.timestamp("ns"))})
    assert json.loads("".join(as_json(rows))) == [{"began": "2023-11-14 22:13:20.000000001"}]


def test_pieces_join_without_a_seam() -> None:
    many = pa.table({"n": list(range(25_000))})
    assert len(json.loads("".join(as_json(many)))) == 25_000
    assert len("".join(as_csv(many)).splitlines()) == 25_001
