"""Fetching: what it takes to make a batch, and each sample in it, in a worker or, without workers, in the program."""

import multiprocessing
import os
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from itertools import islice, pairwise
from threading import get_ident
from time import perf_counter_ns as clock
from time import thread_time_ns as cpu_clock
from types import CodeType, FrameType, ModuleType
from typing import Any

from tracekit.record.wire import SHARES, UNKNOWN_SHARE, Kind

from .agent import Agent
from .patching import Patches
from .reading import Reading
from .spool import threads

# Of the budget of recording, for rows of batches, and for looking at single samples and reads: a look at a thread's CPU
# time is a system call, 0.2 to 1 us and more than the rest of a sample's record. Where all the rest leaves nothing of
# the budget, less: then batches are so short that what is recorded of some must do for all.
_SHARE_OF_ROWS, _SHARE_OF_LOOKS, _LEAST_SHARE = 0.25, 0.5, 0.05
# The first batches of a process are recorded, the very first looked at, whatever it costs: a run of a few knows all of
# them. Of workers that come after the first ones, as with each epoch, one batch is looked at.
_FIRST_ROWS, _FIRST_LOOKS, _FIRST_WORKERS = 64, 4, 4
# What a worker that is killed may lose.
_NOTED_FOR_NS = 20_000_000
# Of one batch so many samples are timed: a program that takes all samples in one would wait for their records.
_MOST_SAMPLES = 4096
# A page fault takes no longer: 0.3 to 8 us here, most where a hypervisor has to find the memory first.
_LONGEST_FAULT_NS = 10_000
_NEVER = 1 << 62
_FETCH = int(Kind.FETCH)


class _Allowance:
    """When something may be done again, so that it takes no more than its share of the budget. The first are free."""

    def __init__(self, agent: Agent, share: float, free: int) -> None:
        self._agent, self._share, self._free = agent, share, free
        self._began = clock()
        self._spent_ns = 0
        self.next = 0  # by the clock

    def spend(self, ns: int) -> None:
        now, governor = clock(), self._agent.governor
        self._spent_ns += ns
        self._free -= 1
        is_over = governor.spent_ns > governor.budget * (now - governor.started)
        share = governor.budget * (_LEAST_SHARE if is_over else self._share)
        if self._free <= 0:
            self.next = self._began + int(self._spent_ns / share) if share else _NEVER


class Fetching:
    """Times `fetch` of the data set fetchers: one row per batch made, and of some batches one row per sample and read.

    A batch is known by the iteration of this process, which is the pass over the data set that it belongs to, and its
    turn in it: a worker delivers in the order in which it makes, so the program's batches can be found again.
    """

    def __init__(self, agent: Agent, patches: Patches) -> None:
        self._agent, self._patches, self._seen_fetchers = agent, patches, Patches()
        self._name = agent.spool.intern("fetch")
        self._reading = Reading(agent)
        self._forks = 0
        self._busy: set[int] = set()  # the threads that make a batch
        self._fetchers: tuple[Any, ...] = ()  # torch's classes
        self._fetch: list[CodeType] = []  # what is run there
        self._sees_all = self._makes_for_others = False
        self._start_anew()
        agent.before_fork.append(self._count_fork)
        agent.after_fork += [self._start_anew, self._make_for_others]

    def hook_fetchers(self, module: ModuleType) -> None:
        self._fetchers = (module._MapDatasetFetcher, module._IterableDatasetFetcher)
        self._fetch = [fetcher.fetch.__code__ for fetcher in self._fetchers]
        if multiprocessing.parent_process() is not None:  # some loaders have workers of their own kind
            self._make_for_others()

    def hook_worker(self, module: ModuleType) -> None:
        self._patches.replace(module, "_worker_loop", self._named_worker)
        if _delayed() < 0:
            self._agent.note_missing("waiting for a CPU", "this kernel does not tell; it counts as waiting for storage")

    def prepare(self) -> None:
        """Make what workers would make, each for itself, where they are forked."""
        Samples.prepare()
        self._reading.prepare()
        self._see_all()

    def see_only_due(self) -> None:
        """Workers have been forked: what this process makes itself is seen as its turn comes."""
        if not self._makes_for_others:
            self._seen_fetchers.undo()
            self._sees_all = False

    def off(self) -> None:
        self._seen_fetchers.undo()
        self._reading.off()

    def _count_fork(self) -> None:
        self._forks += 1

    def _start_anew(self) -> None:
        """At the start, and in a forked child, which has counted its own fork with its parent's."""
        self._iterations = self._written_ns = 0
        self._busy.clear()
        self._rows = _Allowance(self._agent, _SHARE_OF_ROWS, _FIRST_ROWS)
        self._looks = _Allowance(self._agent, _SHARE_OF_LOOKS, _FIRST_LOOKS if self._forks <= _FIRST_WORKERS else 1)
        self.next = 0  # when one of them allows something again

    def _named_worker(self, original: Callable[..., Any]) -> Callable[..., Any]:
        known = signature(original)

        def _worker_loop(*args: Any, **kwargs: Any) -> Any:
            try:
                self._agent.works_as(known.bind(*args, **kwargs).arguments["worker_id"])
                self._make_for_others()
            except Exception as error:
                self._agent.fail("loading", error)
            return original(*args, **kwargs)

        return _worker_loop

    def _make_for_others(self) -> None:
        """In a process that makes batches for another one: they are seen whoever asks for them there."""
        self._makes_for_others = True
        self._see_all()

    def _see_all(self) -> None:
        if not self._sees_all:
            self._sees_all = bool(self._fetchers)
            for fetcher in self._fetchers:
                self._seen_fetchers.replace(fetcher, "fetch", self._each_seen)

    def _each_seen(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def fetch(fetcher: Any, possibly_batched_index: Any) -> Any:
            return self._seen(original, fetcher, possibly_batched_index)

        return fetch

    def next_seen(self, original: Callable[[Any], Any], iterator: Any) -> Any:
        """The next batch of an iterator that makes it itself. To be called when `next` has come: a hook that is always
        there finds nothing in the caches, so there is one for the batches that are recorded. Not of an iterator inside
        a data set, which another one's batch is made of."""
        fetcher = getattr(iterator, "_dataset_fetcher", None)
        is_seen = False
        try:
            if type(fetcher) in self._fetchers and "fetch" not in vars(fetcher) and not self._is_in_fetch():
                self._place(fetcher).turn = iterator._num_yielded
                fetcher.fetch = partial(self._seen, type(fetcher).fetch, fetcher)  # type: ignore[union-attr]
                is_seen = True
        except Exception as error:
            self._agent.fail("loading", error)
        try:
            return original(iterator)
        finally:
            if is_seen:
                vars(fetcher).pop("fetch", None)

    def _is_in_fetch(self) -> bool:
        """Whether a batch is being made on this thread."""
        if get_ident() in self._busy:
            return True
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code not in self._fetch:
            frame = frame.f_back
        return frame is not None

    def _seen(self, original: Callable[..., Any], fetcher: Any, possibly_batched_index: Any) -> Any:
        ident = get_ident()
        if ident in self._busy:  # a loader inside a data set: what it fetches is part of a sample
            return original(fetcher, possibly_batched_index)
        self._busy.add(ident)
        try:
            entered = clock()
            if entered >= self.next:
                return self._timed(original, fetcher, possibly_batched_index, entered)
            batch = original(fetcher, possibly_batched_index)
            try:
                self._place(fetcher).turn += 1
            except Exception as error:
                self._agent.fail("loading", error)
            return batch
        finally:
            self._busy.discard(ident)

    def _timed(self, original: Callable[..., Any], fetcher: Any, possibly_batched_index: Any, entered: int) -> Any:
        agent = self._agent
        look = None
        if entered >= self._looks.next:
            try:
                look = self._look_at(fetcher, possibly_batched_index)
            except Exception as error:
                agent.fail("loading", error)
        indices = possibly_batched_index if look is None or look.samples is None else look.samples
        cpu = cpu_clock()
        start = clock()
        try:
            batch = original(fetcher, indices)
        finally:
            end = clock()
            cpu = cpu_clock() - cpu
            if look is not None:
                self._look_away(look)
                cpu, end = max(cpu - look.spent_ns, 0), max(end - look.spent_ns, start)  # as without us
        try:
            place = self._place(fetcher)
            iteration, turn = place.iteration, place.turn
            place.turn += 1
            if look is not None and look.samples is not None:
                self._note(look.samples, iteration, turn)
            size = len(possibly_batched_index) if type(possibly_batched_index) is list else -1
            delayed, faults = (-1, UNKNOWN_SHARE) if look is None else (look.delayed, look.faults.share_of(cpu))
            agent.spool.note(
                (self._name, threads.current().tid, start, end, turn, iteration, cpu, delayed, size, faults, _FETCH)
            )
            if end - self._written_ns > _NOTED_FOR_NS or look is not None:
                self._written_ns = end
                agent.spool.write_noted()
            spent = start - entered + clock() - end
            agent.governor.spent_ns += spent
            (self._rows if look is None else self._looks).spend(spent)
            self.next = min(self._rows.next, self._looks.next)
        except Exception as error:
            agent.fail("loading", error)
        return batch

    def _place(self, fetcher: Any) -> "_Place":
        try:
            place: _Place = fetcher._tracekit_place
        except AttributeError:
            place = fetcher._tracekit_place = _Place(self._iterations)
            self._iterations += 1
        return place

    def _look_at(self, fetcher: Any, indices: Any) -> "_Look":
        """Begin to look closely at a batch: at its samples, its reads, and for how long it waits for a CPU."""
        is_map = type(fetcher).__name__ == "_MapDatasetFetcher"
        at_once = is_map and getattr(fetcher.dataset, "__getitems__", None)  # torch asks for it too
        one_by_one = fetcher.auto_collation and indices is not None and not at_once
        look = _Look(Samples(indices) if one_by_one else None, _delayed(), self._reading.spent_ns)
        self._reading.begin()
        look.faults.begin()
        return look

    def _look_away(self, look: "_Look") -> None:
        try:
            look.faults.end()
            self._reading.end()
            look.delayed = _delayed() - look.delayed if look.delayed >= 0 else -1
            look.spent_ns = self._reading.spent_ns - look.spent_ns
            if look.samples is not None:
                look.spent_ns += len(look.samples.marks) * look.samples.mark_ns
        except Exception as error:
            self._agent.fail("loading", error)

    def _note(self, samples: "Samples", iteration: int, turn: int) -> None:
        spool, thread = self._agent.spool, threads.current().tid
        name, mark_ns = spool.intern("sample"), samples.mark_ns
        for done, ((_, start, before), (index, end, after)) in enumerate(pairwise(samples.marks)):
            number = index if type(index) is int and -(1 << 63) <= index < 1 << 63 else -1
            start, end = start - done * mark_ns, end - (done + 1) * mark_ns  # as without us
            cpu = max(after - before - mark_ns, 0)
            spool.note((name, thread, start, max(end, start), turn, iteration, number, cpu, 0, 0, Kind.SAMPLE))


@dataclass(slots=True)
class _Place:
    """Which iteration of this process a fetcher serves, and how many batches it has made."""

    iteration: int
    turn: int = 0


class _Faults:
    """The page faults of this thread between two moments."""

    def begin(self) -> None:
        used = resource.getrusage(resource.RUSAGE_THREAD)
        self._count, self._kernel_s = -used.ru_minflt, -used.ru_stime

    def end(self) -> None:
        used = resource.getrusage(resource.RUSAGE_THREAD)
        self._count += used.ru_minflt
        self._kernel_s += used.ru_stime

    def share_of(self, cpu_ns: int) -> int:
        """What they took of the thread's CPU time at most, in 1/SHARES: as long as it was in the kernel, and no longer
        than so many can take."""
        longest_ns = min(round(self._kernel_s * 1e9), self._count * _LONGEST_FAULT_NS)
        return min(longest_ns * SHARES // cpu_ns, SHARES) if cpu_ns > 0 else UNKNOWN_SHARE


@dataclass
class _Look:
    """A batch that is looked at closely: its samples, if they can be told apart; for how long the thread had waited for
    a CPU before, ns, and afterwards for how long it did meanwhile; what looking at its reads costs, likewise."""

    samples: "Samples | None"
    delayed: int
    spent_ns: int
    faults: _Faults = field(default_factory=_Faults)


class Samples:
    """The indices of a batch, which notes when the fetcher comes for the next one: what it did in between is a sample.

    It stands between the fetcher and the sampler's indices, so the data set sees neither it nor any frame of ours.
    """

    mark_ns = 0  # what a mark costs; measured once

    def __init__(self, indices: Any) -> None:
        self._indices = indices
        self.marks: list[tuple[Any, int, int]] = []  # (index that is done, clock, CPU time of the thread)
        Samples.prepare()

    @staticmethod
    def prepare() -> None:
        if not Samples.mark_ns:
            Samples.mark_ns = _cost_of_a_mark()

    def __iter__(self) -> Iterator[Any]:
        mark = self.marks.append
        mark((None, clock(), cpu_clock()))
        indices = iter(self._indices)
        for index in islice(indices, _MOST_SAMPLES):
            yield index
            mark((index, clock(), cpu_clock()))
        yield from indices

    def __len__(self) -> int:
        return len(self._indices)


def _cost_of_a_mark() -> int:
    rounds = 32
    began = clock()
    for _ in range(rounds):
        clock()
        cpu_clock()
    return (clock() - began) // rounds


def _delayed() -> int:
    """For how long this thread has waited for a CPU since it began, ns; -1 where the kernel does not tell."""
    try:
        descriptor = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return int(os.read(descriptor, 4096).split()[1])
        finally:
            os.close(descriptor)
    except (OSError, IndexError, ValueError):
        return -1
