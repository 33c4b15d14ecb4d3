"""Counters of a process and its threads from /proc: what is read, how its text is parsed, and who is alive.

Everything is opened below the folder of the process once, so a recycled pid is never mistaken for it.
"""

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.record.rungs import Rung

from .perf_events import Group, PerfEvents
from .readings import Columns, Fields, Raw, Reader, Reading, one_integer

if TYPE_CHECKING:
    from .readings import Integers

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_NO_TICKS = b"0 () " + b"0 " * 20  # a `stat` of nothing done yet
_CPU_CLOCK_OF_PROCESS = 2  # CPUCLOCK_SCHED of include/linux/posix-timers_types.h: what clock_getcpuclockid(3) gives

Note = Callable[[str, OSError], None]  # what could not be read, and the error


def _numbers(columns: int) -> Callable[[Sequence[Raw]], "Integers"]:
    """Parses texts of so many blank-separated integers each, all at once."""

    def matrix(raws: Sequence[Raw]) -> "Integers":
        import numpy as np

        text = b" ".join(raw for raw in raws if isinstance(raw, bytes))
        return np.fromstring(text, dtype=np.int64, sep=" ").reshape(-1, columns)

    return matrix


def _resident_bytes(raws: Sequence[Raw]) -> "Integers":
    return _numbers(7)(raws)[:, 1:2] * _PAGE_BYTES


def parse_stat(stat: bytes) -> dict[str, int]:
    """CPU time by mode from a `/proc/<pid>/stat`; the name in it may hold blanks and parentheses."""
    fields = stat.rpartition(b")")[2].split()
    return {"process.user_ns": int(fields[11]) * _TICK_NS, "process.system_ns": int(fields[12]) * _TICK_NS}


def parse_thread_stat(stat: bytes) -> dict[str, int]:
    """CPU time of a thread in clock ticks, from its `stat`: where there is no schedstat."""
    return {"thread.cpu_ns": sum(parse_stat(stat).values())}


def parse_start_ns(stat: bytes, now_ns: int, boot_ns: int) -> int:
    """The Unix time at which the process of a `/proc/<pid>/stat` started, to a clock tick, never after now.

    `boot_ns` is CLOCK_BOOTTIME at `now_ns`.
    """
    since_boot = int(stat.rpartition(b")")[2].split()[19]) * _TICK_NS
    return min(now_ns, now_ns - boot_ns + since_boot)


def parse_io(text: bytes) -> dict[str, int]:
    """Bytes moved, from a `/proc/<pid>/io`."""
    values = dict(line.split(b":", 1) for line in text.splitlines())
    return {
        "process.read_bytes": int(values[b"read_bytes"]),
        "process.written_bytes": int(values[b"write_bytes"]),
        "process.read_call_bytes": int(values[b"rchar"]),
        "process.write_call_bytes": int(values[b"wchar"]),
    }


def parse_switches(status: bytes) -> dict[str, int]:
    """Context switches of a thread from its `/proc/<pid>/task/<tid>/status`: the last two lines, whatever its name."""
    voluntary, involuntary = status.rpartition(b"\nvoluntary_ctxt_switches:")[2].split(b"\n", 1)
    return {
        "thread.voluntary_switches": int(voluntary),
        "thread.involuntary_switches": int(involuntary.partition(b":")[2]),
    }


SCHEDSTAT = Columns("schedstat", ("thread.cpu_ns", "thread.run_delay_ns", "thread.slices"), _numbers(3))
TICKS = Fields("/proc/pid/task/stat", lambda raw: parse_thread_stat(_bytes(raw)))
SWITCHES = Fields("/proc/pid/task/status", lambda raw: parse_switches(_bytes(raw)))
CPU_CLOCK = Columns("process CPU clock", ("process.cpu_ns",), one_integer)
MEMORY = Columns("/proc/pid/statm", ("process.rss_bytes",), _resident_bytes)
THREADS = Columns("/proc/pid/task", ("process.threads",), one_integer)
STORAGE = Fields("/proc/pid/io", lambda raw: parse_io(_bytes(raw)))
MODES = Fields("/proc/pid/stat", lambda raw: parse_stat(_bytes(raw)))


def _open_ones(*groups: list[Reader]) -> list[Reader]:
    return [reader for group in groups for reader in group if not reader.closed]


def _beginnings(readers: list[Reader]) -> list[Reading]:
    return [(reader.since, reader, reader.zero) for reader in readers if reader.since is not None]


def _bytes(raw: Raw) -> bytes:
    assert isinstance(raw, bytes)
    return raw


def probe(own: Path = Path("/proc/thread-self")) -> list[Rung]:
    """The rungs that any thread finds below its own folder in /proc: schedstat first, then storage."""
    schedstat = "CPU time and run-queue delay of threads (schedstat)"
    storage = "bytes moved by processes (/proc/pid/io)"
    remedy = "a kernel with CONFIG_SCHED_INFO; until then CPU time is counted in clock ticks"
    rungs: list[Rung] = []
    try:
        # A kernel that keeps no account shows zeros; this thread is running, so its own CPU time is not zero.
        kept = int((own / "schedstat").read_bytes().split()[0]) > 0
        rungs.append(Rung(schedstat, kept, "" if kept else "the kernel keeps no account of it", "" if kept else remedy))
    except (OSError, ValueError, IndexError):
        rungs.append(Rung(schedstat, False, "the kernel shows none", remedy))
    try:
        (own / "io").read_bytes()
        rungs.append(Rung(storage, True))
    except OSError as error:
        rungs.append(Rung(storage, False, error.strerror or str(error), "a kernel with CONFIG_TASK_IO_ACCOUNTING"))
    return rungs


def _read_at(folder: int, path: str, size: int = 8192) -> bytes:
    """A small file below an open folder: for what is read so seldom that keeping it open is not worth a descriptor."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        return os.read(descriptor, size)
    finally:
        os.close(descriptor)


class ProcessReaders:
    """The readers of one process and its threads; of one that `is_known` what it did before is told by other readers.
    Raises OSError when the process is gone already."""

    def __init__(
        self,
        index: int,
        pid: int,
        now_ns: int,
        perf: PerfEvents,
        note: Note,
        has_schedstat: bool = True,
        is_known: bool = False,
    ) -> None:
        self.index = index
        self._is_known = is_known
        self.changed = False  # set when threads came or went; whoever keeps `often` and `seldom` resets it
        self._perf = perf
        self._note = note
        self._has_schedstat = has_schedstat
        self._folder = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            boot_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            self._since = parse_start_ns(_read_at(self._folder, "stat"), now_ns, boot_ns)
            self._tasks = os.open("task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._folder)
        except OSError:
            os.close(self._folder)
            raise
        self._names: list[str] = []
        self._threads: dict[int, list[Reader]] = {}
        self._seldom: dict[int, list[Reader]] = {}
        self._count = Reader(THREADS, index, 0, lambda: len(self._names))
        self._own = self._process_readers(pid)
        self._own_seldom = self._file(MODES, "stat", 1024, _NO_TICKS)

    @property
    def often(self) -> list[Reader]:
        """What is cheap and changes fast; of a thread schedstat before perf: see `lost`."""
        return _open_ones(self._own, *self._threads.values())

    @property
    def seldom(self) -> list[Reader]:
        """What costs more to read, or moves in clock ticks."""
        return _open_ones(self._own_seldom, *self._seldom.values())

    def look(self, now_ns: int) -> list[Reading]:
        """Take up threads that began and let go of those that ended; returns what is to be kept of that.

        That is the number of threads, zero for the totals of threads that were not there at the last look, and the last
        totals of those that ended. Raises OSError when the process is gone.
        """
        names = os.listdir(self._tasks)
        if not names:  # some kernels show a process that is gone as one without threads
            raise ProcessLookupError
        kept: list[Reading] = []
        if names != self._names:
            self._names = names
            self.changed = True
            alive = {int(name) for name in names}
            for thread in self._threads.keys() - alive:
                kept += self._end_thread(thread, now_ns)
            for thread in sorted(alive - self._threads.keys()):
                self._threads[thread] = self._thread_readers(thread)
                self._seldom[thread] = [self._switches(thread)]
                if not self._is_known:
                    kept += _beginnings(self._threads[thread] + self._seldom[thread])
        self._since, self._is_known = now_ns, False
        kept.append((now_ns, self._count, self._count.read()))
        return kept

    def beginnings(self) -> list[Reading]:
        """Zero for the totals of the process itself, at its start: what it did before it was found is not lost."""
        return [] if self._is_known else _beginnings(self._own + self._own_seldom)

    def lost(self, reader: Reader, now_ns: int) -> None:
        """A reading failed: if a thread ended, its perf events, which stay, are now read for the last time."""
        for other in self._threads.get(reader.thread, []):
            if other is not reader:
                other.ended_ns = now_ns

    def end(self, now_ns: int) -> list[Reading]:
        """Let go of everything; returns the last totals that can still be had."""
        kept = [reading for thread in list(self._threads) for reading in self._end_thread(thread, now_ns)]
        for reader in self._own + self._own_seldom:
            reader.close()
        os.close(self._tasks)
        os.close(self._folder)
        return kept

    def _end_thread(self, thread: int, now_ns: int) -> list[Reading]:
        """Perf events can be read after their thread has ended, everything else cannot."""
        kept: list[Reading] = []
        for reader in self._threads.pop(thread) + self._seldom.pop(thread):
            if isinstance(reader.kind, Group) and reader.ended_ns < 0:
                reader.ended_ns = now_ns
                kept.append((now_ns, reader, reader.read()))
            reader.close()
        return kept

    def _thread_readers(self, thread: int) -> list[Reader]:
        if self._has_schedstat:
            cpu_time = self._file(SCHEDSTAT, f"task/{thread}/schedstat", 96, b"0 0 0", thread)
        else:
            cpu_time = self._file(TICKS, f"task/{thread}/stat", 1024, _NO_TICKS, thread)
        return [*cpu_time, *self._perf.attach(self.index, thread)]

    def _switches(self, thread: int) -> Reader:
        zero = b"\nvoluntary_ctxt_switches:0\nnonvoluntary_ctxt_switches:0"
        read = partial(_read_at, self._folder, f"task/{thread}/status")
        return Reader(SWITCHES, self.index, thread, read, self._since, zero)

    def _process_readers(self, pid: int) -> list[Reader]:
        clock = (~pid << 3) | _CPU_CLOCK_OF_PROCESS
        zero_io = b"rchar:0\nwchar:0\nread_bytes:0\nwrite_bytes:0"
        return [
            Reader(CPU_CLOCK, self.index, 0, partial(time.clock_gettime_ns, clock), self._since, 0),
            *self._file(MEMORY, "statm", 192),
            *self._file(STORAGE, "io", 512, zero_io),
        ]

    def _file(self, kind: Columns | Fields, path: str, size: int, zero: bytes = b"", thread: int = 0) -> list[Reader]:
        """A reader of a file kept open, as a list of one; [] where it cannot be read."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._folder)
            read = partial(os.pread, descriptor, size, 0)
            try:
                read()
            except OSError:
                os.close(descriptor)
                raise
        except OSError as error:
            self._note(kind.source, error)
            return []
        release = partial(os.close, descriptor)
        return [Reader(kind, self.index, thread, read, self._since if zero else None, zero, release)]
