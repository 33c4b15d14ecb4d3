"""The timeline's index of a run: its events lane by lane in files, and their sums in levels; answers any view of it.

A lane is a row of the timeline: one kind of event on one thread of one process, at one depth of nesting. Only phases,
which exclude each other, have a lane each that share a row. The files hold 20 bytes per event and live as long as the
server, in a directory of its own: a run may be read-only.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.analysis.phases import PHASES
from tracekit.analysis.steps import Steps
from tracekit.dashboards.levels import FINEST, Events, Grid, Integers, Level, Nesting, Sums
from tracekit.dashboards.sources import KINDS, Names, Portion, read_portions
from tracekit.run.reader import Run

# What a browser draws without a pause. All lanes of a view share it.
MARKS = 5_000
# More than a mark per pixel shows nothing more.
_MARKS_PER_ROW = 1_000
# Steps and phases are what the eye goes by: they get so many times the marks of another row.
_WEIGHTS = {"step": 4, "phase": 8}
# A level is fine enough for a view when it has at least this part of the buckets that the view could show.
_FINE_ENOUGH = 1 / 4

# A view sums up so many events of a lane by itself, in about a millisecond; lanes with more have levels, which take
# half a megabyte of memory each.
FEW = 10_000
# Events summed up at once when levels are made.
_AT_ONCE = 1 << 20
# Deeper calls share the last lane: a broken or hostile trace must not make thousands of lanes.
_DEEPEST = 63

_COLUMNS = {"start": np.int64, "duration": np.int64, "name": np.int32}


@dataclass(frozen=True, order=True)
class LaneKey:
    """Where a lane belongs; ordered as the lanes are drawn."""

    process: int
    kind: int  # position in KINDS
    thread: int
    depth: int  # of a phase, its position in PHASES

    @property
    def row(self) -> tuple[int, int, int, int]:
        """What lanes have in common that share a row of the timeline."""
        return self.process, self.kind, self.thread, 0 if KINDS[self.kind] == "phase" else self.depth


@dataclass
class Lane:
    """A lane: its events in files, its levels in memory. `longest` is its longest event in ns."""

    key: LaneKey
    stem: Path
    count: int = 0
    longest: int = 0
    levels: list[Level] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return KINDS[self.key.kind]

    def append(self, events: Events) -> None:
        for column in _COLUMNS:
            with open(f"{self.stem}.{column}", "ab") as file:
                getattr(events, column).tofile(file)
        self.count += len(events)
        self.longest = max(self.longest, int(events.duration.max(initial=0)))

    def sum_up(self, grid: Grid) -> None:
        """Make the levels, where the lane has so many events that a view could not sum them up itself."""
        if self.count > FEW:
            sums, events = Sums(grid), self.events()
            for first in range(0, self.count, _AT_ONCE):
                sums.add(events[first : first + _AT_ONCE])
            self.levels = sums.levels()

    def events(self) -> Events:
        """All events of the lane, mapped from its files: only what is looked at is read."""
        columns = (np.memmap(f"{self.stem}.{name}", dtype=kind, mode="r") for name, kind in _COLUMNS.items())
        return Events(*columns)

    def between(self, begin: int, end: int) -> tuple[int, Events]:
        """The events that touch [begin, end), and the position of the first of them in the lane. Where events of
        different lengths overlap there may be a few before `begin` among them."""
        events = self.events()
        first, last = np.searchsorted(events.start, [begin - self.longest, end])
        part = events[int(first) : int(last)]
        # Leading events that ended before the view; those after the first that reaches into it stay.
        reaching = part.start + part.duration > begin
        skipped = int(np.argmax(reaching)) if reaching.any() else len(part)
        return int(first) + skipped, part[skipped:]


class Index:
    """What is drawn of a run. `begin` and `end` (ns) hold all of its events; `names` the (text, colour) of each id;
    `complete` is False for an outline."""

    def __init__(
        self, begin: int, end: int, lanes: list[Lane], names: list[tuple[str, str]], complete: bool = True
    ) -> None:
        self.begin, self.end = begin, end
        self.complete = complete
        self.lanes = lanes
        self.names = names

    @property
    def events(self) -> int:
        return sum(lane.count for lane in self.lanes)

    def view(self, begin: int, end: int, lanes: Sequence[int], marks: int = MARKS) -> pd.DataFrame:
        """What to draw of [begin, end) in some lanes (positions in `lanes`): at most `marks` rows of data, and no more
        than pixels for one row of the timeline. A row with few events in view shows them, another its buckets.

        Columns: lane (position in `lanes`), start_ns, duration_ns, name (id), count (events that start in it),
        covered_ns, name_covered_ns, position (of an event in its lane, -1 for a bucket).
        """
        rows: dict[tuple[int, ...], list[_Seen]] = {}
        for lane in lanes:
            rows.setdefault(self.lanes[lane].key.row, []).append(_Seen(lane, *self.lanes[lane].between(begin, end)))
        frames = []
        left, weights = marks, sum(self._weight(row) for row in rows.values())
        for row in sorted(rows.values(), key=lambda row: _events_in(row) / self._weight(row)):
            share = min(left * self._weight(row) // weights, _MARKS_PER_ROW)
            weights -= self._weight(row)
            whole = _events_in(row) <= share
            for seen in row:
                frame = _as_events(seen) if whole else self._buckets(seen, begin, end, share // len(row))
                left -= len(frame)
                frames.append(frame.assign(lane=seen.lane))
        return pd.concat(frames, ignore_index=True) if frames else _as_events(_Seen(0, 0, _NOTHING)).assign(lane=0)

    def _weight(self, row: Sequence["_Seen"]) -> int:
        return _WEIGHTS.get(self.lanes[row[0].lane].kind, 1)

    def _buckets(self, seen: "_Seen", begin: int, end: int, share: int) -> pd.DataFrame:
        """The finest level with at most `share` buckets in view; sums made now where even the finest is too coarse."""
        levels = self.lanes[seen.lane].levels
        if not levels or (end - begin) / levels[0].grid.width < share * _FINE_ENOUGH:
            sums = Sums(Grid.over(begin, end, max(share, 1)))
            sums.add(seen.events)
            return _as_buckets(sums.levels(share)[0], begin, end)
        fitting = [level for level in levels if (end - begin) // level.grid.width + 2 <= share]
        return _as_buckets((fitting or levels[-1:])[0], begin, end).head(share)


@dataclass(frozen=True)
class _Seen:
    """The events of a lane in view, and the position of the first of them in the lane."""

    lane: int
    position: int
    events: Events


_NOTHING = Events(*(np.zeros(0, dtype=kind) for kind in _COLUMNS.values()))


def _events_in(row: Sequence[_Seen]) -> int:
    return sum(len(seen.events) for seen in row)


def _as_events(seen: _Seen) -> pd.DataFrame:
    events = seen.events
    return pd.DataFrame(
        {
            "start_ns": events.start,
            "duration_ns": events.duration,
            "name": events.name,
            "count": 1,
            "covered_ns": events.duration,
            "name_covered_ns": events.duration,
            "position": np.arange(seen.position, seen.position + len(events)),
        }
    )


def _as_buckets(level: Level, begin: int, end: int) -> pd.DataFrame:
    """The buckets of a level that touch [begin, end) and hold something."""
    grid = level.grid
    first, last = max((begin - grid.begin) // grid.width, 0), -(-(end - grid.begin) // grid.width)
    part = slice(first, max(min(last, grid.count), first))
    frame = pd.DataFrame(
        {
            "start_ns": grid.begin + grid.width * np.arange(part.start, part.stop),
            "duration_ns": grid.width,
            "name": level.name[part],
            "count": level.count[part],
            "covered_ns": level.covered[part],
            "name_covered_ns": level.name_covered[part],
            "position": -1,
        }
    )
    return frame[frame["covered_ns"] > 0]


def build_index(run: Run, steps: Steps, extent: tuple[int, int], folder: Path, kinds: Sequence[str] = KINDS) -> Index:
    """Index a run into an empty folder. `extent` is the time that holds all of it, see `extent_of`; `kinds` are those
    of KINDS that are wanted."""
    begin, end = extent
    grid = Grid.over(begin, end, FINEST)
    names = Names()
    lanes: dict[LaneKey, Lane] = {}
    nesting: dict[tuple[int, str, int], Nesting] = {}
    for portion in _ahead(read_portions(run, steps, names, kinds)):
        for key, events in _by_lane(portion, names, nesting):
            if key not in lanes:
                lanes[key] = Lane(key, folder / str(len(lanes)))
            lanes[key].append(events)
    for lane in lanes.values():
        lane.sum_up(grid)
    return Index(begin, end, [lanes[key] for key in sorted(lanes)], names.pairs, set(KINDS) == set(kinds))


def _ahead(portions: Iterator[Portion]) -> Iterator[Portion]:
    """The same portions, the next one being read while the caller works on this one."""
    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(next, portions, None)
        while (portion := coming.result()) is not None:
            coming = reader.submit(next, portions, None)
            yield portion


def extent_of(run: Run, steps: Steps) -> tuple[int, int]:
    """The time from the first to the last thing that is drawn, ns; one second where there is nothing."""
    tables = ("spans", "operators", "batches", "collectives", "counters")
    parts = " UNION ALL ".join(f"SELECT start_ns, start_ns + duration_ns AS end_ns FROM {table}" for table in tables)
    row = run.sql(f"SELECT min(start_ns) AS first, max(end_ns) AS last FROM ({parts})").iloc[0]
    if pd.isna(row["first"]):
        begin = run.manifest.started_ns
        return begin, begin + 1_000_000_000
    first, last = int(row["first"]), int(row["last"])
    if len(steps.frame):
        first = min(first, int(steps.frame["start_ns"].min()))
    return first, max(last, first + 1)


def _by_lane(
    portion: Portion, names: Names, nesting: dict[tuple[int, str, int], Nesting]
) -> list[tuple[LaneKey, Events]]:
    """A portion split by thread and depth; `nesting` carries what is still open from one portion to the next."""
    found = []
    for thread in np.unique(portion.thread).tolist():
        events = portion.events[portion.thread == thread]
        if portion.kind == "phase":
            depths = _order_of_phases(names)[events.name]
        else:
            tracker = nesting.setdefault((portion.process, portion.kind, thread), Nesting())
            depths = np.minimum(tracker.depths(events.start, events.duration), _DEEPEST)
        for depth, part in _by_value(depths):
            found.append((LaneKey(portion.process, KINDS.index(portion.kind), thread, depth), events[part]))
    return found


def _order_of_phases(names: Names) -> Integers:
    """For each name its position in PHASES, 0 for what is none."""
    return np.array([PHASES.index(name) if name in PHASES else 0 for name, _ in names.pairs], dtype=np.int64)


def _by_value(values: Integers) -> list[tuple[int, npt.NDArray[np.intp]]]:
    """For each value the positions that hold it, in their order. Depths fit 8 bits, which NumPy sorts by counting."""
    order = np.argsort(values.astype(np.uint8), kind="stable")
    counts = np.bincount(values)
    edges = np.concatenate([[0], np.cumsum(counts)])
    return [(int(value), order[edges[value] : edges[value + 1]]) for value in np.flatnonzero(counts)]
