"""From records to the rows of tables: vectorised, one function per kind of record."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from tracekit.record.spools import LOST
from tracekit.record.wire import BUCKET, CALL, OVER, SHARES, UNKNOWN, Kind
from tracekit.run.schema import TABLES

_DIRECTIONS = pa.array(["", "forward", "backward"])
_SPAN_KINDS = {
    Kind.STEP: "step",
    Kind.LAYER: "layer",
    Kind.PHASE: "phase",
    Kind.RANGE: "range",
    Kind.GARBAGE: "garbage",
    Kind.BLOCK: "block",
    Kind.PLAIN_BLOCK: "plain block",
    Kind.PROBE: "probe",
    Kind.SHAPE: "shape",
    Kind.PLANNED: "planned",
}


def tables(records: np.ndarray, names: list[str], process: int, clock_offset_ns: int) -> dict[str, pa.Table]:
    """The rows that one process's records stand for, by table. `clock_offset_ns` turns their times into Unix time."""
    result: dict[str, list[pa.Table]] = {}
    words = pa.array([*names, LOST])  # for ids without a name
    for kind, (table, convert) in _CONVERTERS.items():
        chosen = records[records["kind"] == kind]
        if len(chosen):
            columns = {
                "process": np.full(len(chosen), process, dtype=np.int32),
                "thread": chosen["thread"].astype(np.int64),
                "start_ns": chosen["start"] + clock_offset_ns,
                "duration_ns": chosen["end"] - chosen["start"],
                **convert(chosen, words, clock_offset_ns),
            }
            result.setdefault(table, []).append(_complete(table, columns, len(chosen)))
    return {table: pa.concat_tables(parts).unify_dictionaries() for table, parts in result.items()}


def _complete(table: str, columns: dict[str, object], rows: int) -> pa.Table:
    schema = TABLES[table]
    arrays = [
        pa.nulls(rows, field.type) if field.name not in columns else _array(columns[field.name], field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _array(values: object, kind: pa.DataType) -> pa.Array:
    array = values if isinstance(values, pa.Array) else pa.array(values)
    return array if array.type == kind else array.cast(kind)


def _words(ids: np.ndarray, words: pa.Array) -> pa.DictionaryArray:
    """Of a process's words those that the rows have: many processes, each with all its words, would fill the memory."""
    lost = len(words) - 1
    known = np.where((ids >= 0) & (ids < lost), ids, lost)
    used = np.zeros(len(words), dtype=bool)
    used[known] = True
    places = np.cumsum(used, dtype=np.int32) - 1
    return pa.DictionaryArray.from_arrays(pa.array(places[known], pa.int32()), words.filter(pa.array(used)))


def _same(word: str, rows: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, dtype=np.int32)), pa.array([word]))


def _span(kind: Kind) -> Callable[[np.ndarray, pa.Array, int], dict[str, object]]:
    def convert(records: np.ndarray, words: pa.Array, offset: int) -> dict[str, object]:
        rows = len(records)
        return {
            "kind": _same(_SPAN_KINDS[kind], rows),
            "name": _words(records["name"], words),
            "depth": records["depth"],
            "step": records["a"] if kind is Kind.STEP else np.full(rows, -1),
            "layer": np.full(rows, -1) if kind is Kind.STEP else records["a"],
            "direction": pa.DictionaryArray.from_arrays(pa.array(records["direction"].astype(np.int32)), _DIRECTIONS),
            "watched": records["b"] != 0 if kind is Kind.LAYER else np.zeros(rows, dtype=bool),
            **(_block(records) if kind in (Kind.BLOCK, Kind.PLAIN_BLOCK, Kind.PLANNED) else {}),
        }

    return convert


def _block(records: np.ndarray) -> dict[str, object]:
    return {
        "layer": records["a"],
        "step": records["b"],
        "depth": records["c"].astype(np.int32),
        "watched": records["d"] != 0,
    }


def _batch(records: np.ndarray, words: pa.Array, offset: int) -> dict[str, object]:
    return {
        "loader": _words(records["name"], words),
        "epoch": records["a"],
        "index": records["b"],
        "worker": records["c"].astype(np.int32),
        "bytes": records["d"],
        "taking_ns": records["depth"].astype(np.int64),
    }


def _worker(records: np.ndarray, words: pa.Array, offset: int) -> dict[str, object]:
    return {
        "loader": _words(records["name"], words),
        "epoch": records["a"],
        "worker": records["b"].astype(np.int32),
        "pid": records["c"],
        "drawing_ns": records["d"],
    }


def _fetch(records: np.ndarray, words: pa.Array, offset: int) -> dict[str, object]:
    faults, others = (records[name].astype(np.int64) for name in ("direction", "name"))
    took, collating = records["end"] - records["start"], (records["b"] >> 32) - 1
    return {
        "turn": records["a"],
        "iteration": records["b"] & UNKNOWN,
        "cpu_ns": records["c"],
        "delayed_ns": records["d"],
        "samples": records["depth"],
        "faults_ns": np.where(faults <= SHARES, records["c"] * faults // SHARES, -1),
        "others_ns": np.where(others < UNKNOWN, records["c"] * others // SHARES, -1),
        "collating_ns": np.where(collating >= 0, (took / SHARES * collating).astype(np.int64), -1),
    }


def _sample(records: np.ndarray, words: pa.Array, offset: int) -> dict[str, object]:
    return {"turn": records["a"], "iteration": records["b"], "index": records["c"], "cpu_ns": records["d"]}


def _read(records: np.ndarray, words: pa.Array, offset: int) -> dict[str, object]:
    return {
        "path": _words(records["name"], words),
        "offset": records["a"],
        "bytes": records["b"],
        "cpu_ns": records["c"],
    }


def _collective(records: np.ndarray, words: pa.Array, offset: int) -> dict[str, object]:
    start = records["start"] + records["d"]
    return {
        "start_ns": start + offset,
        "duration_ns": np.maximum(records["end"] - start, 0),
        "op": _words(records["name"], words),
        "group": _words(records["a"] & UNKNOWN, words),
        "sequence": records["b"],
        "bytes": records["c"],
        "dtype": _words(records["a"] >> 32, words),
        "is_async": records["direction"] != CALL,
        "bucket": np.maximum(records["direction"].astype(np.int32) - BUCKET, -1),
        "ready_ns": records["start"] + offset,
        "unsure_ns": records["depth"].astype(np.int64),
    }


def _entered(records: np.ndarray, words: pa.Array, offset: int) -> dict[str, object]:
    return {
        "op": _words(records["name"], words),
        "group": _words(records["a"] & UNKNOWN, words),
        "sequence": records["b"],
        "is_over": records["direction"] == OVER,
    }


def _change(records: np.ndarray, words: pa.Array, offset: int) -> dict[str, object]:
    return {"phase": _words(records["name"], words), "cpu_ns": records["a"], "delayed_ns": records["b"]}


_CONVERTERS: dict[Kind, tuple[str, Callable[[np.ndarray, pa.Array, int], dict[str, object]]]] = {
    **{kind: ("spans", _span(kind)) for kind in _SPAN_KINDS},
    Kind.BATCH: ("batches", _batch),
    Kind.WORKER: ("workers", _worker),
    Kind.FETCH: ("fetches", _fetch),
    Kind.SAMPLE: ("samples", _sample),
    Kind.READ: ("reads", _read),
    Kind.COLLECTIVE: ("collectives", _collective),
    Kind.CHANGE: ("changes", _change),
    Kind.ENTERED: ("reached", _entered),
}
