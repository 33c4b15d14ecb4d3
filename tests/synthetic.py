"""Runs on disk whose truth is known, made without recording anything: for tests of what reads runs.

    tape = Tape()                                  # one process, one virtual clock; all durations in milliseconds
    for _ in range(10):
        tape.batch(2.0)                            # the program waited 2 ms for a batch
        with tape.layer("Model"):                  # depth 0; the layers called inside are its children
            tape.call("encoder.rnn", 3.0)
            tape.gap(0.5)                          # time in the model itself
        with tape.backward():
            tape.call("encoder.rnn", 4.0, direction="backward")
        tape.optimizer(1.0)
    make_run(path, [tape])

`training_run` makes the usual training loop in one call; `make_run(…, tables={"spans": frame})` adds rows made in bulk.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from tracekit.run.folder import create_run
from tracekit.run.manifest import CPU, Manifest, Torch
from tracekit.run.schema import TABLES
from tracekit.run.writer import PartWriter

BEGIN_NS = 1_750_000_000_000_000_000  # when every synthetic run starts, Unix time
MS = 1_000_000
Row = dict[str, object]


def ns(milliseconds: float) -> int:
    return round(milliseconds * MS)


@dataclass
class Tape:
    """What one process recorded. `thread` is the thread of its main loop; `now` its clock, ns since the run's start."""

    process: int = 0
    role: str = "main"
    rank: int = -1
    parent: int = -1
    worker: int = -1
    thread: int = 1
    world: int = -1
    host: str = "node0"
    now: int = 0
    rows: dict[str, list[Row]] = field(default_factory=lambda: {name: [] for name in TABLES})
    _depth: int = 0
    _numbers: dict[str, int] = field(default_factory=dict)

    def gap(self, ms: float) -> None:
        """Time in which nothing is recorded."""
        self.now += ns(ms)

    def add(self, table: str, start: int, end: int, **columns: object) -> None:
        """A row over [start, end), in ns since the run's start; columns not given hold "not known"."""
        row = {"process": self.process, "thread": self.thread, "start_ns": BEGIN_NS + start, "duration_ns": end - start}
        self.rows[table].append(row | columns)

    @contextmanager
    def span(self, kind: str, name: str, **columns: object) -> Iterator[None]:
        """A span around what happens inside the `with` block."""
        start = self.now
        yield
        self.add("spans", start, self.now, kind=kind, name=name, **columns)

    @contextmanager
    def layer(self, name: str, direction: str = "forward", watched: bool = False) -> Iterator[None]:
        """A layer call around others; outside any other layer its depth is 0. Layers are numbered by name."""
        depth, self._depth = self._depth, self._depth + 1
        layer = self._numbers.setdefault(name, len(self._numbers))
        with self.span("layer", name, layer=layer, depth=depth, direction=direction, watched=watched):
            yield
        self._depth = depth

    def call(self, name: str, ms: float, direction: str = "forward", watched: bool = False) -> None:
        """A layer call with nothing inside."""
        with self.layer(name, direction, watched):
            self.gap(ms)

    @contextmanager
    def backward(self, ms: float = 0.0) -> Iterator[None]:
        """A pass of the autograd engine; the backward rows of layers inside it have depth 1, as below the outermost."""
        depth, self._depth = self._depth, 1
        with self.span("phase", "backward"):
            self.gap(ms)
            yield
        self._depth = depth

    def optimizer(self, ms: float, which: int = 0) -> None:
        with self.in_optimizer(which):
            self.gap(ms)

    @contextmanager
    def in_optimizer(self, which: int = 0) -> Iterator[None]:
        """An optimizer step around its closure."""
        with self.span("phase", "optimizer", layer=which):
            yield

    def calls_seen(self, seen: bool) -> None:
        """From here on module calls are recorded, or are left out."""
        self.add("spans", self.now, self.now, kind="phase", name="calls", layer=int(seen))

    def batch(self, wait_ms: float, loader: str = "train", epoch: int = 0, index: int = 0, worker: int = -1) -> None:
        """The program waited for a batch and got it."""
        start = self.now
        self.gap(wait_ms)
        self.add("batches", start, self.now, loader=loader, epoch=epoch, index=index, worker=worker)

    def fetch(self, ms: float, iteration: int = 0, turn: int = 0, cpu_ms: float = 0.0, samples: int = 1) -> None:
        """A batch is made."""
        start = self.now
        self.gap(ms)
        cpu_ns = round(cpu_ms * MS)
        self.add("fetches", start, self.now, iteration=iteration, turn=turn, cpu_ns=cpu_ns, samples=samples)

    def collective(self, ms: float, op: str = "all_reduce", is_async: bool = False, size: int = 4096) -> None:
        start = self.now
        self.gap(ms)
        self.add(
            "collectives",
            start,
            self.now,
            op=op,
            group="world",
            bytes=size,
            dtype="float32",
            is_async=is_async,
            ready_ns=BEGIN_NS + start,
        )

    def met(self, ready: int, begun: int, end: int, sequence: int, **columns: object) -> None:
        """Communication of ranks, in ns since the run's start."""
        usual = {"op": "all_reduce", "group": "world", "bytes": 4096, "dtype": "float32", "is_async": False}
        row = usual | {"sequence": sequence, "ready_ns": BEGIN_NS + ready, "bucket": -1, "unsure_ns": 0} | columns
        self.add("collectives", begun, end, **row)

    def change(self, phase: str, cpu_ns: int, delayed_ns: int = 0) -> None:
        """From now on the loop is in this phase."""
        self.add("changes", self.now, self.now, phase=phase, cpu_ns=cpu_ns, delayed_ns=delayed_ns)

    def mark(self, number: int) -> None:
        """An explicit tracekit.step() now."""
        self.add("spans", self.now, self.now, kind="step", name="step", step=number)

    def operator(self, name: str, ms: float, category: str = "cpu_op", window: int = 0) -> None:
        with self.operator_around(name, category, window):
            self.gap(ms)

    @contextmanager
    def operator_around(self, name: str, category: str = "cpu_op", window: int = 0) -> Iterator[None]:
        """An operator that calls others."""
        start = self.now
        yield
        self.add("operators", start, self.now, category=category, name=name, window=window)

    def counter(
        self,
        name: str,
        value: int,
        start_ms: float,
        duration_ms: float,
        thread: int = 0,
        source: str = "test",
        machine: bool = False,
    ) -> None:
        """One value of a counter over an interval in ms since the run's start; `machine`: of the whole machine."""
        columns: Row = {"counter": name, "value": value, "source": source, "thread": thread}
        if machine:
            columns["process"] = -1
        self.add("counters", ns(start_ms), ns(start_ms + duration_ms), **columns)


def make_run(
    path: Path,
    tapes: Sequence[Tape] = (),
    tables: Mapping[str, pd.DataFrame] | None = None,
    manifest: Manifest | None = None,
    ended: bool = True,
) -> Path:
    """Write a run. `tables` adds rows made in bulk: frames with a table's columns, those left out being "not known".

    Without tapes the run holds no process: what a recording leaves that was killed at once.
    """
    create_run(path)
    hosts = dict.fromkeys(tape.host for tape in tapes) or {"node0": None}
    length = max([ns(1000), *(tape.now for tape in tapes)])
    for host in hosts:
        sheet = manifest or make_manifest()
        sheet.run, sheet.host, sheet.started_ns = path.name, host, BEGIN_NS
        sheet.ended_ns = BEGIN_NS + length if ended else None
        sheet.exit_code = 0 if ended else None
        sheet.save(path / "manifest" / f"{host}.json")
        writer = PartWriter(path, host)
        mine = [tape for tape in tapes if tape.host == host]
        writer.write("processes", _table("processes", pd.DataFrame([_process(tape, length) for tape in mine])))
        for name in TABLES:
            rows = [row for tape in mine for row in tape.rows[name]]
            writer.write(name, _table(name, pd.DataFrame(rows)))
    for name, frame in (tables or {}).items():
        PartWriter(path, next(iter(hosts))).write(name, _table(name, frame))
    return path


def make_manifest(
    cpus: int = 4, physical_cores: int = 4, quota: float | None = None, intra_op: int = 4, **columns: Any
) -> Manifest:
    """A manifest of `python train.py` on a machine with so many CPUs; other keys of Manifest by name."""
    cpu = CPU(model="synthetic", logical=cpus, affinity=list(range(cpus)), physical_cores=physical_cores, quota=quota)
    torch = Torch(version="2.13.0", openmp="libgomp", intra_op=intra_op, inter_op=cpus)
    keys: dict[str, Any] = {"command": ["python", "train.py"], "cpu": cpu, "torch": torch, "tracekit": "0"}
    return Manifest(**(keys | columns))


def training_run(
    path: Path, steps: int = 10, ranks: int = 1, workers: int = 0, manifest: Manifest | None = None
) -> Path:
    """A training loop of LSTMModel(encoder.rnn, head), per step 2 ms wait, 6 ms forward (rnn 4, head 1.5), 8 ms back
    (head 2, rnn 5), 3 ms optimizer, 1 ms of nothing: 20 ms. With several ranks process 0 is only the launcher.
    """
    several = ranks > 1
    tapes = [Tape(process=0, role="helper")] if several else []
    for rank in range(ranks):
        tape = Tape(
            process=rank + several,
            role=f"rank {rank}" if several else "main",
            rank=rank if several else -1,
            parent=0 if several else -1,
            thread=100 + rank,
        )
        train(tape, steps)
        tapes.append(tape)
    loops = list(tapes[several:])
    for number in range(workers * len(loops)):
        owner = loops[number // workers]
        tapes.append(
            Tape(
                process=len(tapes),
                role=f"loader worker {number % workers}",
                parent=owner.process,
                rank=owner.rank,
                worker=number % workers,
                thread=500 + number,
            )
        )
    return make_run(path, tapes, manifest=manifest)


def train(tape: Tape, steps: int) -> None:
    """Put the loop of `training_run` on a tape, after 500 ms of imports."""
    tape.gap(500)
    for index in range(steps):
        tape.batch(2.0, index=index)
        with tape.layer("LSTMModel"):
            tape.call("encoder.rnn", 4.0)
            tape.call("head", 1.5)
            tape.gap(0.5)
        with tape.backward(1.0):
            tape.call("head", 2.0, direction="backward")
            tape.call("encoder.rnn", 5.0, direction="backward")
        tape.optimizer(3.0)
        tape.gap(1.0)


def _process(tape: Tape, length: int) -> Row:
    return {
        "process": tape.process,
        "thread": tape.thread,
        "start_ns": BEGIN_NS,
        "duration_ns": length,
        "pid": 1000 + tape.process,
        "parent": tape.parent,
        "role": tape.role,
        "rank": tape.rank,
        "local_rank": tape.rank,
        "world_size": tape.world,
        "worker": tape.worker,
        "host": tape.host,
        "command": "python train.py",
        "recorded": tape.role != "helper",
        "clock_offset_ns": 0,
        "clock_drift_ppm": 0.0,
    }


def _table(name: str, frame: pd.DataFrame) -> pa.Table:
    """A frame as rows of a table; numbers that are missing are -1, words "", flags False."""
    columns = []
    for column in TABLES[name]:
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        unknown: object = "" if pa.types.is_string(kind) else False if pa.types.is_boolean(kind) else -1
        if column.name == "depth":
            unknown = 0
        if column.name in frame:
            values = pa.array(frame[column.name].where(frame[column.name].notna(), unknown), type=kind, safe=False)
        else:
            values = pa.array([unknown] * len(frame), type=kind)
        columns.append(values)
    return pa.table(columns, names=TABLES[name].names)
