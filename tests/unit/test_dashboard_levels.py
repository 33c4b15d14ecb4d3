"""The levels of the timeline add up to the events they stand for, exactly, on every level."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.dashboards import levels
from tracekit.dashboards.levels import Events, Grid, Level, Nesting, Sums

BEGIN = 1_750_000_000_000_000_000
EVENT = st.tuples(st.integers(0, 5_000), st.integers(0, 3_000), st.integers(0, 4))


def events_of(rows: list[tuple[int, int, int]]) -> Events:
    rows = sorted(rows, key=lambda row: (row[0], -row[1]))
    start, duration, name = zip(*rows, strict=True) if rows else ((), (), ())
    return Events(
        np.array(start, dtype=np.int64) + BEGIN, np.array(duration, dtype=np.int64), np.array(name, dtype=np.int32)
    )


def brute(rows: list[tuple[int, int, int]], grid: Grid) -> list[tuple[int, dict[int, int]]]:
    """Per bucket the events that start in it and the time that each name covers of it, by looking at every event."""
    found = []
    for bucket in range(grid.count):
        left, right = grid.begin + bucket * grid.width, grid.begin + (bucket + 1) * grid.width
        covered: dict[int, int] = {}
        for start, duration, name in rows:
            piece = min(BEGIN + start + duration, right) - max(BEGIN + start, left)
            if piece > 0:
                covered[name] = covered.get(name, 0) + piece
        found.append((sum(left <= BEGIN + start < right for start, _, _ in rows), covered))
    return found


def check(level: Level, rows: list[tuple[int, int, int]]) -> None:
    for bucket, (count, covered) in enumerate(brute(rows, level.grid)):
        assert level.count[bucket] == count
        assert level.covered[bucket] == sum(covered.values())
        if covered:
            assert covered[int(level.name[bucket])] == level.name_covered[bucket] == max(covered.values())
        else:
            assert level.name[bucket] == -1


@given(st.lists(EVENT, max_size=30), st.integers(0, 30))
def test_every_level_holds_what_the_events_hold(rows: list[tuple[int, int, int]], cut: int) -> None:
    grid = Grid.over(BEGIN, BEGIN + 8_000, 64)
    sums = Sums(grid)
    events = events_of(rows)
    sums.add(events[:cut])
    sums.add(events[cut:])
    made = sums.levels(coarsest=4)
    assert [level.grid.count for level in made] == [64, 16, 4]
    for level in made:
        assert level.count.sum() == len(rows)
        assert level.covered.sum() == sum(duration for _, duration, _ in rows)
        check(level, rows)


@given(st.lists(EVENT, max_size=20), st.integers(0, 6_000), st.integers(1, 4_000), st.integers(1, 50))
def test_a_view_counts_only_what_is_inside(
    rows: list[tuple[int, int, int]], begin: int, length: int, buckets: int
) -> None:
    sums = Sums(Grid.over(BEGIN + begin, BEGIN + begin + length, buckets))
    sums.add(events_of(rows))
    check(sums.levels(buckets)[0], rows)


def test_long_events_are_cut_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(0, 6_400, name) for name in range(4)] + [(100, 6_000, 1), (200, 3, 2)]
    grid = Grid.over(BEGIN, BEGIN + 6_400, 64)
    whole, cut = Sums(grid), Sums(grid)
    whole.add(events_of(rows))
    monkeypatch.setattr(levels, "_PIECES", 70)  # about one long event
    cut.add(events_of(rows))
    for one, other in zip(whole.levels(4), cut.levels(4), strict=True):
        assert one.covered.tolist() == other.covered.tolist()
        assert one.name.tolist() == other.name.tolist()


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=40), st.integers(1, 10))
def test_depth_is_the_number_of_open_events(rows: list[tuple[int, int]], size: int) -> None:
    rows = sorted(rows, key=lambda row: (row[0], -row[1]))
    expected = [
        sum(other + max(length, 1) > start for other, length in rows[:number]) for number, (start, _) in enumerate(rows)
    ]
    nesting = Nesting()
    found: list[int] = []
    for first in range(0, len(rows), size):
        part = np.array(rows[first : first + size], dtype=np.int64)
        found += nesting.depths(part[:, 0], part[:, 1]).tolist()
    assert found == expected
