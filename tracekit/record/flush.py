"""From the spool folder to the run's tables: while recording, at its end, and when salvaging."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from tracekit.record import convert
from tracekit.record.ledger import Ledger, Position
from tracekit.record.processes import Processes
from tracekit.record.spools import Spool, SpoolFolder, settings_taken
from tracekit.record.wire import Kind
from tracekit.run.manifest import Loader, Manifest, Torch, Wrapped
from tracekit.run.writer import PartWriter
from tracekit.settings.inside import ENDED_BUCKET_EXPLORATION, ENDED_PLAN, FORKED_WITH_ONE, is_of_threads, never_taken
from tracekit.traces.kineto import TraceError, load_kineto

# A part is written when it has so many rows, some MiB; what is left at the end of a pass is one more.
_ROWS_OF_A_PART = 1 << 17


_PROCESSES = "processes"
Told = Sequence[tuple[Spool, dict[str, Any]]]  # what each process says of itself


class _Rows:
    """The rows of one pass by table, of all processes together: a part costs some ms however few rows it has, and
    loader workers come and go with every epoch."""

    def __init__(self, writer: PartWriter) -> None:
        self._writer = writer
        self._gathered: dict[str, list[pa.Table]] = {}

    def add(self, name: str, table: pa.Table) -> None:
        gathered = self._gathered.setdefault(name, [])
        gathered.append(table)
        if sum(each.num_rows for each in gathered) >= _ROWS_OF_A_PART:
            self._write(name)

    def write(self) -> None:
        for name in list(self._gathered):
            self._write(name)

    def _write(self, name: str) -> None:
        self._writer.write(name, pa.concat_tables(self._gathered.pop(name)).unify_dictionaries())


class Flusher:
    """Moves evidence from spools to Parquet parts. What cannot be written stays in the spool."""

    def __init__(self, run: Path, manifest: Manifest, spools: SpoolFolder, root_pid: int | None) -> None:
        self._manifest = manifest
        self._spools = spools
        self._writer = PartWriter(run, manifest.host, manifest.first_process)
        self._ledger = Ledger.load(spools.folder)
        self._writer.discard_after(self._ledger.last_part)
        self.processes = Processes(spools, root_pid, self._ledger.processes)
        self._run = run
        self._done: set[str] = set()  # the stems of processes that have ended and of which all is in the tables
        self._welcome()

    def _welcome(self) -> None:
        self.processes.welcome()
        for stem, position in self._ledger.positions.items():
            spool = self._spools.spools.get(stem)
            if spool is not None and (spool.segment, spool.offset) < (position.segment, position.offset):
                spool.go_on_from(position.segment, position.offset)

    def flush(self, now: int, others: dict[str, pa.Table] | None = None) -> bool:
        """One pass over all processes, and `others`: rows that came another way. True: there is more to read at once.

        Raises OSError when the disk does not take it; then nothing was consumed and the pass can be repeated.
        """
        self._welcome()
        self.processes.check_alive(now)
        rows = _Rows(self._writer)
        try:
            for name, table in (others or {}).items():
                rows.add(name, table)
            left = [spool for stem, spool in self._spools.spools.items() if stem not in self._done]
            # Those that seemed to have ended and write on, as in a PID namespace of their own: few of all there ever
            # were, which are not to be looked for one by one.
            on = (self._spools.spools[stem] for stem in self._done & self._spools.in_segments)
            left += [spool for spool in on if spool.has_more()]
            read = [self._read_one(spool, rows) for spool in left]
            rows.write()
            positions = {spool.stem: Position(segment, offset) for spool, segment, offset, _ in read}
            ledger = Ledger(self._writer.last, self._ledger.positions | positions, self.processes.all)
            ledger.save(self._spools.folder)
        except BaseException:
            self._writer.discard_after(self._ledger.last_part)
            raise
        self._ledger = ledger
        more = False
        for spool, segment, offset, windows in read:
            more |= segment > spool.segment + 1
            spool.go_on_from(segment, offset)
            if self.processes.of(spool).ended is not None and not spool.has_more():
                self._done.add(spool.stem)
                spool.forget_names()
            for window in windows:
                window.unlink(missing_ok=True)
        return more

    def tell(self, now: int) -> None:
        """Say in the run who the processes are so far and how they were set: its end, which says it again, may never
        come. Raises OSError when the disk does not take it."""
        self._write_processes(now)
        self._writer.drop_superseded(_PROCESSES)
        self._describe([(spool, spool.status()) for spool in self._spools.spools.values()])
        self._manifest.save(self._manifest.path_in(self._run))

    def _write_processes(self, now: int) -> None:
        host, clock_offset_ns = self._manifest.host, self._manifest.clock_offset_ns
        self._writer.write(_PROCESSES, self.processes.table(host, clock_offset_ns, now), anew=True)

    def _read_one(self, spool: Spool, rows: _Rows) -> tuple[Spool, int, int, list[Path]]:
        records, segment, offset = spool.read(ended=self.processes.of(spool).ended is not None)
        clock_offset = self._manifest.clock_offset_ns
        for name, table in convert.tables(records, spool.names, spool.process, clock_offset).items():
            rows.add(name, table)
        windows = []
        for record in records[records["kind"] == Kind.WINDOW]:
            shift = int(record["c"]) - int(record["b"]) + clock_offset
            windows.append(self._convert_window(spool, int(record["a"]), shift, rows))
        return spool, segment, offset, windows

    def _convert_window(self, spool: Spool, number: int, shift_ns: int, rows: _Rows) -> Path:
        path = spool.window(number)
        what = f"profiler window {number} of process {self._manifest.first_process + spool.process}"
        if not path.exists():
            self._manifest.add_missing(what, "its trace is gone", lost=True)
        else:
            try:
                trace = load_kineto(path)
                tables = list(trace.tables(process=spool.process, window=number, shift_ns=shift_ns))
            except Exception as error:  # also for want of memory: it would fail again, and nothing else get through
                why = str(error) if isinstance(error, TraceError) else f"{type(error).__name__}: {error}"
                self._manifest.add_missing(what, why, lost=True)
                return path
            for table in tables:
                rows.add("operators", table)
            if trace.unreadable:
                some = f"{trace.unreadable} events of {what}"
                self._manifest.add_missing(some, "torch gave them times that cannot be", lost=True)
        return path

    def finish(self, now: int) -> None:
        """Take everything that is left, of ended and of still living processes, and write who they were."""
        while self.flush(now):
            pass
        for spool in self._spools.that_communicate():
            for name, table in convert.tables(
                spool.entered(), spool.names, spool.process, self._manifest.clock_offset_ns
            ).items():
                self._writer.write(name, table)
        self._write_processes(now)
        told = [(spool, spool.status()) for spool in self._spools.spools.values()]
        self._describe(told)
        self._note_missing(told)

    def _describe(self, told: Told) -> None:
        """Take over into the manifest how the processes say that they were set, as far as that is so for all."""
        manifest = self._manifest
        has_torch = [(spool, status) for spool, status in told if status.get("facts", {}).get("torch")]
        main = min(has_torch, key=lambda each: _precedence(*each), default=None)
        manifest.cpu.of_program = _cpus_of([status for _, status in has_torch], manifest.cpu.affinity)
        if main is not None and not _is_worker(main[1]):
            facts, shares = main[1]["facts"], main[1].get("overhead", {})
            manifest.torch = Torch(**facts["torch"])
            manifest.loaders = _loaders(facts.get("loaders"))
            manifest.ddp = _wrapped(facts.get("ddp"))
            manifest.overhead.program = shares.get("program", 0.0)
            manifest.overhead.profiler = shares.get("profiler", 0.0)

    def _note_missing(self, told: Told) -> None:
        """Take over what they say that is missing; once, at the end, as it grows until then."""
        manifest = self._manifest
        most_steps = max((_steps(status) for _, status in told if not _is_worker(status)), default=0)
        taken: set[str] = set()
        for spool, status in told:
            process = manifest.first_process + spool.process
            who = f" in process {process}"
            failure = spool.failure()
            if failure:
                manifest.add_missing("everything" + who, f"the recorder could not start there: {failure}", lost=True)
            for collector, why in _texts(status.get("failed")).items():
                manifest.add_missing(
                    f"{collector}{who}", f"the collector failed and switched itself off: {why}", lost=True
                )
            is_beside = 2 * _steps(status) < most_steps  # a helper may have thread counts of its own
            for what, why in _texts(status.get("missing")).items():
                if what == FORKED_WITH_ONE and not is_beside:
                    what = ENDED_PLAN
                if not is_of_threads(what):
                    manifest.add_missing(what, why, process=process if what == ENDED_BUCKET_EXPLORATION else None)
                elif not _is_worker(status):  # one that loads has no plan, and what its parent has said
                    manifest.add_missing(what + who if is_beside else what, why)
            if status.get("dropped"):
                manifest.add_missing(f"{status['dropped']} records{who}", "the spool was full", lost=True)
            taken |= settings_taken(status)
        if manifest.torch is not None:
            for what, why in never_taken(manifest.settings, taken).items():
                manifest.add_missing(what, why)


def _cpus_of(statuses: Sequence[dict[str, Any]], affinity: list[int]) -> list[int]:
    """Those of `affinity` that these processes were started on between them, if they say so; [] where that is all."""
    mask = 0
    for status in statuses:
        try:
            mask |= int(status["facts"]["cpus"], base=16)
        except (KeyError, TypeError, ValueError):
            return []
    started_on = [cpu for cpu in affinity if mask >> cpu & 1]
    return [] if started_on == affinity else started_on


def _loaders(facts: Any) -> dict[str, Loader]:
    """What a process said of its loaders; a program can give them any attribute, as 1 for true."""
    found = {}
    for name, told in facts.items() if isinstance(facts, dict) else ():
        with contextlib.suppress(msgspec.ValidationError):
            found[str(name)] = msgspec.convert(told, Loader, strict=False)
    return found


def _wrapped(facts: Any) -> list[Wrapped]:
    """What a process said of its models under DistributedDataParallel."""
    try:
        return msgspec.convert(facts or [], list[Wrapped])
    except msgspec.ValidationError:
        return []


def _is_worker(status: dict[str, Any]) -> bool:
    """Whether a process loads batches for another one."""
    return "worker" in status.get("facts", {})


def _precedence(spool: Spool, status: dict[str, Any]) -> tuple[int, ...]:
    """The process with the least speaks for its host, as in the analysis that which stands for the run: the lowest rank
    with steps, of its last attempt; else who has most steps."""
    steps, rank = _steps(status), status["facts"].get("rank", -1)
    is_rank = isinstance(rank, int) and rank >= 0 and not _is_worker(status)
    if steps and is_rank:
        return 0, rank, -spool.process
    return 1 + _is_worker(status), -steps, not is_rank, spool.process  # a rank rather than its launcher


def _steps(status: dict[str, Any]) -> int:
    return int(status.get("steps", 0))


def _texts(value: Any) -> dict[str, str]:
    return {str(name): str(text) for name, text in value.items()} if isinstance(value, dict) else {}
