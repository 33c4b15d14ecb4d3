"""Events summed into time buckets, in levels of coarser and coarser buckets: pure arithmetic over arrays.

A view of a long time shows buckets instead of events: how many events start in each, how much of it they cover, and
which name covers most of it. Counts and covered times are exact sums on every level.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse

Integers = npt.NDArray[np.int64]

# Each level has a quarter of the buckets of the one below: 16,384 at the finest (about ten per pixel of a wide screen,
# so that zooming in stays on the levels until a view holds a small part of the run), 64 at the coarsest.
FACTOR = 4
FINEST = FACTOR**7
COARSEST = FACTOR**3

# Events are cut at the edges of buckets, so many at once: bounds the memory when long events overlap.
_PIECES = 1 << 22


@dataclass(frozen=True)
class Grid:
    """Equal buckets of time: `count` of them, each `width` ns wide, from `begin` on (ns)."""

    begin: int
    width: int
    count: int

    @classmethod
    def over(cls, begin: int, end: int, count: int) -> "Grid":
        """The grid of `count` buckets that covers [begin, end), in whole nanoseconds."""
        return cls(begin, max(1, -(-(end - begin) // count)), count)

    def coarser(self) -> "Grid":
        return Grid(self.begin, self.width * FACTOR, self.count // FACTOR)


@dataclass(frozen=True)
class Events:
    """Events in order of their start: `start` and `duration` in ns, `name` an id."""

    start: Integers
    duration: Integers
    name: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, part: slice | npt.NDArray[np.generic]) -> "Events":
        return Events(self.start[part], self.duration[part], self.name[part])


@dataclass(frozen=True)
class Level:
    """Per bucket of `grid`: events that start in it, ns they cover, and the name that covers most with its ns.

    The covered time of events that overlap is counted for each of them, so it can exceed the bucket. `name` is -1 in
    a bucket that no event covers.
    """

    grid: Grid
    count: Integers
    covered: Integers
    name: npt.NDArray[np.int32]
    name_covered: Integers


class Sums:
    """Adds up events over the buckets of one grid, in as many portions as they come."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._count: Integers = np.zeros(grid.count, dtype=np.int64)
        self._cells = sparse.csr_array((grid.count, 1), dtype=np.int64)

    def add(self, events: Events) -> None:
        """Count events, and the part of them inside the grid. An event that starts outside is not counted."""
        first = (events.start - self._grid.begin) // self._grid.width
        inside = first[(first >= 0) & (first < self._grid.count)]
        self._count += np.bincount(inside, minlength=self._grid.count)
        last = (events.start + events.duration - 1 - self._grid.begin) // self._grid.width
        first, last = np.maximum(first, 0), np.minimum(last, self._grid.count - 1)
        pieces = np.maximum(last - first + 1, 0) * (events.duration > 0)
        portions = np.searchsorted(np.cumsum(pieces), np.arange(_PIECES, pieces.sum(), _PIECES))
        for part in np.split(np.arange(len(events)), np.unique(portions)) if len(portions) else [slice(None)]:
            self._add_pieces(events[part], first[part], pieces[part])

    def _add_pieces(self, events: Events, first: Integers, pieces: Integers) -> None:
        """Cut each event at the edges of the buckets it covers and add the pieces to the cells (bucket, name)."""
        whole = np.repeat(np.arange(len(events)), pieces)
        nth = np.arange(len(whole)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        bucket = first[whole] + nth
        edge = self._grid.begin + bucket * self._grid.width
        start = events.start[whole]
        covered = np.minimum(start + events.duration[whole], edge + self._grid.width) - np.maximum(start, edge)
        names = max(self._cells.shape[1], int(events.name.max(initial=0)) + 1)
        cells = sparse.coo_array((covered, (bucket, events.name[whole])), shape=(self._grid.count, names)).tocsr()
        self._cells.resize(cells.shape)
        self._cells = self._cells + cells

    def levels(self, coarsest: int = COARSEST) -> list[Level]:
        """The levels, from the finest to the one with `coarsest` buckets; one only when the grid is no finer."""
        levels = [_level(self._grid, self._count, self._cells)]
        grid, count, cells = self._grid, self._count, self._cells
        while grid.count > coarsest:
            grid, count = grid.coarser(), count.reshape(-1, FACTOR).sum(axis=1)
            cells = _joined_rows(cells)
            levels.append(_level(grid, count, cells))
        return levels


def _joined_rows(cells: sparse.csr_array) -> sparse.csr_array:
    """Each `FACTOR` neighbouring rows added into one."""
    cells = cells.tocoo()
    shape = (cells.shape[0] // FACTOR, cells.shape[1])
    return sparse.coo_array((cells.data, (cells.row // FACTOR, cells.col)), shape=shape).tocsr()


def _level(grid: Grid, count: Integers, cells: sparse.csr_array) -> Level:
    name = np.full(grid.count, -1, dtype=np.int32)
    name_covered = np.zeros(grid.count, dtype=np.int64)
    lengths = np.diff(cells.indptr)
    filled = np.flatnonzero(lengths)
    if len(filled):
        most = np.maximum.reduceat(cells.data, cells.indptr[filled])
        row = np.repeat(np.arange(len(filled)), lengths[filled])
        # Backwards, so that of equals the first one stays.
        best = np.flatnonzero(cells.data == most[row])[::-1]
        name[filled[row[best]]] = cells.indices[best]
        name_covered[filled] = most
    covered = np.asarray(cells.sum(axis=1), dtype=np.int64)
    return Level(grid, count, covered, name, name_covered)


class Nesting:
    """The depth of each event of one thread: how many earlier ones are still open when it starts.

    Takes the events in portions, in order of start and, where two start together, the longer first.
    """

    def __init__(self) -> None:
        self._open: Integers = np.zeros(0, dtype=np.int64)

    def depths(self, start: Integers, duration: Integers) -> Integers:
        """Depth per event: those before it minus those that ended at or before its start. An event of no length
        counts as 1 ns long: two of them at one instant nest, and neither closes before it has begun."""
        if not len(start):
            return np.zeros(0, dtype=np.int64)
        ends = np.sort(np.concatenate([self._open, start + np.maximum(duration, 1)]))
        depths = len(self._open) + np.arange(len(start)) - np.searchsorted(ends, start, side="right")
        self._open = ends[ends > start[-1]]
        return depths
