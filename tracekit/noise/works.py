"""What the processes of noise do: one class per kind, each of which does an amount at a time and says how much it was.

A work does less than it was asked for where that would take long: what controls it must have its turn every few
milliseconds.
"""

import math
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tracekit.noise.files import Files, Write
from tracekit.noise.sockets import Datagrams, Stream
from tracekit.noise.spec import NoiseError, Spec
from tracekit.noise.tools import tool_of
from tracekit.noise.work import Work
from tracekit.record.machine import describe_memory

# STREAM's rule: arrays of at least four times the last-level cache.
_TIMES_OF_CACHE = 4
_USUAL_CACHE = 32 << 20
_PAGE = 4096
_LONGEST_S = 0.01  # where others have the CPU, or come first
# What is left to others of the memory, always.
FREE_MEMORY, FREE_MEMORY_SHARE = 512 << 20, 0.1
_HELD_AT_ONCE = 16 << 20


def work_of(spec: Spec, processes: int) -> Work:
    """The work of one of so many processes of a noise. Raises NoiseError or OSError where it cannot be done here."""
    if spec.backend:
        return tool_of(spec)
    match spec.kind.name:
        case "cpu":
            return OnCPU(multiplying())
        case "busy":
            return OnCPU(look_at_clock)
        case "memory":
            return Copy(_TIMES_OF_CACHE * last_level_cache() // processes)  # which they share
        case "cache":
            return Copy(last_level_cache() // 4 // processes)
        case "capacity":
            return Hold()
        case "disk":
            return Write(spec.folder or os.getcwd())
        case "metadata":
            return Files(spec.folder or os.getcwd())
        case "network" if spec.host:
            return Datagrams(spec.host, spec.interface)
        case _:
            return Stream(spec.interface)


class OnCPU(Work):
    """Has the CPU for some time, by what takes some ten microseconds of it; all the CPU time of the process counts, its
    control included."""

    def __init__(self, spend: Callable[[], None]) -> None:
        self._spend = spend
        self._counted = time.process_time_ns()

    def do(self, amount: float) -> float:
        until, at_last = self._counted + amount, time.monotonic() + _LONGEST_S
        while (now := time.process_time_ns()) < until and time.monotonic() < at_last:
            self._spend()
        done, self._counted = now - self._counted, now
        return done


def multiplying() -> Callable[[], None]:
    """Multiplies small matrices, which stay in the first-level cache."""
    matrix = np.full((40, 40), 0.5)
    out = np.empty_like(matrix)

    def multiply() -> None:
        for _ in range(4):
            np.matmul(matrix, matrix, out=out)

    return multiply


def look_at_clock() -> None:
    """As a thread that spins does."""
    for _ in range(100):
        time.perf_counter_ns()


class Copy(Work):
    """Copies from one array to another, over and over: what is read and what is written count, as STREAM has it."""

    _LARGEST = 4 << 20  # some milliseconds at most

    def __init__(self, size: int) -> None:
        if free_memory() - 2 * size < floor_of_memory():
            raise NoiseError("there is no memory for its arrays that others do not need")
        self._from = np.ones(max(size, _PAGE) // 8)
        self._to = np.ones_like(self._from)
        self._at = 0

    def do(self, amount: float) -> float:
        count = int(min(max(amount / 16, 512), self._LARGEST // 8, len(self._from) - self._at))
        np.copyto(self._to[self._at : self._at + count], self._from[self._at : self._at + count])
        self._at = (self._at + count) % len(self._from)
        return 16.0 * count


class Hold(Work):
    """Holds memory, as far as enough is left to others."""

    def __init__(self) -> None:
        self._held: list[mmap.mmap] = []

    def do(self, amount: float) -> float:
        spare = free_memory() - floor_of_memory()
        wanted = int(min(amount - self.bytes, _HELD_AT_ONCE)) // _PAGE * _PAGE
        if spare < 0 and self._held:
            self._held.pop().close()
        elif 0 < wanted < spare:
            block = mmap.mmap(-1, wanted)
            for page in range(0, wanted, _PAGE):
                block[page] = 1
            self._held.append(block)
        elif wanted < 0:
            self.close()
        return self.bytes

    @property
    def bytes(self) -> int:
        return sum(map(len, self._held))

    def close(self) -> None:
        for block in self._held:
            block.close()
        self._held.clear()


def last_level_cache() -> int:
    """The size of this CPU's largest cache, bytes; a usual one where the kernel does not tell."""
    sizes = [_size(file) for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max(sizes, default=0) or _USUAL_CACHE


def _size(file: Path) -> int:
    try:
        text = file.read_text(encoding="ascii").strip()
        return int(text.rstrip("KMG")) << {"K": 10, "M": 20, "G": 30}.get(text[-1:], 0)
    except (OSError, ValueError):
        return 0


def free_memory() -> float:
    """What this process can still have, bytes, by the machine and by its cgroup."""
    free = describe_memory().free
    return math.inf if free is None else free


def floor_of_memory() -> float:
    """The free memory that noise leaves alone, bytes."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        total = 0
    return max(FREE_MEMORY, FREE_MEMORY_SHARE * total)
