"""Sets of time on one axis: sorted, disjoint, half-open intervals of integer nanoseconds; every operation is exact."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]


@dataclass(frozen=True)
class Intervals:
    """The union of [starts[i], ends[i]) over all i; sorted, none empty, none touching the next."""

    starts: Times
    ends: Times

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def total(self) -> int:
        """The length of the set, ns."""
        return int((self.ends - self.starts).sum())

    def before(self, times: Times) -> Times:
        """How much of the set lies before each time, ns."""
        if not len(self):
            return np.zeros(len(times), dtype=np.int64)
        lengths = np.concatenate(([0], np.cumsum(self.ends - self.starts)))
        index = np.searchsorted(self.starts, times, side="right")
        inside = np.maximum(self.ends[np.maximum(index - 1, 0)] - times, 0)
        return lengths[index] - np.where(index > 0, inside, 0)

    def overlap(self, starts: Times, ends: Times) -> Times:
        """How much of the set lies within each window [start, end), ns; the windows may overlap each other."""
        return self.before(np.asarray(ends)) - self.before(np.asarray(starts))


def union(starts: Times, ends: Times) -> Intervals:
    """The set covered by intervals in any order, overlapping or not; empty ones add nothing."""
    starts, ends = np.asarray(starts, dtype=np.int64), np.asarray(ends, dtype=np.int64)
    keep = ends > starts
    starts, ends = starts[keep], ends[keep]
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    first = np.ones(len(starts), dtype=bool)
    first[1:] = starts[1:] > ends[:-1]
    last = np.append(first[1:], True) if len(first) else first
    return Intervals(starts[first], ends[last])


def join(a: Intervals, b: Intervals) -> Intervals:
    """What lies in either set."""
    return union(np.concatenate((a.starts, b.starts)), np.concatenate((a.ends, b.ends)))


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """What lies in `a` but not in `b`."""
    return _combine(a, b, lambda in_a, in_b: in_a & ~in_b)


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """What lies in both sets."""
    return _combine(a, b, lambda in_a, in_b: in_a & in_b)


def _combine(
    a: Intervals, b: Intervals, wanted: Callable[[NDArray[np.bool_], NDArray[np.bool_]], NDArray[np.bool_]]
) -> Intervals:
    """The pieces between neighbouring boundaries of both sets for which `wanted(in a, in b)` holds."""
    cuts = np.unique(np.concatenate((a.starts, a.ends, b.starts, b.ends)))
    pieces = cuts[:-1]
    keep = wanted(_contains(a, pieces), _contains(b, pieces))
    return union(pieces[keep], cuts[1:][keep])


def _contains(a: Intervals, times: Times) -> NDArray[np.bool_]:
    index = np.searchsorted(a.starts, times, side="right")
    ended = np.searchsorted(a.ends, times, side="right")
    return index > ended
