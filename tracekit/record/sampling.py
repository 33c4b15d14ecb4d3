"""The threads of the supervisor: one samples counters, one moves evidence from spools to the run."""

import math
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol

from tracekit.errors import RunError
from tracekit.record.tree import descendants
from tracekit.run.manifest import Manifest, Missing

if TYPE_CHECKING:  # they take a second of CPU time to import: sampling begins before
    import pyarrow as pa

    from tracekit.record.flush import Flusher
    from tracekit.record.hangs import Hangs
    from tracekit.record.processes import Processes

# Who the processes are is told in the run whenever the recording has got twice as old, and every minute.
_TELL_EVERY_NS = 60_000_000_000
# A flush takes some 20 ms, of which little goes with the number of rows.
FLUSH_INTERVAL_S = 5.0
_TREE_INTERVAL_S = 1.0
# Drained tables (one a flush) that wait while nothing can be written: five minutes of counters.
_MOST_WAITING = 60


class Sampler(Protocol):
    """A collector that reads from outside, in the supervisor."""

    def watch(self, pids: Iterable[tuple[int, int]]) -> None: ...
    def sample(self, now_ns: int, complete: bool = False) -> None: ...
    def drain(self) -> "pa.Table": ...
    def missing(self) -> list[Missing]: ...
    def close(self) -> None: ...


class Beside(Sampler, Protocol):
    """Something that goes on beside the program, and tells what it did; `labels`: what it consists of."""

    labels: list[str]

    def start(self, has_begun: Callable[[], bool]) -> None:
        """Begin; what is about the loop of the program, as soon as this tells that it has begun."""


class Recording:
    """Samples from `start` on, and flushes from `flush_by` on, until told to stop. A failure is noted in the manifest
    and never reaches the program."""

    def __init__(self, manifest: Manifest, samplers: dict[str, Sampler], root_pid: int, hz: float) -> None:
        self._flusher: Flusher | None = None
        self._hangs: Hangs | None = None
        self._manifest = manifest
        self._samplers = samplers
        self._root = root_pid
        self._hz = hz
        self._stop = threading.Event()
        self._pending: list[pa.Table] = []
        self._threads: list[threading.Thread] = []
        self._began = time.perf_counter_ns()
        self._tell_at: float = self._began

    def start(self) -> None:
        """Sample the program, and from `flush_by` on its children, too."""
        self._begin("sampler", 1 / self._hz, self._sample)

    def flush_by(self, flusher: "Flusher", hangs: "Hangs | None" = None) -> None:
        self._flusher, self._hangs = flusher, hangs
        self._begin("flusher", FLUSH_INTERVAL_S, partial(self._flush, flusher))

    def stop(self) -> None:
        """End the threads and close the samplers."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._drain()
        for name, sampler in list(self._samplers.items()):
            self._guarded(name, partial(self._end, sampler))

    def last_sample(self) -> None:
        """Sample everything, as the program has ended but can still be read."""
        self._sample_all(complete=True)

    def rest(self) -> "dict[str, pa.Table]":
        """The sampled rows that are not in the run yet."""
        if not self._pending:
            return {}
        import pyarrow as pa

        return {"counters": pa.concat_tables(self._pending)}

    def _begin(self, name: str, interval: float, act: Callable[[], None]) -> None:
        thread = threading.Thread(target=self._every, args=(interval, act), name=name)
        thread.start()
        self._threads.append(thread)

    def _every(self, interval: float, act: Callable[[], None]) -> None:
        due = time.monotonic() + interval
        while not self._stop.wait(max(due - time.monotonic(), 0)):
            act()
            due = max(due + interval, time.monotonic())

    _tree_seen = 0.0

    def _sample(self) -> None:
        if self._flusher is not None and time.monotonic() - self._tree_seen > _TREE_INTERVAL_S:
            self._tree_seen = time.monotonic()
            self._see_tree(self._flusher.processes)
        self._sample_all(complete=False)

    def _sample_all(self, complete: bool) -> None:
        # As the times of the program's own records: Unix time is set anew while a run goes on.
        now = time.perf_counter_ns() + self._manifest.clock_offset_ns
        for name, sampler in list(self._samplers.items()):
            self._guarded(name, partial(sampler.sample, now, complete))

    def _see_tree(self, processes: "Processes") -> None:
        now = time.perf_counter_ns()
        for pid, parent in descendants(self._root):
            processes.see(pid, parent, now)
        for name, sampler in list(self._samplers.items()):
            self._guarded(name, partial(sampler.watch, processes.living()))

    def _flush(self, flusher: "Flusher") -> None:
        self._drain()
        try:
            while flusher.flush(time.perf_counter_ns(), self.rest()):
                self._pending.clear()
            self._pending.clear()
            self._tell(flusher)
        except Exception as error:
            # The disk is full, say: what the spools hold waits there for the next pass; samples here, up to a limit.
            if len(self._pending) > _MOST_WAITING:
                del self._pending[0]
                self._manifest.add_missing("some counters", "for long nothing could be written", lost=True)
            if not isinstance(error, OSError):
                self._manifest.add_missing("what was not converted", f"{type(error).__name__}: {error}", lost=True)
        hangs = self._hangs
        if hangs is None:
            return
        try:
            hangs.look(time.perf_counter_ns())
        except (OSError, RunError):
            pass  # the next pass looks again
        except Exception as error:
            self._hangs = None
            self._manifest.add_missing("hangs, while they last", f"{type(error).__name__}: {error}")
            with suppress(OSError):
                hangs.forget()

    def _tell(self, flusher: "Flusher") -> None:
        now = time.perf_counter_ns()
        if now < self._tell_at:
            return
        try:
            flusher.tell(now)
            self._tell_at = now + min(now - self._began, _TELL_EVERY_NS)
        except OSError:
            pass  # after the next pass it is told
        except Exception as error:
            self._tell_at = math.inf
            self._manifest.add_missing("who the processes are, while they last", f"{type(error).__name__}: {error}")

    def _drain(self) -> None:
        for name, sampler in list(self._samplers.items()):
            self._guarded(name, partial(self._take, sampler))

    def _take(self, sampler: Sampler) -> None:
        table = sampler.drain()
        if table.num_rows:
            self._pending.append(table)

    def _end(self, sampler: Sampler) -> None:
        for note in sampler.missing():
            self._manifest.add_missing(note.what, note.why)
        sampler.close()

    def _guarded(self, name: str, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:
            self._samplers.pop(name, None)
            why = f"the collector failed and switched itself off: {type(error).__name__}: {error}"
            self._manifest.add_missing(name, why, lost=True)
