"""Records become rows: each kind in its table, with all its fields, under its name."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.record.convert import tables
from tracekit.record.spools import _RECORD_TYPE
from tracekit.record.wire import ASYNC_CALL, BACKWARD, BUCKET, CALL, FORWARD, SHARES, UNKNOWN, UNKNOWN_SHARE, Kind
from tracekit.run.schema import TABLES

NAMES = ["zero", "one\n<b>", "two"]
OFFSET = 1_000
# What a record of each kind becomes; the record is (name 1, thread 77, start 10, end 25, a 1, b 2, c 3, d 2, depth 1).
SPAN = {"name": "one\n<b>", "depth": 1, "step": -1, "layer": 1, "direction": ""}
ROWS: dict[Kind, tuple[str, dict[str, object]]] = {
    Kind.STEP: ("spans", {**SPAN, "kind": "step", "step": 1, "layer": -1}),
    Kind.LAYER: ("spans", {**SPAN, "kind": "layer"}),
    Kind.PHASE: ("spans", {**SPAN, "kind": "phase"}),
    Kind.RANGE: ("spans", {**SPAN, "kind": "range"}),
    Kind.GARBAGE: ("spans", {**SPAN, "kind": "garbage"}),
    Kind.BLOCK: ("spans", {**SPAN, "kind": "block", "layer": 1, "step": 2, "depth": 3, "watched": True}),
    Kind.PLAIN_BLOCK: ("spans", {**SPAN, "kind": "plain block", "layer": 1, "step": 2, "depth": 3, "watched": True}),
    Kind.PLANNED: ("spans", {**SPAN, "kind": "planned", "layer": 1, "step": 2, "depth": 3}),
    Kind.PROBE: ("spans", {**SPAN, "kind": "probe"}),
    Kind.SHAPE: ("spans", {**SPAN, "kind": "shape"}),
    Kind.BATCH: ("batches", {"loader": "one\n<b>", "epoch": 1, "index": 2, "worker": 3, "bytes": 2, "taking_ns": 1}),
    Kind.WORKER: ("workers", {"loader": "one\n<b>", "epoch": 1, "worker": 2, "pid": 3, "drawing_ns": 2}),
    Kind.FETCH: (
        "fetches",
        {
            "turn": 1,
            "iteration": 2,
            "cpu_ns": 3,
            "delayed_ns": 2,
            "samples": 1,
            "faults_ns": 0,
            "others_ns": 0,
            "collating_ns": -1,
        },
    ),
    Kind.SAMPLE: ("samples", {"turn": 1, "iteration": 2, "index": 3, "cpu_ns": 2}),
    Kind.READ: ("reads", {"path": "one\n<b>", "offset": 1, "bytes": 2, "cpu_ns": 3}),
    Kind.COLLECTIVE: (
        "collectives",
        {
            "op": "one\n<b>",
            "group": "one\n<b>",
            "sequence": 2,
            "bytes": 3,
            "dtype": "zero",
            "is_async": False,
            "ready_ns": 1_010,
            "start_ns": 1_012,
            "duration_ns": 13,
            "bucket": -1,
            "unsure_ns": 1,
        },
    ),
    Kind.ENTERED: ("reached", {"op": "one\n<b>", "group": "one\n<b>", "sequence": 2, "is_over": False}),
    Kind.CHANGE: ("changes", {"phase": "one\n<b>", "cpu_ns": 1, "delayed_ns": 2}),
}


def records(*rows: tuple[int, ...]) -> np.ndarray:
    """Rows of (name, thread, start, end, a, b, c, d, depth, direction, kind)."""
    return np.array(list(rows), dtype=_RECORD_TYPE)


def record(kind: int, name: int = 1, a: int = 1, b: int = 2, depth: int = 1, direction: int = 0) -> tuple[int, ...]:
    return (name, 77, 10, 25, a, b, 3, 2, depth, direction, kind)


@pytest.mark.parametrize("kind", ROWS)
def test_each_kind_has_its_table(kind: Kind) -> None:
    name, expected = ROWS[kind]

    made = tables(records(record(kind)), NAMES, 5, OFFSET)

    assert list(made) == [name]
    (row,) = made[name].to_pylist()
    common: dict[str, object] = {"process": 5, "thread": 77, "start_ns": 1_010, "duration_ns": 15}
    assert {column: row[column] for column in (*common, *expected)} == {**common, **expected}


def test_every_kind_is_converted_or_named_here() -> None:
    assert set(ROWS) | {Kind.WINDOW} == set(Kind)
    assert tables(records(record(Kind.WINDOW)), NAMES, 0, 0) == {}  # a window's rows come from its trace


def test_rows_have_the_schema_of_their_table() -> None:
    for name, table in tables(records(*(record(kind) for kind in ROWS)), NAMES, 0, OFFSET).items():
        assert table.schema.equals(TABLES[name])
        assert all(column.null_count == 0 for column in table.columns)
        table.validate(full=True)


def test_directions_and_watched_calls() -> None:
    rows = [record(Kind.LAYER, direction=direction, b=b) for direction, b in ((FORWARD, 0), (BACKWARD, 1), (0, 0))]

    spans = tables(records(*rows), NAMES, 0, 0)["spans"]

    assert spans["direction"].to_pylist() == ["forward", "backward", ""]
    assert spans["watched"].to_pylist() == [False, True, False]


def test_lost_name_reads_as_a_question_mark() -> None:
    rows = [record(Kind.LAYER, name=name) for name in (0, 2, 3, 4, 2**32 - 1)]

    assert tables(records(*rows), NAMES, 0, 0)["spans"]["name"].to_pylist() == ["zero", "two", "?", "?", "?"]
    assert tables(records(record(Kind.BATCH)), [], 0, 0)["batches"]["loader"].to_pylist() == ["?"]
    (row,) = tables(records(record(Kind.COLLECTIVE, a=-1)), NAMES, 0, 0)["collectives"].to_pylist()
    assert row["group"] == "?"


def test_same_name_twice_and_names_of_other_tables() -> None:
    """Two ids can stand for one text: of names that differ in what is no text only."""
    spans = tables(records(*(record(Kind.LAYER, name=name) for name in (0, 1, 2))), ["a", "a", "?"], 0, 0)["spans"]

    assert spans["name"].to_pylist() == ["a", "a", "?"]


def test_record_of_an_unknown_kind_is_passed_over() -> None:
    made = tables(records(record(99), record(Kind.LAYER), record(2**16 - 1)), NAMES, 0, 0)

    assert {name: table.num_rows for name, table in made.items()} == {"spans": 1}


@given(
    st.lists(st.tuples(st.sampled_from([int(kind) for kind in Kind]), st.integers(0, 4)), max_size=30),
    st.integers(-(2**40), 2**40),
)
def test_every_record_makes_one_row(rows: list[tuple[int, int]], offset: int) -> None:
    made = tables(records(*(record(kind, name=name) for kind, name in rows)), NAMES, 3, offset)

    expected = sum(kind != Kind.WINDOW for kind, _ in rows)
    assert sum(table.num_rows for table in made.values()) == expected
    for name, table in made.items():  # a collective begins after what `d` says
        begun = 12 if name == "collectives" else 10
        assert set(table["start_ns"].to_pylist()) == {begun + offset}


@given(st.integers(0, 1 << 45), st.integers(-1, SHARES), st.integers(0, UNKNOWN))
def test_putting_samples_together_is_told_as_a_share_of_making(took: int, share: int, iteration: int) -> None:
    fetched = np.zeros(1, dtype=_RECORD_TYPE)
    fetched["kind"], fetched["end"], fetched["b"] = Kind.FETCH, took, iteration | (share + 1) << 32
    (made,) = tables(fetched, [""], 0, 0)["fetches"].to_pylist()
    assert made["iteration"] == iteration
    assert made["collating_ns"] == (-1 if share < 0 else pytest.approx(took * share / SHARES, abs=1))


def test_page_faults_and_other_threads_are_told_as_shares_of_the_cpu_time() -> None:
    fetched = np.zeros(3, dtype=_RECORD_TYPE)
    fetched["kind"], fetched["c"] = Kind.FETCH, 8_000
    fetched["direction"], fetched["name"] = [0, SHARES // 4, UNKNOWN_SHARE], [3 * SHARES, 0, UNKNOWN]
    made = tables(fetched, [""], 0, 0)["fetches"]
    assert made["faults_ns"].to_pylist() == [0, 2_000, -1] and made["others_ns"].to_pylist() == [24_000, 0, -1]


def test_the_buckets_of_a_backward_pass_have_a_number_and_calls_none() -> None:
    rows = [record(Kind.COLLECTIVE, direction=how) for how in (CALL, ASYNC_CALL, BUCKET, BUCKET + 7)]
    made = tables(records(*rows), NAMES, 0, 0)["collectives"]
    assert made["bucket"].to_pylist() == [-1, -1, 0, 7]
    assert made["is_async"].to_pylist() == [False, True, True, True]


def test_rows_carry_only_the_words_that_they_have() -> None:
    records = np.zeros(3, dtype=_RECORD_TYPE)
    records["kind"], records["name"] = Kind.BATCH, [2, 0, 2]
    words = [f"name {number}" for number in range(1000)]
    (column,) = tables(records, words, 0, 0)["batches"]["loader"].chunks
    assert column.dictionary.to_pylist() == ["name 0", "name 2"]
    assert column.to_pylist() == ["name 2", "name 0", "name 2"]
