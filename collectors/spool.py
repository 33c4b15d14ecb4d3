"""The spool: where the records of one process go. Format and files: `tracekit.record.wire`.

Segments are mapped without keeping a file descriptor (the program may close them all, and a number of ours that it
reuses must not be closed by us), and their disk space is reserved before they are mapped (a full disk would otherwise
kill the program with SIGBUS at the first touch).
"""

import ctypes
import itertools
import mmap
import os
import threading
from collections import deque
from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns as clock

from tracekit.record.wire import FIRST_RECORDS, NAME_LENGTH, RECORD, SEGMENT_RECORDS

# The disk that one process may take while nobody consumes its segments: 128 MiB, 2 million records.
MAX_SEGMENTS = 128
# While nothing can be written, this many records are dropped before looking again.
_DROPPED_AT_ONCE = 1024
# A process that is killed loses what it has noted since its last step; in a long validation that shall be little.
_MOST_NOTES = 32

Record = tuple[int, int, int, int, int, int, int, int, int, int, int]  # the fields of `tracekit.record.wire.RECORD`

_pack = RECORD.pack_into
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value


class ThreadState:
    """What is kept per thread: its kernel id, how many module calls are open, the thread count that is set (0: torch's
    own), and whose backward pass set it."""

    __slots__ = ("count", "depth", "passage", "tid")

    def __init__(self) -> None:
        self.tid = threading.get_native_id()
        self.depth = 0
        self.count = 0
        self.passage: object = None


class _Other(threading.local):
    def __init__(self) -> None:
        self.state = ThreadState()


class Threads:
    """The states of all threads. That of the thread which came first, as a rule the only one that runs modules, is
    found without looking into thread-local storage, which costs several times as much. What is called in every step
    looks for `first_ident` itself, for a frame of Python more takes 8 us there.
    """

    def __init__(self) -> None:
        self._others = _Other()
        self.start_anew()

    def start_anew(self) -> None:
        """At the start and in a forked child: the thread that calls comes first, with no call open. The parent's other
        threads are not there."""
        self.first = ThreadState()
        self.first_ident = get_ident()

    def current(self) -> ThreadState:
        """The state of the thread that calls."""
        return self.first if get_ident() == self.first_ident else self._others.state


threads = Threads()


class Mapped:
    """A new file, mapped; unmapped when the last writer lets go of it."""

    def __init__(self, path: str, size: int) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
            address = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, 0)
            if address == _FAILED:
                raise OSError(ctypes.get_errno(), "mmap")
        except BaseException:
            os.unlink(path)
            raise
        finally:
            os.close(descriptor)
        self._address = address
        self.buffer = (ctypes.c_char * size).from_address(address)

    def __del__(self, unmap: Callable[[int, int], int] = _libc.munmap) -> None:
        if hasattr(self, "buffer"):
            unmap(self._address, len(self.buffer))


class Segment:
    """Records of one file, all or a part of it."""

    def __init__(self, file: Mapped, records: int, offset: int = 0) -> None:
        self._file = file  # mapped as long as this lives
        self.buffer = (ctypes.c_char * (records * RECORD.size)).from_buffer(file.buffer, offset)
        self.slots = itertools.count()
        self.capacity = records


class _Nowhere:
    """Takes records that have no place on disk; they are counted and lost."""

    def __init__(self) -> None:
        self.buffer = ctypes.create_string_buffer(_DROPPED_AT_ONCE * RECORD.size)
        self.slots = itertools.count()
        self.capacity = _DROPPED_AT_ONCE

    def taken(self) -> int:
        """How many records came here."""
        kinds = self.buffer.raw[RECORD.size - 2 :: RECORD.size]  # the low byte of `kind`, which is 0 in no record
        return len(kinds) - kinds.count(0)


class Spool:
    """Writes the records of one process. Any thread may write; nothing waits and nothing raises for lack of space."""

    def __init__(self, folder: str, stem: str) -> None:
        self._path = os.path.join(folder, stem)
        # Reentrant: a signal handler of the program's may record while this thread is in here.
        self._lock = threading.RLock()
        self._names: dict[str, int] = {}
        self._listed: list[str] = []  # the names in the order of their ids
        self._on_disk = (0, 0)  # how many of them, and bytes
        self._names_of: list[tuple[str, int]] = []  # in whose files the first of them stand, and up to which number
        self._segment: Segment | _Nowhere | None = None
        self._number = 0
        self._waiting: deque[str] = deque()
        self._dropped = 0
        self._noted: deque[Record] = deque()
        self.note: Callable[[Record], None] = self._noted.append
        self.before_writing: list[Callable[[], None]] = []  # they may note more; none raises

    @property
    def dropped(self) -> int:
        """How many records had no place on disk."""
        segment = self._segment
        return self._dropped + (segment.taken() if isinstance(segment, _Nowhere) else 0)

    def write(
        self,
        kind: int,
        name: int,
        start: int,
        end: int,
        a: int = 0,
        b: int = 0,
        c: int = 0,
        d: int = 0,
        depth: int = 0,
        direction: int = 0,
    ) -> None:
        """Write one record: some microseconds. `name` comes from `intern`; times are CLOCK_MONOTONIC ns."""
        self._noted.append((name, threads.current().tid, start, end, a, b, c, d, depth, direction, kind))
        self.write_noted()

    # `note` takes a record that can wait for `write_noted`, at the end of the step. Between two operations of the
    # program nothing of ours is left in the caches: each function and object that is fetched anew costs most, and a
    # note needs the fewest.

    def write_noted(self) -> int:
        """Write what has been noted; how many records that was."""
        for act in self.before_writing:
            act()
        noted, count = self._noted, 0
        while noted:
            segment = self._segment
            if segment is None:
                segment = self._roll(None)
            slot = next(segment.slots)
            while slot >= segment.capacity:
                segment = self._roll(segment)
                slot = next(segment.slots)
            try:
                _pack(segment.buffer, slot * 64, *noted.popleft())
            except IndexError:  # another thread took the last one; readers skip the slot
                break
            count += 1
        return count

    def forget_notes(self) -> None:
        self._noted.clear()

    def has_many_notes(self) -> bool:
        """Whether it is time to write them, whenever the step ends."""
        return len(self._noted) >= _MOST_NOTES

    def intern(self, name: str) -> int:
        """The id of a name in this process."""
        number = self._names.get(name)
        if number is None:
            with self._lock:
                number = self._names.get(name)
                if number is None:
                    # Written before anyone can use the id: no reader meets a record whose name is not there yet.
                    self._listed.append(name)
                    self._write_names()
                    # Its place; a signal handler may have added others behind it.
                    place = next(place for place in reversed(range(len(self._listed))) if self._listed[place] is name)
                    number = self._names.setdefault(name, place)
        return number

    def _write_names(self) -> None:
        """Write those that are not on disk behind those that are."""
        count, end = self._on_disk
        fresh = self._listed[count:]
        data = _encoded(fresh)
        try:
            descriptor = os.open(self._path + ".names", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                # At a place of our own: what a full disk took only a part of is written over.
                if os.pwrite(descriptor, data, end) == len(data):
                    self._on_disk = count + len(fresh), end + len(data)
            finally:
                os.close(descriptor)
        except OSError:
            pass  # said by the reader, which meets ids without a name

    def _roll(self, full: Segment | _Nowhere | None) -> Segment | _Nowhere:
        """The next segment: on disk, or nowhere while the disk is full or nobody has consumed what waits."""
        with self._lock:
            if self._segment is not full and self._segment is not None:
                return self._segment  # another thread was quicker
            if isinstance(full, _Nowhere):
                self._dropped += full.capacity
            while self._waiting and not os.path.exists(self._waiting[0]):
                self._waiting.popleft()
            number = self._number
            path = f"{self._path}.{number:06d}.spool"
            fresh: Segment | _Nowhere
            try:
                if len(self._waiting) >= MAX_SEGMENTS:
                    raise OSError("the supervisor has not consumed the segments")
                if os.path.exists(path) and number == self._number:
                    os.unlink(path)  # a signal handler cut us short right after making it
                records = SEGMENT_RECORDS if number else FIRST_RECORDS
                fresh = Segment(Mapped(path, records * RECORD.size), records)
            except OSError:
                fresh = _Nowhere()
            if self._segment is full:  # else a signal handler that wrote meanwhile has made the next one
                self._segment = fresh
                if not isinstance(fresh, _Nowhere):
                    self._number = number + 1
                    self._waiting.append(path)
            assert self._segment is not None
            return self._segment

    def names_on_disk(self) -> list[tuple[str, int]]:
        """Where the names are by now, which a child that is forked need not write again: per file its stem, and up to
        which number."""
        return [*self._names_of, (os.path.basename(self._path), self._on_disk[0])]

    def continue_as(
        self, folder: str, stem: str, names_of: list[tuple[str, int]], first: Segment | None = None
    ) -> None:
        """After a fork: leave the parent's files, keep the names (their ids are in use), write under a new stem, and
        into this segment first.

        What was the parent's is kept as it is, its open segment too: to let go of it, it would have to be copied.
        """
        self._of_parent = self._segment, self._waiting, self._lock
        self._path = f"{folder}/{stem}"
        self._lock = threading.RLock()
        self._segment = first
        self._number = 0 if first is None else 1
        self._waiting = deque()
        self._dropped = 0
        self._noted.clear()
        self._names_of = names_of
        count = names_of[-1][1] if names_of else 0
        self._on_disk = count, 0
        if count < len(self._listed):
            self._write_names()


def _encoded(names: list[str]) -> bytes:
    texts = (name.encode("utf-8", "backslashreplace") for name in names)
    return b"".join(NAME_LENGTH.pack(len(text)) + text for text in texts)


__all__ = ["MAX_SEGMENTS", "Spool", "clock", "threads"]
