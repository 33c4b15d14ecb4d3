"""Whether noise has the dose that was asked for, measured by who knows nothing of the noise: see `noise.py`."""

import ctypes
import ctypes.util
import os
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from _side_by_side import progress
from numpy.typing import NDArray

from tracekit.noise.generators import Generators
from tracekit.noise.reach import reach
from tracekit.noise.spec import KINDS, ON_CPUS, Spec, dose_text, parse
from tracekit.noise.works import floor_of_memory, free_memory

LEVELS, LASTS_S = (0.1, 0.3, 0.6), 3.0
# The kernel keeps 16,384 events of files that were made and removed until they are read.
READ_EACH_S = 0.02
COPIES = ("memory", "cache")
ONE, MARK = struct.pack("d", 1.0), struct.pack("d", 2.0)
LEAST_BYTES = 1 << 18  # of an array that is copied
PIECE = 1 << 26  # that is looked at in one go
CPUS = sorted(os.sched_getaffinity(0))


def disk_bytes(folder: str) -> int:
    """What has been written to the disk that a folder lies on."""
    device = os.stat(folder).st_dev
    for line in Path("/proc/diskstats").read_text(encoding="ascii").splitlines():
        fields = line.split()
        if (int(fields[0]), int(fields[1])) == (os.major(device), os.minor(device)):
            return 512 * int(fields[9])
    raise SystemExit(f"{folder}: the kernel does not count what is written to its disk")


@contextmanager
def files_made(folder: str) -> Iterator[Callable[[], int]]:
    """Counts the files that are made in a folder that comes into being below this one."""
    libc = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
    descriptor = libc.inotify_init1(os.O_NONBLOCK)
    count = 0

    def made() -> int:
        nonlocal count
        try:
            while events := os.read(descriptor, 1 << 20):
                at = 0
                while at < len(events):
                    _, mask, _, length = struct.unpack_from("iIII", events, at)
                    count += bool(mask & 0x100)
                    at += 16 + length
        except BlockingIOError:
            pass
        return count

    deadline = time.monotonic() + 10
    while not (below := [each for each in Path(folder).iterdir() if each.is_dir()]):
        if time.monotonic() > deadline:
            raise SystemExit("the noise made no folder")
    libc.inotify_add_watch(descriptor, os.fsencode(below[0]), 0x300)  # made and removed: the same twice is told once
    yield made
    os.close(descriptor)


class Overwritten:
    """Counts from outside how often a process that copies from one array to another has been through them: a mark is
    put into its memory, and put there again whenever it has been overwritten.

    Both arrays are all ones, and nothing else of that process is for so long; a mark in the one that is read stays.
    """

    def __init__(self, pid: int, rate: float) -> None:
        """Of a process that copies now, about so many bytes/s, read and written."""
        self._memory = os.open(f"/proc/{pid}/mem", os.O_RDWR)
        runs = [run for area in anonymous_areas(pid) for run in self._ones(*area)]
        self._bytes = max(length for _, length in runs)
        self._patience_s = 1 + 10 * 2 * self._bytes / rate
        middles = [start + length // 16 * 8 for start, length in runs if length == self._bytes]
        passed = [middle for middle in middles if self._is_passed(middle)]
        if len(passed) != 1:
            raise SystemExit(f"of {len(middles)} arrays of ones {len(passed)} were copied to, not one")
        (self._mark,) = passed

    def __enter__(self) -> "Overwritten":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._memory)

    def bytes_per_s(self, for_s: float) -> float:
        """Read and written, from one overwriting of the mark to another about so much later."""
        self._await()
        passes, began = 0, time.perf_counter()
        ended = began
        while ended < began + for_s:
            self._await()
            passes, ended = passes + 1, time.perf_counter()
        return 2 * self._bytes * passes / (ended - began)

    def _is_passed(self, place: int) -> bool:
        os.pwrite(self._memory, MARK, place)
        time.sleep(self._patience_s / 2)
        passed = os.pread(self._memory, 8, place) == ONE
        os.pwrite(self._memory, ONE, place)
        return passed

    def _await(self) -> None:
        os.pwrite(self._memory, MARK, self._mark)
        deadline = time.perf_counter() + self._patience_s
        while (found := os.pread(self._memory, 8, self._mark)) == MARK:
            if time.perf_counter() > deadline:
                raise SystemExit(f"nothing was copied for {self._patience_s:.0f} s")
        if found != ONE:
            raise SystemExit("the noise has ended")

    def _ones(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Start and length of what is all ones."""
        parts = [self._is_one(at, min(at + PIECE, end)) for at in range(start, end, PIECE)]
        outside = np.zeros(1, dtype=bool)
        edges = np.flatnonzero(np.diff(np.concatenate((outside, *parts, outside))))
        for first, last in edges.reshape(-1, 2).tolist():
            if 8 * (last - first) >= LEAST_BYTES:
                yield start + 8 * first, 8 * (last - first)

    def _is_one(self, start: int, end: int) -> NDArray[np.bool_]:
        return np.frombuffer(os.pread(self._memory, end - start, start), dtype=np.float64) == 1


def anonymous_areas(pid: int) -> Iterator[tuple[int, int]]:
    """From where to where a process has memory that is no file's."""
    for line in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        where, rights, _, _, inode = line.split()[:5]
        start, end = (int(each, 16) for each in where.split("-"))
        if rights.startswith("rw") and inode == "0" and end - start >= LEAST_BYTES:
            yield start, end


def independent(kind: str, folder: str, child: psutil.Process, made: Callable[[], int] | None) -> float:
    """What was done until now, in the unit of the kind per CPU, by who knows nothing of the noise."""
    if kind in ("cpu", "busy"):
        return float(sum(child.cpu_times()[:2]))
    if kind == "disk":
        return float(disk_bytes(folder))
    if kind == "network":
        return float(psutil.net_io_counters(pernic=True)["lo"].bytes_sent)
    assert made is not None
    return 3.0 * made()


def doses() -> list[dict[str, Any]]:
    """Each kind at each level: what was asked, and what was measured of it, as a ratio."""
    found = []
    for kind in ("cpu", "busy", "memory", "cache", "capacity", "disk", "metadata", "network"):
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
            place = f"@{folder}" if kind in ("disk", "metadata") else f"@{CPUS[-1]}" if kind in ON_CPUS + COPIES else ""
            most = reach(kind, place) if kind != "capacity" else free_memory() - floor_of_memory()
            for level in LEVELS:
                spec = parse(f"{kind}={dose_text(KINDS[kind], level * most)}{place}")
                told, measured = dose(spec, folder)
                found.append({"kind": kind, "level": level, "asked": spec.dose, "told": told, "measured": measured})
                progress(f"{spec.label}: told {told:.3f}, measured {measured:.3f} of the dose")
    return found


def dose(spec: Spec, folder: str) -> tuple[float, float]:
    """What a noise says of its dose, and what was measured of it, as ratios."""
    kind, noise = spec.kind.name, Generators([spec])
    try:
        (child,) = psutil.Process().children()
        if kind in COPIES:
            return copied(spec, noise, child.pid)
        if kind == "capacity":
            return held(spec, noise, child)
        with files_made(folder) if kind == "metadata" else nullcontext() as made:
            noise.set([spec.label])
            time.sleep(0.3)
            before, said = independent(kind, folder, child, made), noise.done()[spec.label]
            began = time.monotonic()
            while time.monotonic() < began + LASTS_S:
                time.sleep(READ_EACH_S)
                if made is not None:
                    made()
            after, done = independent(kind, folder, child, made), noise.done()[spec.label]
            lasted = time.monotonic() - began
    finally:
        noise.close()
    unit = spec.kind.per_dose
    return (done - said) / lasted / unit / spec.dose, (after - before) / lasted / spec.dose


def copied(spec: Spec, noise: Generators, pid: int) -> tuple[float, float]:
    """The same of noise that copies."""
    rate = spec.dose * spec.kind.per_dose
    noise.set([spec.label])
    os.sched_setaffinity(0, CPUS[:1])  # the noise is on the last one
    try:
        with Overwritten(pid, rate) as overwritten:
            said, began = noise.done()[spec.label], time.monotonic()
            measured = overwritten.bytes_per_s(LASTS_S)
            done, lasted = noise.done()[spec.label], time.monotonic() - began
    finally:
        os.sched_setaffinity(0, CPUS)
    return (done - said) / lasted / rate, measured / rate


def held(spec: Spec, noise: Generators, child: psutil.Process) -> tuple[float, float]:
    """The same of noise that holds memory, once it has it."""
    before, said = child.memory_info().rss, -1
    noise.set([spec.label])
    while noise.done()[spec.label] != said:
        said = noise.done()[spec.label]
        time.sleep(1)
    return said / spec.dose, (child.memory_info().rss - before) / spec.dose
