"""Counters of the recorded processes and of the machine, read from outside by the supervisor.

1. `watch` says which processes there are;
2. `sample`, ten times a second on one thread, reads raw totals and keeps them as they are;
3. `drain`, every few seconds on any thread, turns them into rows.

    counters = Counters(root_pid)
    counters.watch([(0, root_pid)])
    counters.sample(time.time_ns())
    table = counters.drain()

Of all collectors this one alone runs in the supervisor: it may import what the program must not.
"""

import errno
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from tracekit.record.rungs import Rung
from tracekit.run.manifest import Missing

from .gpus import Gpus
from .host import Host
from .perf_events import Opener, PerfEvents, open_event
from .procfs import ProcessReaders, probe
from .readings import Reader, Reading

if TYPE_CHECKING:
    import pyarrow as pa

_SECOND = 1_000_000_000
# Files that cost more are read this often; they count in clock ticks (10 ms), which is 1 % of a second.
_SELDOM_NS = _SECOND
# Finding the processes costs more than reading them: so much of the budget may be spent ahead.
_AHEAD_NS = 10 * _SECOND


class Counters:
    """Reads the ladder of counters; each row says which rung it came from.

    `budget` is the CPU time it may take, in seconds per second: when it needs more it reads less often, and says so.
    """

    def __init__(self, root_pid: int, budget: float = 0.005, opener: Opener = open_event) -> None:
        self._budget = budget
        self._lock = threading.Lock()
        self._readings: list[Reading] = []
        self._last: list[Reading] = []  # the last of each reader that were drained: where the next intervals begin
        self._wanted = {(0, root_pid)}
        self._processes: dict[tuple[int, int], ProcessReaders] = {}
        self._gone: set[tuple[int, int]] = set()
        self._perf = PerfEvents(opener)
        self._host = Host(root_pid, _affinity(root_pid))
        self._gpus = Gpus()
        self._own = probe()
        self._has_schedstat = self._own[0].available
        self._often = self._host.often
        self._seldom = [*self._host.seldom, *self._gpus.readers]
        self._seldom_due = 0
        self._started_ns: int | None = None
        self._troubles: dict[str, str] = {}
        self._asked = self._taken = self._unseen = 0
        self.cpu_ns = 0  # what all this has cost so far

    @property
    def pids(self) -> set[int]:
        """The processes that are watched."""
        return {pid for _, pid in self._wanted}

    def watch(self, pids: Iterable[tuple[int, int]]) -> None:
        """Watch these processes (index in the run, pid) from the next sample on, and no others."""
        self._wanted = set(pids)

    def sample(self, now_ns: int, complete: bool = False) -> None:
        """Read the totals; `now_ns` is Unix time. `complete`, for the last sample: read all, due or not."""
        with self._lock:
            began = time.thread_time_ns()
            self._started_ns = self._started_ns or now_ns
            self._asked += 1
            if complete or self.cpu_ns <= (now_ns - self._started_ns + _AHEAD_NS) * self._budget:
                self._taken += 1
                self._take(now_ns, complete)
            self.cpu_ns += time.thread_time_ns() - began

    def drain(self) -> "pa.Table":
        """The rows since the last call, as the table `counters`."""
        convert = _converter()
        began = time.thread_time_ns()
        with self._lock:
            readings, self._readings = self._last + self._readings, []
            last = {reading[1]: reading for reading in readings}
            self._last = [reading for reader, reading in last.items() if not reader.closed]
        table, fallen = convert(readings)
        with self._lock:
            for name in fallen:
                self._troubles[f"some intervals of {name}"] = "its total went backwards"
            self.cpu_ns += time.thread_time_ns() - began
        return table

    def rungs(self) -> list[Rung]:
        """Every rung of the ladder: whether it is there, why not, and what would bring it."""
        return [*self._perf.rungs, *self._own, *self._host.rungs, self._gpus.rung]

    def missing(self) -> list[Missing]:
        """What could not be read so far, and why. Call it at the end: its figures move while sampling goes on."""
        with self._lock:
            notes = {rung.name: rung.why for rung in self.rungs() if rung.expected and not rung.available}
            notes |= self._troubles
            refusal = self._perf.refusal()
            if refusal is not None:
                notes["perf events of some threads"] = refusal
            if self._unseen:
                notes["processes that ended before they could be read"] = f"{self._unseen} of them"
            left_out = self._asked - self._taken
            if left_out:
                limit = f"{self._budget:.1%} of a CPU"
                notes["some samples"] = f"{left_out} of {self._asked} were left out to stay within {limit}"
        return [Missing(f"counters: {what}", why) for what, why in notes.items()]

    def close(self) -> None:
        """Let go of everything that is open. What was sampled can still be drained."""
        with self._lock:
            for process in self._processes.values():
                process.end(time.time_ns())
            self._processes = {}
            self._often = self._seldom = []
            self._host.close()
            self._gpus.close()

    def _take(self, now_ns: int, complete: bool) -> None:
        self._find(now_ns)
        if complete or now_ns >= self._seldom_due:
            self._seldom_due = now_ns + _SELDOM_NS
            self._read(self._seldom, now_ns)
        self._read(self._often, now_ns)

    def _read(self, readers: list[Reader], now_ns: int) -> None:
        keep = self._readings.append
        for reader in readers:
            try:
                keep((now_ns, reader, reader.read()))
            except OSError as error:
                self._lost(reader, error, now_ns)

    def _lost(self, reader: Reader, error: OSError, now_ns: int) -> None:
        """A reading failed: a thread or process ended, or something is no longer allowed."""
        self._note(reader.kind.source, error)
        reader.close()
        for process in self._processes.values():
            if process.index == reader.process:
                process.lost(reader, now_ns)
                process.changed = True

    def _find(self, now_ns: int) -> None:
        """Take up the processes and threads that began, let go of those that ended."""
        wanted = self._wanted
        changed = False
        for key in wanted - self._processes.keys() - self._gone:
            self._open(key, now_ns)
        for key, process in list(self._processes.items()):
            try:
                if key not in wanted:
                    raise ProcessLookupError
                self._readings += process.look(now_ns)
            except OSError:
                self._readings += process.end(now_ns)
                del self._processes[key]
                self._gone.add(key)
                changed = True
            changed = changed or process.changed
            process.changed = False
        self._gone &= wanted
        if changed:
            self._list_readers()

    def _open(self, key: tuple[int, int], now_ns: int) -> None:
        index, pid = key
        try:
            is_known = any(pid == other for _, other in self._processes)  # under the index of what it was before
            process = ProcessReaders(index, pid, now_ns, self._perf, self._note, self._has_schedstat, is_known)
            self._readings += process.beginnings()
            self._processes[key] = process
        except OSError:
            self._gone.add(key)
            self._unseen += 1

    def _list_readers(self) -> None:
        processes = self._processes.values()
        self._often = [*self._host.often, *(reader for process in processes for reader in process.often)]
        seldom = [*self._host.seldom, *self._gpus.readers]
        self._seldom = [*seldom, *(reader for process in processes for reader in process.seldom)]
        self._seldom = [reader for reader in self._seldom if not reader.closed]
        self._often = [reader for reader in self._often if not reader.closed]

    def _note(self, source: str, error: OSError) -> None:
        """Remember what could not be read; that a thread or a process has ended is no trouble."""
        if error.errno not in _ENDED:
            self._troubles[f"{source}, in places"] = error.strerror or str(error)


_ENDED = (errno.ESRCH, errno.ENOENT, errno.EINVAL)  # EINVAL: of the clock of a process that is gone


@cache
def _converter() -> Callable[[Sequence[Reading]], "tuple[pa.Table, list[str]]"]:
    """What turns readings into the table. Its imports, and those of its first use, are no cost of sampling."""
    from .counter_table import counter_table

    counter_table([])
    return counter_table


def _affinity(pid: int) -> set[int]:
    try:
        return os.sched_getaffinity(pid)
    except OSError:
        return os.sched_getaffinity(0)
