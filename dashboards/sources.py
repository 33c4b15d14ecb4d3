"""What the timeline shows of a run: which rows of which table, and in what portions they are read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracekit.analysis.phases import PHASES, phase_times
from tracekit.analysis.steps import Steps
from tracekit.dashboards.levels import Events, Integers
from tracekit.run.reader import Run
from tracekit.traces.kineto_columns import DEVICE_CATEGORIES

# Rows read at once: about 100 MB on their way through DuckDB, Arrow and NumPy.
PORTION = 1_000_000

# Longer names are cut: no label shows as much, and a hostile trace could hold megabytes.
_NAME_LENGTH = 200

_DEVICE = ", ".join(f"'{category}'" for category in sorted(DEVICE_CATEGORIES))
_ON_DEVICE = f"(coalesce(category, '') IN ({_DEVICE}) OR starts_with(coalesce(category, ''), 'gpu_'))"

# One query per kind of lane, in the order the lanes are drawn. Each gives process, thread, start_ns, duration_ns, name
# and category; for "gpu", `thread` holds the stream, with STREAMS of them to a device.
STREAMS = 1_000_000
SOURCES = {
    "range": """
        SELECT process, thread, start_ns, duration_ns, name, 'range' AS category FROM spans WHERE kind = 'range'""",
    "layer": """
        SELECT process, thread, start_ns, duration_ns, name, direction AS category FROM spans WHERE kind = 'layer'""",
    "fetch": """
        SELECT process, thread, start_ns, duration_ns, 'batch ' || turn AS name, 'loading wait' AS category
            FROM fetches""",
    "collective": """
        SELECT process, thread, start_ns, duration_ns, op AS name, 'communication' AS category FROM collectives""",
    "operator": f"""
        SELECT process, thread, start_ns, duration_ns, name, category FROM operators WHERE NOT {_ON_DEVICE}""",
    "gpu": f"""
        SELECT process, device * {STREAMS} + stream AS thread, start_ns, duration_ns, name, category FROM operators
            WHERE {_ON_DEVICE}""",
}
_COLOUR_OF_CATEGORY = {
    "range": "range",
    "user_annotation": "range",
    "gpu_user_annotation": "range",
    "cuda_runtime": "runtime",
    "cuda_driver": "runtime",
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "gpu_memset": "copy",
}
KINDS = ["step", "phase", *SOURCES]
# What is read at once even of a run of many million events, nearly all of which are operators.
OUTLINE = [kind for kind in KINDS if kind not in ("operator", "gpu")]


def colour_key(name: str, category: str) -> str:
    """Which colour of the dashboard an event takes: a key of figures.colors.COLORS."""
    if category in PHASES:
        return category
    if name.startswith(("c10d::", "gloo:")) or "nccl" in name.lower():
        return "communication"
    return _COLOUR_OF_CATEGORY.get(category, "operator")


class Names:
    """Every (name, colour key) that events have, numbered."""

    def __init__(self) -> None:
        self.pairs: list[tuple[str, str]] = []
        self._ids: dict[tuple[str, str], int] = {}

    def id(self, name: str, colour: str) -> int:
        pair = (name, colour)
        if pair not in self._ids:
            self._ids[pair] = len(self.pairs)
            self.pairs.append(pair)
        return self._ids[pair]

    def ids(self, names: pa.Array, categories: pa.Array) -> npt.NDArray[np.int32]:
        """The number of each row of two columns of text, its name and its category."""
        name, category = names.dictionary_encode(), categories.dictionary_encode()
        code = name.indices.to_numpy() * np.int64(len(category.dictionary)) + category.indices.to_numpy()
        words, kinds = name.dictionary.to_pylist(), category.dictionary.to_pylist()
        used, place = np.unique(code, return_inverse=True)
        pairs = (divmod(each, len(kinds)) for each in used.tolist())
        numbers = [self.id(words[word][:_NAME_LENGTH], colour_key(words[word], kinds[kind])) for word, kind in pairs]
        return np.array(numbers, dtype=np.int32)[place]


@dataclass(frozen=True)
class Portion:
    """Some events of one kind in one process, in order of start and, of those that start together, the longer first."""

    kind: str
    process: int
    thread: Integers
    events: Events


def read_portions(run: Run, steps: Steps, names: Names, kinds: Sequence[str]) -> Iterator[Portion]:
    """All events of some kinds, kind by kind and process by process, each in the order of time."""
    yield from (portion for portion in _loop_portions(steps, names) if portion.kind in kinds)
    for kind in [kind for kind in SOURCES if kind in kinds]:
        rows = SOURCES[kind]
        extent = run.sql(
            f"SELECT process, count(*) AS rows, min(start_ns) AS first, max(start_ns) AS last FROM ({rows})"
            " GROUP BY process ORDER BY process"
        )
        for row in extent.itertuples():
            edges = np.linspace(0, row.last + 1 - row.first, -(-row.rows // PORTION) + 1).astype(np.int64) + row.first
            for begin, end in pairwise(edges.tolist()):
                yield _read(run, kind, int(row.process), begin, end, names)


def _loop_portions(steps: Steps, names: Names) -> Iterator[Portion]:
    """The steps of each process, and the phases of the thread that runs them."""
    for number, rows in steps.frame.sort_values("start_ns").groupby("process"):
        process = int(str(number))
        start, duration = rows["start_ns"].to_numpy(np.int64), rows["duration_ns"].to_numpy(np.int64)
        yield _portion("step", process, start, duration, [(names.id("step", "step"), len(rows))])
        phases = [(phase, times) for phase, times in phase_times(steps.loop_rows(process)).items() if len(times.starts)]
        if phases:
            start = np.concatenate([times.starts for _, times in phases])
            duration = np.concatenate([times.ends for _, times in phases]) - start
            yield _portion(
                "phase",
                process,
                start,
                duration,
                [(names.id(phase, phase), len(times.starts)) for phase, times in phases],
            )


def _portion(kind: str, process: int, start: Integers, duration: Integers, names: list[tuple[int, int]]) -> Portion:
    """Events of one kind, of which the first few have the first name, and so on."""
    label = np.repeat(*np.array(names, dtype=np.int32).T).astype(np.int32)
    events = Events(start, duration, label)
    return Portion(kind, process, np.zeros(len(start), dtype=np.int64), events[np.lexsort((-duration, start))])


def _read(run: Run, kind: str, process: int, begin: int, end: int, names: Names) -> Portion:
    table = run.arrow(
        "SELECT coalesce(thread, -1) AS thread, start_ns, greatest(duration_ns, 0) AS duration_ns,"
        " coalesce(name, '') AS name, coalesce(category, '') AS category"
        f" FROM ({SOURCES[kind]}) WHERE process = ? AND start_ns >= ? AND start_ns < ?",
        [process, begin, end],
    ).combine_chunks()
    events = Events(
        table["start_ns"].to_numpy(),
        table["duration_ns"].to_numpy(),
        names.ids(table["name"].combine_chunks(), table["category"].combine_chunks()),
    )
    thread = table["thread"].to_numpy()
    order = _order(events)
    return Portion(
        kind, process, thread if order is None else thread[order], events if order is None else events[order]
    )


def _order(events: Events) -> Integers | None:
    """The order by start, longer first; None when the events are in it already, as in tables that were compacted."""
    ahead, longer = np.diff(events.start), np.diff(events.duration)
    if ((ahead > 0) | ((ahead == 0) & (longer <= 0))).all():
        return None
    return np.lexsort((-events.duration, events.start))
