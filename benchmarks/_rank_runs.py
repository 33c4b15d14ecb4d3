"""Runs of many data-parallel ranks, made without recording anything: as many events as wanted, and a known cause."""

from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tracekit.run.folder import PROCESSES_OF_A_HOST, create_run
from tracekit.run.manifest import CPU, Manifest, Torch
from tracekit.run.schema import TABLES
from tracekit.run.writer import write_table

RANKS_OF_A_HOST = 8
LAYERS, BUCKETS, OPERATORS = 24, 8, 40
# Of each step: layers forward and backward and the model itself, two phases; buckets; changes of phase; a batch, and
# how the program made it.
EVENTS_OF_A_STEP = 2 * LAYERS + 3 + BUCKETS + 6 + 2
MS = 1_000_000
STEP_MS = 40.0
LATE_RANK, LATE = 5, 0.1  # whose backward pass is longer, by this share of a step
_BEGIN_NS = 1_750_000_000_000_000_000
_PROFILED = 5  # of the events each so many-th is an operator
Times = NDArray[np.int64]


def make_run(path: Path, ranks: int, events: int) -> None:
    """A run of so many ranks, on a host for every eight of them, of so many events each."""
    create_run(path)
    steps = events * (_PROFILED - 1) // _PROFILED // EVENTS_OF_A_STEP
    times = _Times(ranks, steps)
    for host, first in enumerate(range(0, ranks, RANKS_OF_A_HOST)):
        members = range(first, min(first + RANKS_OF_A_HOST, ranks))
        name, number = f"node{host:03d}", host * PROCESSES_OF_A_HOST
        tables: dict[str, list[pa.Table]] = {table: [] for table in TABLES}
        for at, rank in enumerate(members):
            for table, columns in _rows(times, rank, steps, events).items():
                tables[table].append(_table(table, number + at, 100 + rank, columns))
            end = int(times.ends[-1])
            tables["processes"].append(_person(number + at, rank, ranks, name, end))
        tables["counters"].append(_counters(-1, times))
        for table, parts in tables.items():
            if parts:
                rows = pa.concat_tables(parts).sort_by([("process", "ascending"), ("start_ns", "ascending")])
                write_table(rows, path / "tables" / table / f"{name}-000001.merged.parquet")
        _manifest(name, number, path, int(times.ends[-1])).save(path / "manifest" / f"{name}.json")


class _Times:
    """When the phases of each step are over: those of a rank alone, and `ends`, which all ranks have together."""

    def __init__(self, ranks: int, steps: int) -> None:
        random = np.random.default_rng(0)
        self.loading = (random.normal(2, 0.05, (ranks, steps)) * MS).astype(np.int64)
        self.forward = (random.normal(12, 0.1, (ranks, steps)) * MS).astype(np.int64)
        self.backward = (random.normal(20, 0.1, (ranks, steps)) * MS).astype(np.int64)
        self.optimizer = np.full((ranks, steps), 3 * MS)
        if ranks > LATE_RANK:
            self.backward[LATE_RANK] += int(LATE * STEP_MS * MS)
        ready = self.loading + self.forward + self.backward
        took = ready.max(axis=0) + 3 * MS + self.optimizer[0]
        self.ends = _BEGIN_NS + np.cumsum(took)
        self.begins = self.ends - took


def _rows(times: _Times, rank: int, steps: int, events: int) -> dict[str, dict[str, object]]:
    """Columns by table, without the process and the thread."""
    begin = times.begins
    loaded = begin + times.loading[rank]
    through = loaded + times.forward[rank]
    sent = through + times.backward[rank]
    back = times.ends - times.optimizer[rank]
    layer, direction = np.arange(LAYERS), ["forward"] * LAYERS + ["backward"] * LAYERS

    def spread(start: Times, end: Times, count: int) -> tuple[Times, Times]:
        """So many events of one length in each of some stretches [steps * count]."""
        length = (end - start) // count
        return (start[:, None] + length[:, None] * np.arange(count)).ravel(), np.repeat(length, count)

    ahead, ahead_took = spread(loaded, through, LAYERS)
    after, after_took = spread(through, sent, LAYERS)
    inner = np.concatenate([ahead.reshape(steps, -1), after.reshape(steps, -1)], axis=1).ravel()
    inner_took = np.concatenate([ahead_took.reshape(steps, -1), after_took.reshape(steps, -1)], axis=1).ravel()
    inner_took = inner_took - np.random.default_rng(rank).integers(0, MS // 100, len(inner_took))
    names = [f"blocks.{number}" for number in layer]
    spans = {
        "start_ns": np.concatenate([inner, loaded, through, back]),
        "duration_ns": np.concatenate([inner_took, through - loaded, back - through, times.optimizer[rank]]),
        "kind": _words(["layer"] * (2 * LAYERS), steps, (["layer", "phase", "phase"])),
        "name": _words(names + names, steps, ["Model", "backward", "optimizer"]),
        "direction": _words(direction, steps, ["forward", "", ""]),
        "depth": np.concatenate([np.ones(2 * LAYERS * steps), np.zeros(3 * steps)]).astype(np.int32),
        "layer": np.concatenate([np.tile(np.append(layer, layer) + 1, steps), np.zeros(3 * steps)]).astype(np.int64),
    }
    ready, _ = spread(through, sent, BUCKETS)
    ready = ready + np.repeat(times.backward[rank] // BUCKETS, BUCKETS)
    ready.reshape(steps, BUCKETS)[:, -1] = sent
    ends = np.minimum(ready + 3 * MS, np.repeat(back, BUCKETS))
    ends.reshape(steps, BUCKETS)[:, -1] = back
    buckets = {
        "start_ns": ready, "duration_ns": ends - ready, "ready_ns": ready, "op": ["bucket"] * len(ready),
        "group": ["world"] * len(ready), "sequence": np.arange(len(ready)), "bytes": np.full(len(ready), 1 << 20),
        "dtype": ["float32"] * len(ready), "is_async": np.ones(len(ready), dtype=bool),
        "bucket": np.tile(np.arange(BUCKETS), steps).astype(np.int32),
    }  # fmt: skip
    moments = np.stack([begin, loaded, through, sent, back, times.ends - 1], axis=1).ravel()
    waits = np.zeros((steps, 6), dtype=np.int64)
    waits[:, 4] = back - sent
    changes = {
        "start_ns": moments,
        "duration_ns": np.zeros(len(moments), dtype=np.int64),
        "phase": ["loading", "forward", "backward", "communication", "optimizer", "other"] * steps,
        "cpu_ns": moments - moments[0] - np.cumsum(waits.ravel()),
        "delayed_ns": np.zeros(len(moments), dtype=np.int64),
    }
    batches = {
        "start_ns": begin, "duration_ns": times.loading[rank], "loader": ["loader"] * steps, "index": np.arange(steps),
        "worker": np.full(steps, -1, dtype=np.int32), "epoch": np.zeros(steps, dtype=np.int64),
    }  # fmt: skip
    made_for = times.loading[rank] - 2000
    fetches = {
        "start_ns": begin + 1000, "duration_ns": made_for, "iteration": np.zeros(steps, dtype=np.int64),
        "turn": np.arange(steps), "samples": np.full(steps, 32), "cpu_ns": made_for,
        "delayed_ns": np.zeros(steps, dtype=np.int64),
    }  # fmt: skip
    profiled = events - steps * EVENTS_OF_A_STEP
    moments = np.sort(np.random.default_rng(rank).integers(int(begin[0]), int(times.ends[-1]), profiled))
    operators = {
        "start_ns": moments, "duration_ns": np.full(profiled, 50_000), "category": ["cpu_op"] * profiled,
        "name": [f"aten::op{number % OPERATORS}" for number in range(profiled)],
    }  # fmt: skip
    return {
        "spans": spans, "collectives": buckets, "changes": changes, "batches": batches,
        "fetches": fetches, "operators": operators,
    }  # fmt: skip


def _words(each: list[str], steps: int, others: list[str]) -> list[str]:
    """Those of a step again and again, then each of the others for all steps."""
    return each * steps + [word for word in others for _ in range(steps)]


def _table(name: str, process: int, thread: int, columns: dict[str, object]) -> pa.Table:
    count = len(columns["start_ns"])  # type: ignore[arg-type]
    whole = {"process": np.full(count, process, dtype=np.int32), "thread": np.full(count, thread)} | columns
    made = []
    for field in TABLES[name]:
        made.append(
            pa.array(whole[field.name]).cast(field.type) if field.name in whole else pa.nulls(count, field.type)
        )
    return pa.Table.from_arrays(made, schema=TABLES[name])


def _person(process: int, rank: int, ranks: int, host: str, end: int) -> pa.Table:
    return _table("processes", process, 100 + rank, {
        "start_ns": np.array([_BEGIN_NS - 1000 * MS]), "duration_ns": np.array([end - _BEGIN_NS + 1000 * MS]),
        "pid": np.array([1000 + rank]), "parent": np.array([-1]), "role": [f"rank {rank}"], "rank": np.array([rank]),
        "local_rank": np.array([rank % RANKS_OF_A_HOST]), "world_size": np.array([ranks]), "worker": np.array([-1]),
        "attempt": np.array([0]), "host": [host], "command": ["python train.py"], "recorded": np.array([True]),
        "clock_offset_ns": np.array([0]), "clock_drift_ppm": np.array([0.0]),
    })  # fmt: skip


def _counters(process: int, times: _Times) -> pa.Table:
    """What the machine had stolen, ten times a second."""
    starts = np.arange(int(times.begins[0]), int(times.ends[-1]), 100 * MS)
    return _table("counters", process, 0, {
        "start_ns": starts, "duration_ns": np.full(len(starts), 100 * MS), "counter": ["host.steal_ns"] * len(starts),
        "value": np.full(len(starts), MS), "source": ["/proc/stat"] * len(starts),
    })  # fmt: skip


def _manifest(host: str, first: int, path: Path, end: int) -> Manifest:
    cpu = CPU(model="synthetic", logical=64, affinity=list(range(64)), physical_cores=64)
    return Manifest(
        run=path.name, host=host, node=host, job="job", first_process=first, command=["python", "train.py"], cpu=cpu,
        torch=Torch(version="2.13.0", intra_op=1), started_ns=_BEGIN_NS, ended_ns=end, exit_code=0,
    )  # fmt: skip
