"""What the timeline shows of a run: which rows of which table, and in what portions they are read."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from tracekit.dashboards.levels import Events, Integers
from tracekit.run.reader import Run

# Rows read at once: about 100 MB on their way through DuckDB, Arrow and NumPy.
PORTION = 1_000_000

# Longer names are cut: no label shows as much, and a hostile trace could hold megabytes.
_NAME_LENGTH = 200

# Kineto's categories of what runs on an accelerator; everything else runs on a thread of the process.
_ON_DEVICE = "('kernel', 'gpu_memcpy', 'gpu_memset', 'gpu_user_annotation')"

# One query per kind of lane, in the order the lanes are drawn. Each gives process, thread, start_ns, duration_ns, name and
# category; for "gpu", `thread` holds the stream, with STREAMS of them to a device.
STREAMS = 1_000_000
SOURCES = {
    "phase": """
        SELECT process, thread, start_ns, duration_ns, 'loading wait' AS name, 'loading wait' AS category FROM batches
        UNION ALL SELECT process, thread, start_ns, duration_ns, 'forward', 'forward' FROM spans
            WHERE kind = 'layer' AND depth = 0 AND direction = 'forward'
        UNION ALL SELECT process, thread, start_ns, duration_ns, name, name FROM spans WHERE kind = 'phase'
        UNION ALL SELECT process, thread, start_ns, duration_ns, op, 'communication' FROM collectives""",
    "range": """
        SELECT process, thread, start_ns, duration_ns, name, 'range' AS category FROM spans WHERE kind = 'range'""",
    "fetch": """
        SELECT process, thread, start_ns, duration_ns, name, 'loading wait' AS category FROM spans WHERE kind = 'fetch'""",
    "layer": """
        SELECT process, thread, start_ns, duration_ns, name, direction AS category FROM spans WHERE kind = 'layer'""",
    "operator": f"""
        SELECT process, thread, start_ns, duration_ns, name, category FROM operators WHERE category NOT IN {_ON_DEVICE}""",
    "gpu": f"""
        SELECT process, device * {STREAMS} + stream AS thread, start_ns, duration_ns, name, category FROM operators
            WHERE category IN {_ON_DEVICE}""",
}
PHASES = ("loading wait", "forward", "backward", "optimizer", "communication", "other")
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
KINDS = ["step", *SOURCES]


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
        numbers: npt.NDArray[np.int32] = np.zeros(len(words) * len(kinds), dtype=np.int32)
        for used in np.flatnonzero(np.bincount(code)).tolist():
            word, kind = divmod(used, len(kinds))
            numbers[used] = self.id(words[word][:_NAME_LENGTH], colour_key(words[word], kinds[kind]))
        return numbers[code]


@dataclass(frozen=True)
class Portion:
    """Some events of one kind in one process, in order of start and, of those that start together, the longer first."""

    kind: str
    process: int
    thread: Integers
    events: Events


def read_portions(run: Run, steps: pd.DataFrame, names: Names) -> Iterator[Portion]:
    """All events of a run, kind by kind and process by process, each in the order of time. `steps` has the columns
    process, step, start_ns, duration_ns."""
    for process, rows in steps.sort_values("start_ns").groupby("process"):
        start, duration = rows["start_ns"].to_numpy(np.int64), rows["duration_ns"].to_numpy(np.int64)
        label = np.full(len(rows), names.id("step", "step"), dtype=np.int32)
        yield Portion("step", int(str(process)), np.zeros(len(rows), dtype=np.int64), Events(start, duration, label))
    for kind, rows in SOURCES.items():
        extent = run.sql(
            f"SELECT process, count(*) AS rows, min(start_ns) AS first, max(start_ns) AS last FROM ({rows})"
            " GROUP BY process ORDER BY process"
        )
        for row in extent.itertuples():
            edges = np.linspace(0, row.last + 1 - row.first, -(-row.rows // PORTION) + 1).astype(np.int64) + row.first
            for begin, end in zip(edges[:-1], edges[1:], strict=True):
                yield _read(run, kind, int(row.process), int(begin), int(end), names)


def _read(run: Run, kind: str, process: int, begin: int, end: int, names: Names) -> Portion:
    table = run.arrow(
        "SELECT thread, start_ns, greatest(duration_ns, 0) AS duration_ns, name, category"
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
    return Portion(kind, process, thread if order is None else thread[order], events if order is None else events[order])


def _order(events: Events) -> Integers | None:
    """The order by start, longer first; None when the events are in it already, as in tables that were compacted."""
    ahead, longer = np.diff(events.start), np.diff(events.duration)
    if ((ahead > 0) | ((ahead == 0) & (longer <= 0))).all():
        return None
    return np.lexsort((-events.duration, events.start))
