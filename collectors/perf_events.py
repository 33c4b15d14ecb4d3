"""Per-thread perf events by the kernel's own call: hardware events where the machine has them, software events.

A group of events is opened for one thread and read with one call. `perf_event_open(2)` is the source of every number
below. Opening goes through `opener`, so that tests can play every machine.
"""

import ctypes
import errno
import os
import platform
import resource
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tracekit.record.rungs import Rung

from .readings import Decoded, Raw, Reader, long_form

_SYSTEM_CALL = {"x86_64": 298, "aarch64": 241, "ppc64le": 319, "s390x": 331, "riscv64": 241}
_ATTRIBUTES_BYTES = 128
# What a read returns: the number of events, the ns wanted and counted, then the totals of the whole group.
_TOTAL_TIME_ENABLED, _TOTAL_TIME_RUNNING, _GROUP = 1, 2, 8
_EXCLUDE_KERNEL = 1 << 5
_CLOSE_ON_EXEC = 8
_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")


@dataclass(frozen=True)
class Event:
    """An event of perf_event_open(2). `in_kernel`: it happens in the kernel, so counting user mode alone gives 0."""

    counter: str
    type: int
    config: int
    in_kernel: bool = False


HARDWARE = (
    Event("perf.cycles", 0, 0),
    Event("perf.instructions", 0, 1),
    Event("perf.cache_misses", 0, 3),
    Event("perf.branch_misses", 0, 5),
)
SOFTWARE = (
    Event("perf.task_clock_ns", 1, 1),
    Event("perf.page_faults", 1, 2),
    Event("perf.context_switches", 1, 3, in_kernel=True),
    Event("perf.migrations", 1, 4, in_kernel=True),
)

# (event, thread or 0 for the caller, file descriptor of the group's leader or -1, user mode only) → file descriptor
Opener = Callable[[Event, int, int, bool], int]


def open_event(event: Event, thread: int, leader: int, user_only: bool) -> int:
    """Open an event of a thread on every CPU; counting starts at once. Raises OSError."""
    number = _SYSTEM_CALL.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"the number of perf_event_open on {platform.machine()} is not known")
    format_ = _TOTAL_TIME_ENABLED | _TOTAL_TIME_RUNNING | _GROUP
    flags = _EXCLUDE_KERNEL if user_only else 0
    attributes = struct.pack("<IIQQQQQ", event.type, _ATTRIBUTES_BYTES, event.config, 0, 0, format_, flags)
    buffer = ctypes.create_string_buffer(attributes, _ATTRIBUTES_BYTES)
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.syscall(number, buffer, thread, -1, leader, _CLOSE_ON_EXEC)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(descriptor)


@dataclass(frozen=True)
class Group:
    """The events of one sort that this machine counts. The kind (see readings) of their readings."""

    source: str
    events: tuple[Event, ...]
    user_only: bool

    @property
    def read_bytes(self) -> int:
        return 8 * (3 + len(self.events))

    def decode(self, raws: Sequence[Raw]) -> Decoded:
        import numpy as np

        buffer = b"".join(raw for raw in raws if isinstance(raw, bytes))
        matrix = np.frombuffer(buffer, dtype="<i8").reshape(-1, 3 + len(self.events))
        decoded = long_form([event.counter for event in self.events], np.ascontiguousarray(matrix[:, 3:]))
        decoded.enabled = np.repeat(matrix[:, 1], len(self.events))
        decoded.running = np.repeat(matrix[:, 2], len(self.events))
        return decoded


class PerfEvents:
    """What perf events this machine and this user have, and a reader for each thread and group."""

    def __init__(self, opener: Opener = open_event) -> None:
        self._opener = opener
        self.rungs: list[Rung] = []
        self._hardware = self._probe("hardware perf events", "perf hardware", HARDWARE)
        self._software = self._probe("software perf events", "perf software", SOFTWARE)
        self._refused: OSError | None = None

    @property
    def groups(self) -> list[Group]:
        return [group for group in (self._software, self._hardware) if group is not None]

    def attach(self, process: int, thread: int) -> list[Reader]:
        """A reader for each group of events of a thread. One that ended is no error; refusals are kept."""
        readers: list[Reader] = []
        for group in self.groups:
            try:
                readers.append(self._reader(group, process, thread))
            except ProcessLookupError:
                pass
            except OSError as error:
                self._refused = error
        return readers

    def refusal(self) -> str | None:
        """Why some thread's events could not be opened though this machine has them; None when none was refused."""
        return None if self._refused is None else f"some threads have none: {_reason(self._refused)}"

    def _reader(self, group: Group, process: int, thread: int) -> Reader:
        descriptors: list[int] = []
        try:
            for event in group.events:
                leader = descriptors[0] if descriptors else -1
                descriptors.append(self._open(event, thread, leader, group.user_only))
        except OSError:
            _close(descriptors)
            raise
        read = partial(os.read, descriptors[0], group.read_bytes)
        return Reader(group, process, thread, read, release=partial(_close, descriptors))

    def _open(self, event: Event, thread: int, leader: int, user_only: bool) -> int:
        try:
            return self._opener(event, thread, leader, user_only)
        except OSError as error:
            if error.errno != errno.EMFILE or not _allow_more_files():
                raise
            return self._opener(event, thread, leader, user_only)

    def _probe(self, name: str, source: str, events: tuple[Event, ...]) -> Group | None:
        """The group of those events that open on this very thread, of user mode alone where the kernel is closed."""
        refusal: OSError | None = None
        for user_only in (False, True):
            found: list[Event] = []
            for event in events:
                if user_only and event.in_kernel:
                    continue
                try:
                    os.close(self._opener(event, 0, -1, user_only))
                    found.append(event)
                except OSError as error:
                    refusal = error
            if found:
                self.rungs.append(self._rung(name, events, found, user_only, refusal))
                return Group(source + (" (user mode)" if user_only else ""), tuple(found), user_only)
        why = _reason(refusal) if refusal else "no event asked for"
        self.rungs.append(Rung(name, False, why, _remedy(refusal)))
        return None

    def _rung(
        self, name: str, events: tuple[Event, ...], found: list[Event], user_only: bool, refusal: OSError | None
    ) -> Rung:
        lacking = [event.counter for event in events if event not in found]
        if not lacking:
            return Rung(name, True, "user mode only: " + _paranoid() if user_only else "")
        why = f"without {', '.join(lacking)}: {_reason(refusal) if refusal else 'not asked for'}"
        return Rung(name, True, why, _remedy(refusal))


def _close(descriptors: list[int]) -> None:
    for descriptor in reversed(descriptors):
        os.close(descriptor)


def _allow_more_files() -> bool:
    """Raise this process's soft limit of open files to the hard one; False when it stands there already.

    Four files a thread are soon more than the usual 1,024; the program has its own limit, set before.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return False
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        return False
    return True


def _paranoid() -> str:
    try:
        return f"kernel.perf_event_paranoid is {_PARANOID.read_text().strip()}"
    except OSError:
        return "the kernel has no perf_event_paranoid"


def _reason(error: OSError) -> str:
    if error.errno in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
        return "this machine does not count them (virtual machines often do not)"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"refused: {_paranoid()}, or a container's seccomp filter forbids the call"
    if error.errno == errno.ENOSYS:
        return "the kernel has no perf events"
    return error.strerror or str(error)


def _remedy(error: OSError | None) -> str:
    if error is None:
        return ""
    if error.errno in (errno.EACCES, errno.EPERM):
        return "ask for kernel.perf_event_paranoid <= 1, or CAP_PERFMON for the container"
    if error.errno in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
        return "run on bare metal, or on a machine whose hypervisor passes the PMU through"
    if error.errno == errno.EMFILE:
        return "raise the limit of open files (ulimit -n)"
    return ""
