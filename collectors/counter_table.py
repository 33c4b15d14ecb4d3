"""The readings of counters as the table `counters`. Imported when the first are drained: pyarrow is slow to import."""

from collections.abc import Sequence

import pyarrow as pa

from tracekit.run.schema import TABLES

from .counter_rows import counter_rows
from .readings import Reading


def counter_table(readings: Sequence[Reading]) -> tuple[pa.Table, list[str]]:
    """The rows between successive readings, and the counters that have no row somewhere because their total fell."""
    rows = counter_rows(readings)
    counter = pa.DictionaryArray.from_arrays(pa.array(rows.counter, pa.int32()), pa.array(rows.names, pa.string()))
    source = pa.DictionaryArray.from_arrays(pa.array(rows.source, pa.int32()), pa.array(rows.sources, pa.string()))
    columns = {
        "process": pa.array(rows.process, pa.int32()),
        "thread": rows.thread,
        "start_ns": rows.start_ns,
        "duration_ns": rows.duration_ns,
        "counter": counter,
        "value": rows.value,
        "source": source,
    }
    return pa.table(columns, schema=TABLES["counters"]), rows.backwards
