"""Looking closely at a batch that is made: at its samples, at waiting for a CPU, page faults and other threads."""

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from threading import get_ident
from time import perf_counter_ns as clock
from time import process_time_ns as process_clock
from time import thread_time_ns as cpu_clock
from typing import Any

from tracekit.record.wire import SHARES, UNKNOWN, UNKNOWN_SHARE

# Of one batch so many samples are timed: a program that takes all samples in one would wait for their records.
MOST_SAMPLES = 4096
# A page fault takes no longer: 0.3 to 8 us here, most where a hypervisor has to find the memory first.
_LONGEST_FAULT_NS = 10_000
NOT_LOOKED_AT = UNKNOWN, -1, UNKNOWN_SHARE  # what `Look.told` tells of a batch that nobody has looked at


class Faults:
    """The page faults of this thread between two moments."""

    _count, _kernel_s = 0, 0.0

    def begin(self) -> None:
        used = resource.getrusage(resource.RUSAGE_THREAD)
        self._count, self._kernel_s = -used.ru_minflt, -used.ru_stime

    def end(self) -> None:
        used = resource.getrusage(resource.RUSAGE_THREAD)
        self._count += used.ru_minflt
        self._kernel_s += used.ru_stime

    def share_of(self, cpu_ns: int) -> int:
        """What they may have taken of the thread's CPU time, in 1/SHARES: as long as it was in the kernel, by the
        kernel's account (some count in ticks), and no longer than so many can take."""
        longest_ns = min(round(self._kernel_s * 1e9), self._count * _LONGEST_FAULT_NS)
        return min(longest_ns * SHARES // cpu_ns, SHARES) if cpu_ns > 0 else UNKNOWN_SHARE


@dataclass
class Look:
    """A batch that is looked at closely: its samples, if they can be told apart; for how long the thread had waited for
    a CPU before, ns, and afterwards for how long it did meanwhile; what looking at its reads costs, likewise; and what
    other threads of the process ran, of what this one did."""

    samples: "Samples | None"
    delayed: int
    spent_ns: int
    faults: Faults = field(default_factory=Faults)
    others: float = 0.0

    def note_others(self, before: tuple[int, int]) -> None:
        """The batch is made. Of one whose samples are told apart the second half counts: torch's threads go on for some
        ms when the program's last operator has ended."""
        before = (self.samples.half if self.samples else None) or before
        whole, own = (now - then for now, then in zip(running(), before, strict=True))
        self.others = max(whole / own - 1, 0.0) if own > 0 else 0.0

    def told(self, cpu_ns: int) -> tuple[int, int, int]:
        """What a record says of it; `cpu_ns` of the thread that made the batch."""
        others = min(int(self.others * SHARES), UNKNOWN - 1)
        return others, self.delayed, self.faults.share_of(cpu_ns)


class Samples:
    """The indices of a batch, which notes when the fetcher comes for the next one: what it did in between is a sample.

    It stands between the fetcher and the sampler's indices, so the data set sees neither it nor any frame of ours.
    """

    mark_ns = 0  # what a mark costs; measured once

    def __init__(self, indices: Any) -> None:
        self._indices = indices
        self.marks: list[tuple[Any, int, int]] = []  # (index that is done, clock, CPU time of the thread)
        self.half: tuple[int, int] | None = None  # what `running` told before the second half of them
        self.freeing = 0, 0  # by the clock and of CPU time what giving back each sample takes, ns
        Samples.prepare()

    @staticmethod
    def prepare() -> None:
        if not Samples.mark_ns:
            Samples.mark_ns = _cost_of_a_mark()

    def __iter__(self) -> Iterator[Any]:
        mark = self.marks.append
        mark((None, clock(), cpu_clock()))
        indices, half = iter(self._indices), -1
        if type(self._indices) is list:  # others need not have a length
            half = min(len(self._indices), MOST_SAMPLES) // 2
        for number, index in enumerate(islice(indices, MOST_SAMPLES)):
            if number == half:
                self.half = running()
            yield index
            mark((index, clock(), cpu_clock()))
        yield from indices

    def __len__(self) -> int:
        return len(self._indices)

    def are_given_back(self, collating: "Collating", end: int, cpu: int) -> None:
        """All of them, at this moment, by the clock and by the thread's CPU time: what the fetcher does when it has put
        them together."""
        count = len(self.marks) - 1
        if collating.ended and count == len(self._indices) > 0:
            self.freeing = (end - collating.ended) // count, (cpu - collating.ended_cpu) // count


class Collating:
    """A fetcher's function that puts samples together, which notes for one batch, on one thread, when it does so."""

    begun = ended = ended_cpu = 0  # by the clock, and the thread's CPU time; 0: it did not come so far

    def __init__(self, fetcher: Any) -> None:
        self._fetcher, self._thread = fetcher, get_ident()
        self._collate = vars(fetcher).get("collate_fn")
        if type(self._collate) is Collating:  # that of another thread, which asks the same fetcher
            self._collate = None
        if self._collate is not None:
            fetcher.collate_fn = self

    def __call__(self, samples: Any) -> Any:
        begun = clock()
        batch = self._collate(samples)
        if get_ident() == self._thread:
            self.begun, self.ended, self.ended_cpu = begun, clock(), cpu_clock()
        return batch

    def undo(self) -> None:
        if self._collate is not None and vars(self._fetcher).get("collate_fn") is self:
            self._fetcher.collate_fn = self._collate

    def share_of(self, ns: int) -> int:
        """Which part it had of so much time, in 1/SHARES; -1 where that is not known."""
        return min((self.ended - self.begun) * SHARES // ns, SHARES) if self.ended and ns > 0 else -1


def running() -> tuple[int, int]:
    """The CPU time of this process and of this thread, ns."""
    return process_clock(), cpu_clock()


def _cost_of_a_mark() -> int:
    """What it usually costs: a thread that is kept from its CPU for once would make all samples seem shorter."""
    costs, before = [], clock()
    for _ in range(32):
        cpu_clock()
        now = clock()
        costs.append(now - before)
        before = now
    return sorted(costs)[len(costs) // 2]


def delayed() -> int:
    """For how long this thread has waited for a CPU since it began, ns; -1 where the kernel does not tell."""
    return second_word_of("schedstat", -1)


def second_word_of(file: str, otherwise: int) -> int:
    """A number that the kernel keeps of this thread, in a file below /proc/thread-self."""
    try:
        descriptor = os.open(f"/proc/thread-self/{file}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return int(os.read(descriptor, 4096).split()[1])
        finally:
            os.close(descriptor)
    except (OSError, IndexError, ValueError):
        return otherwise
