"""Who owns the time of events that call each other on one thread: the latest begun that has not ended."""

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]
Indices = NDArray[np.int64]


def self_times(starts: Times, ends: Times) -> Times:
    """Each event's own time, ns: its duration less the time in which an event begun after it is open.

    The events are those of one thread, callers before what they call: sorted by start, of equal starts the longer
    first. At every instant exactly the latest begun of the open events owns the time, so the own times always add up
    to the union of all events, also where rounding lets one outlast its caller. Takes O(n log n) steps of NumPy.
    """
    own = np.zeros(len(starts), dtype=np.int64)
    ends = _cut_where_outlasted(starts, ends)
    lasting = np.flatnonzero(ends > starts)
    own[lasting] = _own_times(starts[lasting], ends[lasting])
    return own


def _cut_where_outlasted(starts: Times, ends: Times) -> Times:
    """Ends such that events lie within or outside each other. An event that a later begun one outlasts owns nothing
    from where that one begins, so it may as well end there.
    """
    # An event that is over before the next begins is outlasted by none.
    callers = np.flatnonzero(starts[1:] < ends[:-1])
    outlasting = _next_greater(ends, callers)
    known = outlasting < len(ends)
    callers, outlasting = callers[known], outlasting[known]
    cut = ends.copy()
    cut[callers] = np.minimum(ends[callers], starts[outlasting])
    return cut


def _own_times(starts: Times, ends: Times) -> Times:
    """Own times of events that last, each within or outside any other."""
    count = len(starts)
    index = np.arange(count)
    durations = ends - starts
    # How many began before, less how many of those have ended.
    depth = index - np.searchsorted(np.sort(ends), starts, side="right")
    by_depth = np.argsort(depth, kind="stable")
    place = depth[by_depth] * count + by_depth
    called = by_depth[np.searchsorted(place, count) :]
    # The caller is the last event before it that is one less deep.
    caller = by_depth[np.searchsorted(place, place[count - len(called) :] - count) - 1]
    np.subtract.at(durations, caller, (ends - starts)[called])
    return durations


def _next_greater(values: Times, asking: Indices) -> Indices:
    """For each index asked for, the first later index with a greater value; len(values) where there is none.

    Climbs a pyramid of maxima until a block to the right holds a greater value, and then down to its first one.
    """
    levels = [_paired(values)]
    while len(levels[-1]) > 2:
        levels.append(_paired(np.maximum(levels[-1][0::2], levels[-1][1::2])))
    found = np.full(len(asking), len(values), dtype=np.int64)

    arrivals: list[tuple[Indices, Indices]] = []
    query, node = np.arange(len(asking)), asking
    for maxima in levels:
        right = node | 1
        arrived = (right > node) & (maxima[right] > values[asking[query]])
        arrivals.append((query[arrived], right[arrived]))
        query, node = query[~arrived], node[~arrived] >> 1

    query, node = arrivals[-1]
    for (more_queries, more_nodes), maxima in zip(reversed(arrivals[:-1]), reversed(levels[:-1]), strict=True):
        left = node * 2
        node = np.where(maxima[left] > values[asking[query]], left, left + 1)
        query, node = np.concatenate((query, more_queries)), np.concatenate((node, more_nodes))
    found[query] = node
    return found


def _paired(values: Times) -> Times:
    """The values, with one that is never greater where their number is odd."""
    if len(values) % 2 == 0:
        return values
    return np.append(values, np.iinfo(np.int64).min)
