"""Readings of totals → rows of intervals: differences, scaled where events were multiplexed, nothing joined to nothing.

Pure and without Python loops over rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracekit.run.counter_names import describe

from .readings import Decoded, Reader, Reading

Integers = npt.NDArray[np.int64]


@dataclass
class CounterRows:
    """Rows of the counters table; `counter` and `source` are positions in `names` and `sources`."""

    process: Integers
    thread: Integers
    start_ns: Integers
    duration_ns: Integers
    counter: Integers
    value: Integers
    source: Integers
    names: list[str]
    sources: list[str]
    backwards: list[str]  # counters whose total fell: such intervals have no row, their increase is not known


@dataclass
class _Long:
    """All readings in long form, one element per reading and counter."""

    reader: Integers
    name: Integers
    time: Integers
    value: Integers
    enabled: Integers
    running: Integers
    source: Integers


class _Numbering(dict[str, int]):
    """Numbers words in the order in which they come."""

    def __missing__(self, word: str) -> int:
        self[word] = len(self)
        return self[word]


def counter_rows(readings: Sequence[Reading]) -> CounterRows:
    """The rows between successive readings of the same reader; readings must be in order of time.

    Successive intervals in which nothing was counted, or a level stayed the same, are one row.
    """
    readers = list(dict.fromkeys(reading[1] for reading in readings))
    names, sources = _Numbering(), _Numbering()
    flat = _flatten(readings, readers, names, sources)
    words = list(names)
    is_level = np.array([describe(word).level for word in words], dtype=bool)

    order = np.lexsort((flat.time, flat.name, flat.reader))
    before, after = order[:-1], order[1:]
    follows = (flat.reader[before] == flat.reader[after]) & (flat.name[before] == flat.name[after])
    follows &= flat.time[after] > flat.time[before]
    before, after = before[follows], after[follows]

    level = is_level[flat.name[after]]
    increase = flat.value[after] - flat.value[before]
    wanted = flat.enabled[after] - flat.enabled[before]
    counted = flat.running[after] - flat.running[before]
    scale = np.divide(wanted, counted, out=np.ones(len(after)), where=counted > 0)
    # Float only where there is something to scale: not every number of ns fits a float's 53 bits.
    scaled = np.where(scale == 1.0, increase, np.rint(increase * scale).astype(np.int64))
    value = np.where(level, flat.value[after], scaled)
    fell = ~level & (increase < 0)
    keep = np.flatnonzero(~fell & ~((wanted > 0) & (counted <= 0)))

    at, since = after[keep], before[keep]
    rows = _Rows(flat.reader[at], flat.name[at], flat.time[since], flat.time[at], value[keep], flat.source[at])
    rows = _with_last_moments(rows, readers, names, sources)
    rows = _joined(rows, np.append(is_level, False))  # for the name that the line above may have added
    process = np.array([reader.process for reader in readers], dtype=np.int64)
    thread = np.array([reader.thread for reader in readers], dtype=np.int64)
    return CounterRows(
        process[rows.reader],
        thread[rows.reader],
        rows.start,
        rows.end - rows.start,
        rows.name,
        rows.value,
        rows.source,
        list(names),
        list(sources),
        [words[number] for number in np.unique(flat.name[after[fell]])],
    )


def _flatten(readings: Sequence[Reading], readers: list[Reader], names: _Numbering, sources: _Numbering) -> _Long:
    number_of = {reader: number for number, reader in enumerate(readers)}
    by_kind: dict[int, list[Reading]] = {}
    for reading in readings:
        by_kind.setdefault(id(reading[1].kind), []).append(reading)
    pieces: list[tuple[Integers, ...]] = []
    for group in by_kind.values():
        kind = group[0][1].kind
        decoded = kind.decode([raw for _, _, raw in group])
        at = decoded.reading
        local = np.array([names[name] for name in decoded.names], dtype=np.int64)
        pieces.append(
            (
                np.array([number_of[reader] for _, reader, _ in group], dtype=np.int64)[at],
                local[decoded.counter] if len(local) else decoded.counter,
                np.array([time for time, _, _ in group], dtype=np.int64)[at],
                decoded.value,
                *_times(decoded),
                np.full(len(at), sources[kind.source], dtype=np.int64),
            )
        )
    empty = np.zeros(0, dtype=np.int64)
    return _Long(*(np.concatenate(column) for column in zip(*pieces, strict=True))) if pieces else _Long(*[empty] * 7)


def _times(decoded: Decoded) -> tuple[Integers, Integers]:
    if decoded.enabled is None or decoded.running is None:
        always = np.zeros(len(decoded.value), dtype=np.int64)
        return always, always
    return decoded.enabled, decoded.running


@dataclass
class _Rows:
    reader: Integers
    name: Integers
    start: Integers
    end: Integers
    value: Integers
    source: Integers

    def take(self, which: Integers) -> "_Rows":
        return _Rows(*(column[which] for column in vars(self).values()))


def _with_last_moments(rows: _Rows, readers: list[Reader], names: _Numbering, sources: _Numbering) -> _Rows:
    """Add the CPU time of a thread between the last look at it and its end, which only its perf event still tells."""
    ended = np.array([reader.ended_ns for reader in readers], dtype=np.int64)
    if "perf.task_clock_ns" not in names or not (ended >= 0).any():
        return rows
    last = np.flatnonzero((rows.name == names["perf.task_clock_ns"]) & (rows.end == ended[rows.reader]))
    if not len(last):
        return rows
    extra = rows.take(last)
    extra.name = np.full(len(last), names["thread.cpu_ns"], dtype=np.int64)
    columns = zip(vars(rows).values(), vars(extra).values(), strict=True)
    return _Rows(*(np.concatenate(pair) for pair in columns))


def _joined(rows: _Rows, is_level: npt.NDArray[np.bool_]) -> _Rows:
    """Join rows that follow each other without a gap and say the same: nothing counted, or a level that stayed."""
    if not len(rows.name):
        return rows
    same = np.zeros(len(rows.name), dtype=bool)
    same[1:] = (
        (rows.reader[1:] == rows.reader[:-1])
        & (rows.name[1:] == rows.name[:-1])
        & (rows.start[1:] == rows.end[:-1])
        & (rows.value[1:] == rows.value[:-1])
        & ((rows.value[1:] == 0) | is_level[rows.name[1:]])
    )
    heads = np.flatnonzero(~same)
    tails = np.append(heads[1:], len(same)) - 1
    joined = rows.take(heads)
    joined.end = rows.end[tails]
    return joined
