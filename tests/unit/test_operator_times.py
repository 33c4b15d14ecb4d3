"""Operators of a run: calls, totals and self times, against a reference that looks at every instant."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import BEGIN_NS, Tape, make_run

from tracekit.analysis import operators
from tracekit.analysis.nesting import self_times
from tracekit.analysis.operators import operator_counts, operator_times, windows
from tracekit.run.reader import Run, open_run

Interval = tuple[int, int]


def reference(intervals: list[Interval]) -> list[int]:
    """Self times by definition: between two boundaries the latest begun event that is open owns the time."""
    own = [0] * len(intervals)
    boundaries = sorted({time for interval in intervals for time in interval})
    for left, right in pairwise(boundaries):
        owners = [index for index, (start, end) in enumerate(intervals) if start <= left and right <= end]
        if owners:
            own[owners[-1]] += right - left
    return own


def callers_first(intervals: list[Interval]) -> list[Interval]:
    return sorted(intervals, key=lambda interval: (interval[0], -interval[1]))


def own_times(intervals: list[Interval]) -> list[int]:
    starts, ends = np.array(intervals, dtype=np.int64).reshape(-1, 2).T
    return self_times(starts, ends).tolist()


@pytest.mark.parametrize(
    ("intervals", "expected"),
    [
        ([], []),
        ([(0, 10)], [10]),
        ([(0, 10), (2, 5), (5, 9)], [3, 3, 4]),
        ([(0, 10), (1, 9), (2, 8), (3, 7)], [2, 2, 2, 4]),  # recursion
        ([(0, 10), (0, 10), (0, 4)], [0, 6, 4]),  # equal starts: the longer calls the shorter
        ([(0, 10), (10, 20), (20, 20), (20, 30)], [10, 10, 0, 10]),  # touching is not nesting
        ([(0, 10), (4, 11)], [4, 7]),  # outlasts its caller by the rounding of a nanosecond
        ([(0, 10), (9, 20), (19, 30)], [9, 10, 11]),
        ([(0, 9), (1, 4), (2, 6), (3, 5), (7, 8)], [3, 1, 2, 2, 1]),
    ],
)
def test_self_times(intervals: list[Interval], expected: list[int]) -> None:
    assert own_times(intervals) == expected


INTERVALS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 20)).map(lambda it: (it[0], it[0] + it[1])), max_size=40
)


@given(INTERVALS.map(callers_first))
def test_self_times_of_any_intervals_are_those_of_the_reference(intervals: list[Interval]) -> None:
    assert own_times(intervals) == reference(intervals)


@given(st.recursive(st.integers(0, 3), lambda inner: st.lists(inner, max_size=4), max_leaves=60))
def test_self_times_of_a_call_tree_are_durations_less_those_of_the_called(tree: object) -> None:
    intervals: list[Interval] = []
    expected: list[int] = []

    def call(node: object, start: int) -> int:
        """Lay a node out from `start`: one ns of its own, then what it calls one ns apart; a number is a leaf."""
        place = len(intervals)
        intervals.append((start, start))
        expected.append(0)
        end, own = start + 1, 1
        for child in node if isinstance(node, list) else []:
            end, own = call(child, end) + 1, own + 1
        if isinstance(node, int):
            end, own = end + node, own + node
        intervals[place], expected[place] = (start, end), own
        return end

    call(tree, 0)

    assert own_times(intervals) == expected


def make(tmp_path: Path, rows: list[dict[str, object]]) -> Run:
    """A run with these operators; what a row does not give is that of an operator on the CPU."""
    usual = {"process": 0, "thread": 1, "category": "cpu_op", "name": "op", "window": 0}
    frame = pd.DataFrame([usual | row for row in rows])
    return open_run(make_run(tmp_path / "run", [Tape()], tables={"operators": frame}))


def at(start: int, duration: int, name: str = "op", **columns: object) -> dict[str, object]:
    return {"start_ns": BEGIN_NS + start, "duration_ns": duration, "name": name} | columns


def times(frame: pd.DataFrame) -> dict[str, tuple[int, int, int]]:
    return {
        row.name_: (row.calls, row.total_ns, row.self_ns)
        for row in frame.rename(columns={"name": "name_"}).itertuples()
    }


def test_operators_that_call_each_other(tmp_path: Path) -> None:
    tape = Tape()
    for _ in range(3):
        with tape.operator_around("step", category="user_annotation"):
            with tape.operator_around("aten::lstm"):
                tape.gap(1)
                tape.operator("aten::mm", 4)
                with tape.operator_around("aten::lstm"):
                    tape.operator("aten::mm", 2)
                    tape.gap(1)
            tape.operator("aten::add", 0.5)
        tape.gap(1)
    run = open_run(make_run(tmp_path / "run", [tape]))

    frame = operator_times(run)

    assert frame.columns.tolist() == ["side", "category", "name", "calls", "total_ns", "self_ns", "share"]
    assert frame["name"].tolist() == ["aten::mm", "aten::lstm", "aten::add", "step"]
    assert times(frame) == {
        "aten::mm": (6, 18_000_000, 18_000_000),
        "aten::lstm": (6, 33_000_000, 6_000_000),
        "aten::add": (3, 1_500_000, 1_500_000),
        "step": (3, 25_500_000, 0),
    }
    assert frame["share"].tolist() == pytest.approx([18 / 25.5, 6 / 25.5, 1.5 / 25.5, 0])
    assert frame.dtypes[["calls", "total_ns", "self_ns", "share"]].tolist() == ["int64", "int64", "int64", "float64"]


def test_threads_processes_and_windows_do_not_nest_in_each_other(tmp_path: Path) -> None:
    run = make(
        tmp_path,
        [
            at(0, 100, "caller"),
            at(10, 20, "called"),
            at(10, 20, "other thread", thread=2),
            at(10, 20, "other process", process=1),
            at(10, 20, "other window", window=1),
        ],
    )

    assert times(operator_times(run)) == {
        "caller": (1, 100, 80),
        "called": (1, 20, 20),
        "other thread": (1, 20, 20),
        "other process": (1, 20, 20),
        "other window": (1, 20, 20),
    }
    assert times(operator_times(run, process=1)) == {"other process": (1, 20, 20)}


def test_the_work_of_a_device_nests_neither_in_the_cpu_nor_in_what_speaks_of_it(tmp_path: Path) -> None:
    gpu = {"device": 0, "stream": 7, "thread": 7}
    run = make(
        tmp_path,
        [
            at(0, 100, "aten::mm", thread=7),
            at(5, 10, "cudaLaunchKernel", thread=7, category="cuda_runtime"),
            at(20, 40, "gemm", category="kernel", **gpu),
            at(70, 20, "Memcpy", category="gpu_memcpy", **gpu),
            at(20, 80, "forward", category="gpu_user_annotation", **gpu),
            at(30, 70, "Stream Sync", category="cuda_sync", **gpu),
            at(25, 30, "gemm", category="kernel", **gpu | {"device": 1}),
            at(25, 30, "gemm", category="kernel", **gpu | {"stream": 8}),
        ],
    )

    frame = operator_times(run)

    assert times(frame) == {
        "aten::mm": (1, 100, 90),
        "cudaLaunchKernel": (1, 10, 10),
        "gemm": (3, 100, 100),
        "Memcpy": (1, 20, 20),
        "forward": (1, 80, 80),
        "Stream Sync": (1, 70, 70),
    }
    assert frame.set_index("name")["share"].to_dict() == pytest.approx(
        {
            "aten::mm": 0.9,
            "cudaLaunchKernel": 0.1,
            "gemm": 100 / 120,
            "Memcpy": 20 / 120,
            "forward": 1,
            "Stream Sync": 1,
        }
    )


def test_what_the_profiler_did_is_nobody_s_own_time_nor_a_part_of_the_program(tmp_path: Path) -> None:
    run = make(
        tmp_path,
        [
            at(0, 100, "aten::mm"),
            at(10, 60, "Activity Buffer Request", category="overhead"),
            at(80, 10, "Lazy Function Loading", category="overhead"),
        ],
    )

    frame = operator_times(run)

    assert times(frame) == {
        "aten::mm": (1, 100, 30),
        "Activity Buffer Request": (1, 60, 60),
        "Lazy Function Loading": (1, 10, 10),
    }
    named = frame.set_index("name")
    assert named["side"].to_dict() == {
        "aten::mm": "cpu", "Lazy Function Loading": "cpu", "Activity Buffer Request": "profiler"
    }  # fmt: skip
    assert named["share"].to_dict() == pytest.approx(
        {"aten::mm": 0.75, "Lazy Function Loading": 0.25, "Activity Buffer Request": 1}
    )


def test_of_events_over_the_same_time_the_annotation_calls_the_operator_and_that_the_runtime(tmp_path: Path) -> None:
    same = [("cudaLaunchKernel", "cuda_runtime"), ("aten::mm", "cpu_op"), ("step", "user_annotation")]
    run = make(tmp_path, [at(0, 50, name, category=category) for name, category in same])

    assert times(operator_times(run)) == {"cudaLaunchKernel": (1, 50, 50), "aten::mm": (1, 50, 0), "step": (1, 50, 0)}


@pytest.mark.parametrize("chunk", [2, 9])
def test_reading_in_chunks_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    rng = np.random.default_rng(chunk)
    starts, lengths, threads = rng.permutation(60)[:40], rng.integers(0, 40, 40), rng.integers(1, 3, 40)
    rows = [at(starts[number], lengths[number], f"op{number}", thread=threads[number]) for number in range(40)]
    run = make(tmp_path, rows)
    expected: dict[str, int] = {}
    for thread in (1, 2):
        numbers = sorted(np.flatnonzero(threads == thread), key=lambda number: starts[number])
        own = reference([(starts[number], starts[number] + lengths[number]) for number in numbers])
        expected |= {f"op{number}": each for number, each in zip(numbers, own, strict=True)}

    whole = operator_times(run)
    monkeypatch.setattr(operators, "_CHUNK", chunk)

    assert whole.set_index("name")["self_ns"].to_dict() == expected
    pd.testing.assert_frame_equal(operator_times(run), whole)


def test_hostile_names_stay_apart(tmp_path: Path) -> None:
    names = ["a", "a\n", "'; DROP TABLE operators; --", "<script>", "%s", '"']
    run = make(tmp_path, [at(10 * place, 5 + place, name) for place, name in enumerate(names)])

    assert times(operator_times(run)) == {name: (1, 5 + place, 5 + place) for place, name in enumerate(names)}


def test_a_run_without_operators_gives_empty_frames(tmp_path: Path) -> None:
    run = open_run(make_run(tmp_path / "run", [Tape()]))

    assert operator_times(run).columns.tolist() == ["side", "category", "name", "calls", "total_ns", "self_ns", "share"]
    assert len(operator_times(run)) == len(operator_counts(run)) == len(windows(run)) == 0


def test_counts_and_windows(tmp_path: Path) -> None:
    run = make(
        tmp_path,
        [
            at(100, 50, "a"),
            at(120, 100, "b"),
            at(500, 10, "a", window=1),
            at(90, 5, "a", process=1),
        ],
    )

    assert operator_counts(run).to_numpy().tolist() == [["cpu_op", "a", 3], ["cpu_op", "b", 1]]
    assert operator_counts(run, process=1).to_numpy().tolist() == [["cpu_op", "a", 1]]
    assert windows(run).to_numpy().tolist() == [
        [0, 0, BEGIN_NS + 100, 120, 2],
        [0, 1, BEGIN_NS + 500, 10, 1],
        [1, 0, BEGIN_NS + 90, 5, 1],
    ]
    assert windows(run).columns.tolist() == ["process", "window", "start_ns", "duration_ns", "events"]
