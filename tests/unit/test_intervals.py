"""Interval algebra against brute force over single nanoseconds."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracekit.analysis.intervals import Intervals, intersect, join, subtract, union

EPOCH = 1_750_000_000_000_000_000  # beyond what a float can tell apart
pairs = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda p: (p[0], p[0] + p[1])), max_size=12)
Pairs = list[tuple[int, int]]


def points(intervals: Pairs) -> set[int]:
    return {point for start, end in intervals for point in range(start, end)}


def made(intervals: Pairs) -> Intervals:
    return union(
        np.array([start + EPOCH for start, _ in intervals], dtype=np.int64),
        np.array([end + EPOCH for _, end in intervals], dtype=np.int64),
    )


def content(intervals: Intervals) -> set[int]:
    return points([(int(a) - EPOCH, int(b) - EPOCH) for a, b in zip(intervals.starts, intervals.ends, strict=True)])


def well_formed(intervals: Intervals) -> bool:
    return bool((intervals.starts < intervals.ends).all() and (intervals.starts[1:] > intervals.ends[:-1]).all())


@given(pairs)
def test_union_covers_every_point_once(a: Pairs) -> None:
    assert content(made(a)) == points(a)
    assert well_formed(made(a))
    assert made(a).total == len(points(a))


@given(pairs, pairs)
def test_set_operations(a: Pairs, b: Pairs) -> None:
    for operation, expected in [
        (join, points(a) | points(b)),
        (subtract, points(a) - points(b)),
        (intersect, points(a) & points(b)),
    ]:
        result = operation(made(a), made(b))
        assert content(result) == expected
        assert well_formed(result)


@given(pairs, pairs)
def test_overlap_with_windows(a: Pairs, windows: Pairs) -> None:
    starts = np.array([start + EPOCH for start, _ in windows], dtype=np.int64)
    ends = np.array([end + EPOCH for _, end in windows], dtype=np.int64)
    expected = [len(points(a) & set(range(start, end))) for start, end in windows]
    assert made(a).overlap(starts, ends).tolist() == expected


def test_touching_intervals_become_one() -> None:
    assert len(made([(0, 5), (5, 9)])) == 1
