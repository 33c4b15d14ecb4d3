"""Operators: how often each was called, and how much of the time was its own, in the windows of the profiler."""

import math
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd
import pyarrow as pa

from tracekit.analysis.devices import OF_PROFILER, WORK
from tracekit.analysis.nesting import Times, self_times
from tracekit.run.reader import Run
from tracekit.traces.kineto_columns import DEVICE_CATEGORIES

# Events in memory at once; with what is derived from them about 0.5 GB.
_CHUNK = 2_000_000
# The last chunk of a process ends when all its events have.
_FOREVER = 2**63 - 1

_DEVICE = ", ".join(f"'{category}'" for category in sorted(DEVICE_CATEGORIES))
# A device runs beside the threads of the CPU, and the annotations and waits on it beside its work: each side has lanes
# of its own, its threads or streams, on which events call each other. Of events over the same time an annotation calls
# an operator, and that calls the runtime.
_EVENTS = f"""
    WITH events AS (
        SELECT process, coalesce("window", 0) AS "window", coalesce(device, -1) AS device, start_ns,
               coalesce(stream, -1) AS stream, coalesce(thread, -1) AS thread, coalesce(category, '') AS category,
               coalesce(name, '') AS name, greatest(duration_ns, 0) AS duration_ns,
               CASE WHEN category IN {WORK} THEN 'device'
                    WHEN category IN ({_DEVICE}) OR starts_with(category, 'gpu_') THEN category
                    ELSE 'cpu' END AS side,
               CASE WHEN category IN ('user_annotation', 'gpu_user_annotation') THEN 0
                    WHEN category = 'cpu_op' THEN 1
                    ELSE 2 END AS rank
        FROM operators
    )
"""
# What the profiler did on a thread is nobody's own time there, nor a part of what the program did.
_SHARED_BY = f"CASE WHEN category = 'overhead' AND name IN {OF_PROFILER} THEN 'profiler' ELSE side END"
# Numbers stand for lanes and names while times are added up: 64 bits of hash are enough for the thousands there are.
_LABEL = "hash(category, name) AS label"
_LANE = 'hash(side, "window", device, stream, thread) AS lane'


def operator_times(run: Run, process: int | None = None) -> pd.DataFrame:
    """Calls and time of each operator, kernel, annotation, …: columns side, category, name, calls, total_ns, self_ns,
    share.

    `total_ns` adds up the durations; `self_ns` is the time in which nothing called by it ran on the same thread, so
    that on any thread the self times add up to the time covered by events. `share` is the part of `self_ns` in that of
    its own `side`: "cpu", the threads of the program; "device", the work on GPUs; "profiler", what that did itself; or
    one category of a device's annotations and waits, by its name.
    Sorted by self time, the longest first; of one process, or of all. Holds two million events in memory at once.
    """
    totals = run.sql(
        f"{_EVENTS} SELECT {_SHARED_BY} AS side, category, name, {_LABEL}, count(*) AS calls,"
        f" least(sum(duration_ns), {_FOREVER})::BIGINT AS total_ns"
        f" FROM events WHERE ? IS NULL OR process = ? GROUP BY ALL",
        [process, process],
    )
    own: Counter[int] = Counter()
    for chunks in _chunks_by_process(run, process):
        open_events = None
        for chunk in chunks:
            open_events = _add_self_times(own, chunk.read(run), open_events, chunk.end)
    totals["self_ns"] = totals["label"].map(own).astype("int64")
    of_side = totals.groupby("side")["self_ns"].transform("sum")
    totals["share"] = np.where(of_side > 0, totals["self_ns"] / of_side.where(of_side > 0, 1), 0.0)
    ranked = totals.sort_values(["self_ns", "total_ns", "category", "name"], ascending=[False, False, True, True])
    return ranked[["side", "category", "name", "calls", "total_ns", "self_ns", "share"]].reset_index(drop=True)


def operator_counts(run: Run, process: int | None = None) -> pd.DataFrame:
    """How often each operator was called: columns category, name, calls; the most often called first."""
    return run.sql(
        "SELECT category, name, count(*) AS calls FROM operators WHERE ? IS NULL OR process = ?"
        " GROUP BY ALL ORDER BY calls DESC, category, name",
        [process, process],
    )


def windows(run: Run) -> pd.DataFrame:
    """The profiler's windows: columns process, window, start_ns, duration_ns (first start to last end) and events."""
    return run.sql(
        'SELECT process, "window", min(start_ns) AS start_ns,'
        " max(start_ns + duration_ns) - min(start_ns) AS duration_ns, count(*) AS events"
        ' FROM operators GROUP BY ALL ORDER BY process, start_ns, "window"'
    )


@dataclass(frozen=True)
class _Chunk:
    """The events of a process that begin in [start, end), ns; the chunks of a process follow each other."""

    process: int
    start: int
    end: int

    def read(self, run: Run) -> pa.Table:
        return run.arrow(
            f"{_EVENTS} SELECT {_LANE}, {_LABEL}, start_ns, duration_ns, rank"
            " FROM events WHERE process = ? AND start_ns >= ? AND start_ns < ?",
            [self.process, self.start, self.end],
        )


def _chunks_by_process(run: Run, process: int | None) -> list[list[_Chunk]]:
    """Chunks of about `_CHUNK` events."""
    spans = run.sql(
        "SELECT process, count(*) AS events, min(start_ns) AS first, max(start_ns) AS last"
        " FROM operators WHERE ? IS NULL OR process = ? GROUP BY process ORDER BY process",
        [process, process],
    )
    return [_chunks(run, span.process, span.events, span.first, span.last) for span in spans.itertuples()]


def _chunks(run: Run, process: int, events: int, first: int, last: int) -> list[_Chunk]:
    pieces = math.ceil(events / _CHUNK)
    cuts: list[int] = []
    if pieces > 1:
        cuts = run.sql(
            "SELECT unnest(approx_quantile(start_ns - ?, ?::FLOAT[])) + ? AS cut FROM operators WHERE process = ?",
            [first, [piece / pieces for piece in range(1, pieces)], first, process],
        )["cut"].tolist()
    edges = sorted({first, *(cut for cut in cuts if first < cut <= last), _FOREVER})
    return [_Chunk(process, start, end) for start, end in pairwise(edges)]


def _add_self_times(own: Counter[int], chunk: pa.Table, open_events: pa.Table | None, until: int) -> pa.Table:
    """Add the self times before `until` to `own`, by label; returns the events still open then, callers first.

    `chunk` holds events that begin before `until`, `open_events` those that are open where it begins.
    """
    known = 0 if open_events is None else open_events.num_rows
    events = chunk if open_events is None else pa.concat_tables([open_events, chunk])
    lanes, labels, starts, durations, ranks = (column.to_numpy() for column in events.columns)
    ends = starts + durations
    # Callers first; events that have been open before are in that order already, and call all that begin now.
    are_open = np.arange(len(events)) < known
    longest_first = np.where(are_open, np.iinfo(np.int64).min, -durations)
    order = np.lexsort((np.where(are_open, -1, ranks), longest_first, starts, lanes))
    lanes, labels, starts, ends = lanes[order], labels[order], starts[order], ends[order]
    self_ns = _self_times_by_lane(lanes, starts, np.minimum(ends, until))
    labelled = pa.array(labels).dictionary_encode()
    sums = np.zeros(len(labelled.dictionary), dtype=np.int64)
    np.add.at(sums, labelled.indices.to_numpy(), self_ns)
    own.update(dict(zip(labelled.dictionary.to_pylist(), sums.tolist(), strict=True)))

    later = ends > until
    rest = [lanes[later], labels[later], np.full(later.sum(), until), ends[later] - until, ranks[order][later]]
    return pa.table(rest, schema=events.schema)


def _self_times_by_lane(lanes: np.ndarray, starts: Times, ends: Times) -> Times:
    edges = [0, *(np.flatnonzero(lanes[1:] != lanes[:-1]) + 1).tolist(), len(lanes)]
    pieces = [self_times(starts[a:b], ends[a:b]) for a, b in pairwise(edges)]
    return np.concatenate(pieces)
