"""Fetching: what it takes to make a batch, and each sample in it, in a worker or, without workers, in the program."""

import multiprocessing
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from numbers import Integral
from threading import RLock, get_ident, main_thread
from time import perf_counter_ns as clock
from time import thread_time_ns as cpu_clock
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from tracekit.record.wire import Kind

from .agent import Agent
from .looking import MOST_SAMPLES, NOT_LOOKED_AT, Collating, Look, Samples, delayed, running
from .patching import Patches, place_of
from .reading import Reading
from .spool import threads
from .tracebacks import comes_from_a_signal_handler

# Of the budget of recording, for rows of batches, and for looking at single samples and reads: a look at a thread's CPU
# time is a system call, 0.2 to 1 us and more than the rest of a sample's record. Where all the rest leaves nothing of
# the budget, less: then batches are so short that what is recorded of some must do for all.
_SHARE_OF_ROWS, _SHARE_OF_LOOKS, _LEAST_SHARE = 0.25, 0.5, 0.05
# The first batches of a process are recorded, the very first looked at, whatever it costs: a run of a few knows all of
# them. Of workers that come after the first ones, as with each epoch, one batch is looked at, if all of them together
# keep to the share.
_FIRST_ROWS, _FIRST_LOOKS, _FIRST_WORKERS = 64, 4, 4
# The last batches of an epoch tell what taking takes from workers that have nothing else to do, if it is known when
# they were made: their rows may be paid for so much later.
_LAST_ROWS, _LATER_NS = 4, 1_000_000_000
# What a look takes, and a sample in it, as seen here: a worker that is to be forked has none of its own to tell.
_LOOK_NS, _SAMPLE_NS = 500_000, 4_000
# What a worker that is killed may lose.
_NOTED_FOR_NS = 20_000_000
# So much time may be saved up: a program that was busy with something else, or stopped, is not to pay for it at once.
_SAVED_NS = 1_000_000_000
_NEVER = 1 << 62
_FETCH = int(Kind.FETCH)
_SAMPLE = "sample"


class _Allowance:
    """When something may be done again, so that it takes no more than its share of the budget. The first are free, and
    time in which nothing was done does not save up for a burst."""

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
        paid_ns = int(self._spent_ns / share) if share else _NEVER
        self._began = max(self._began, now - _SAVED_NS - paid_ns)
        if self._free <= 0:
            self.next = self._began + paid_ns


class Fetching:
    """Times `fetch` of the data set fetchers: one row per batch made, and of some batches one row per sample and read.

    A batch is known by the iteration of this process, which is the pass over the data set that it belongs to, and its
    turn in it: a worker delivers in the order in which it makes, so the program's batches can be found again.
    """

    def __init__(self, agent: Agent, patches: Patches) -> None:
        self._agent, self._patches, self._seen_fetchers = agent, patches, Patches()
        self._reading = Reading(agent)
        self._forks, self._look_ns, self._may_look = 0, _LOOK_NS, True
        self._looks_of_workers = _Allowance(agent, _SHARE_OF_LOOKS, _FIRST_WORKERS)
        self._busy: set[int] = set()  # the threads that make a batch
        self._fetchers: tuple[Any, ...] = ()  # torch's classes
        self._fetch: list[CodeType] = []  # what is run there
        self._ours: CodeType | None = None
        self._sees_all = self._makes_for_others = False
        self._last_from = _NEVER  # the turn from which on batches are the last ones, of an epoch like the one before
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
        if delayed() < 0:
            self._agent.note_missing("waiting for a CPU", "this kernel does not tell; it counts as waiting for storage")

    def prepare(self, batch_size: object) -> None:
        """Make what workers would make, each for itself, where they are forked to make batches of this size."""
        samples = batch_size if type(batch_size) is int else 1
        self._look_ns = _LOOK_NS + min(samples, MOST_SAMPLES) * _SAMPLE_NS
        Samples.prepare()
        self._agent.spool.intern(_SAMPLE)
        self._reading.prepare()
        self._see_all()

    def expect(self, batches: int, workers: int) -> None:
        """So many workers are forked now for an epoch; the one before had so many batches, or there was none (0)."""
        self._last_from = batches // workers - _LAST_ROWS if batches else _NEVER

    def see_only_due(self) -> None:
        """Workers have been forked: what this process makes itself is seen as its turn comes."""
        with self._lock:
            if not self._makes_for_others:
                self._sees_all = False
                self._seen_fetchers.undo()

    def off(self) -> None:
        self._seen_fetchers.undo()
        self._reading.off()

    def _count_fork(self) -> None:
        self._forks += 1
        self._may_look = clock() >= self._looks_of_workers.next
        if self._may_look:
            self._looks_of_workers.spend(self._look_ns)

    def _start_anew(self) -> None:
        """At the start, and in a forked child, which has counted its own fork with its parent's."""
        self._lock = RLock()  # of what is placed in torch; a signal handler of the program's may come in between
        self._iterations = self._written_ns = 0
        self._latest: _Place | None = None
        self._busy.clear()
        self._rows = _Allowance(self._agent, _SHARE_OF_ROWS, _FIRST_ROWS)
        free = (_FIRST_LOOKS if self._forks <= _FIRST_WORKERS else 1) if self._may_look else 0
        self._looks = _Allowance(self._agent, _SHARE_OF_LOOKS, free)
        if not self._may_look:
            self._looks.spend(self._look_ns)  # it earns its first one
        self.next = 0  # when one of them allows something again

    def _named_worker(self, original: Callable[..., Any]) -> Callable[..., Any]:
        place = place_of(original, "worker_id")

        def _worker_loop(*args: Any, **kwargs: Any) -> Any:
            try:
                self._agent.works_as(args[place] if len(args) > place else kwargs["worker_id"])
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
        with self._lock:
            if not self._sees_all:
                for fetcher in filter(_fetches_by_function, self._fetchers):
                    self._seen_fetchers.replace(fetcher, "fetch", self._each_seen)
                self._sees_all = bool(self._fetchers)

    def _each_seen(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def fetch(fetcher: Any, possibly_batched_index: Any) -> Any:
            return self._seen(original, fetcher, possibly_batched_index)

        fetch.inside, self._ours = original, fetch.__code__  # type: ignore[attr-defined]
        return fetch

    def _is_of_torch(self, fetch: Any) -> bool:
        """Whether what is called is torch's own, of which it is known what it does with the indices."""
        while (code := getattr(fetch, "__code__", None)) is not None and code is self._ours:
            fetch = fetch.inside  # not by this alone: what the program wraps around it may have its attributes
        return code in self._fetch

    def next_seen(self, original: Callable[[Any], Any], iterator: Any) -> Any:
        """The next batch of an iterator that makes it itself. To be called when `next` has come: a hook that is always
        there finds nothing in the caches, so there is one for the batches that are recorded. Not of an iterator inside
        a data set, which another one's batch is made of."""
        fetcher = getattr(iterator, "_dataset_fetcher", None)
        is_seen, on_devices = False, -1
        try:
            is_known = type(fetcher) in self._fetchers and _fetches_by_function(type(fetcher))
            if is_known and "fetch" not in vars(fetcher) and not self.is_in_fetch():
                self._place(fetcher).turn = iterator._num_yielded
                fetcher.fetch = partial(self._seen, type(fetcher).fetch, fetcher)  # type: ignore[union-attr]
                is_seen = True
                on_devices = _allocations_on_devices() if not iterator._num_yielded else -1
        except Exception as error:
            self._agent.fail("loading", error)
        try:
            batch = original(iterator)
        finally:
            if is_seen:
                vars(fetcher).pop("fetch", None)
        try:
            if on_devices >= 0 and _allocations_on_devices() > on_devices:
                self._agent.loaders.facts_of(iterator._tracekit.loader)["on_device"] = True
        except Exception as error:
            self._agent.fail("loading", error)
        return batch

    def is_fetch(self, code: object) -> bool:
        """Whether this is the code of torch's that makes a batch."""
        return code in self._fetch

    def is_in_fetch(self) -> bool:
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
            if entered >= self.next or self._is_among_last(fetcher, entered):
                return self._timed(original, fetcher, possibly_batched_index, entered)
            batch = original(fetcher, possibly_batched_index)
            try:
                self._place(fetcher).turn += 1
            except Exception as error:
                self._agent.fail("loading", error)
            return batch
        finally:
            self._busy.discard(ident)

    def _is_among_last(self, fetcher: Any, now: int) -> bool:
        """Whether an epoch like the one before ends with this batch or soon after, and there will be time for a row."""
        try:
            return now >= self.next - _LATER_NS and self._place(fetcher).turn >= self._last_from
        except Exception as error:
            self._agent.fail("loading", error)
            return False

    def _timed(self, original: Callable[..., Any], fetcher: Any, possibly_batched_index: Any, entered: int) -> Any:
        agent = self._agent
        look = None
        if entered >= self._looks.next:
            try:
                look = self._look_at(fetcher, possibly_batched_index, self._is_of_torch(original))
            except Exception as error:
                agent.fail("loading", error)
        indices = possibly_batched_index if look is None or look.samples is None else look.samples
        collating: Collating | None = None
        before = running() if look is not None else (0, 0)
        cpu, start = 0, entered
        try:
            if self._is_of_torch(original):
                collating = self._see_collating(fetcher)
            cpu = cpu_clock()
            start = clock()
            batch = original(fetcher, indices)
        finally:
            end, cpu_then = clock(), cpu_clock()
            if collating is not None:
                collating.undo()
            cpu = cpu_then - cpu
            if look is not None:
                self._look_away(look, collating, before, end, cpu_then)
                cpu, end = max(cpu - look.spent_ns, 0), max(end - look.spent_ns, start)  # as without us
        try:
            place = self._place(fetcher)
            iteration, turn = place.iteration, place.turn
            place.turn += 1
            if look is not None and look.samples is not None:
                self._note(look.samples, iteration, turn)
            size = len(possibly_batched_index) if type(possibly_batched_index) is list else -1
            others, delayed, faults = NOT_LOOKED_AT if look is None else look.told(cpu)
            iteration |= (collating.share_of(end - start) + 1 if collating is not None else 0) << 32
            agent.spool.note(
                (others, threads.current().tid, start, end, turn, iteration, cpu, delayed, size, faults, _FETCH)
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

    def _see_collating(self, fetcher: Any) -> Collating | None:
        try:
            return Collating(fetcher)
        except Exception as error:
            self._agent.fail("loading", error)
            return None

    def _place(self, fetcher: Any) -> "_Place":
        try:
            place: _Place = fetcher._tracekit_place
        except AttributeError:
            if self._latest is not None:
                self._last_from = self._latest.turn - _LAST_ROWS
            place = self._latest = fetcher._tracekit_place = _Place(self._iterations)
            self._iterations += 1
        return place

    def _look_at(self, fetcher: Any, indices: Any, of_torch: bool) -> Look:
        """Begin to look closely at a batch: at its samples, where torch iterates over their indices, at its reads, and
        for how long it waits for a CPU."""
        is_map = type(fetcher).__name__ == "_MapDatasetFetcher"
        at_once = is_map and _gets_all_at_once(fetcher.dataset)
        one_by_one = of_torch and fetcher.auto_collation and type(indices) is list and not at_once
        look = Look(Samples(indices) if one_by_one else None, delayed(), self._reading.spent_ns)
        self._reading.begin()
        look.faults.begin()
        return look

    def _look_away(self, look: Look, collating: Collating | None, before: tuple[int, int], end: int, cpu: int) -> None:
        try:
            look.note_others(before)
            look.faults.end()
            self._reading.end()
            look.delayed = delayed() - look.delayed if look.delayed >= 0 else -1
            look.spent_ns = self._reading.spent_ns - look.spent_ns
            if look.samples is not None:
                look.spent_ns += len(look.samples.marks) * look.samples.mark_ns
                if collating is not None:
                    look.samples.are_given_back(collating, end, cpu)
        except Exception as error:
            self._agent.fail("loading", error)

    def _note(self, samples: Samples, iteration: int, turn: int) -> None:
        spool, thread = self._agent.spool, threads.current().tid
        name, mark_ns, (freeing, cpu_freeing) = spool.intern(_SAMPLE), samples.mark_ns, samples.freeing
        off = freeing - mark_ns  # as without us; and each is given back, which is done of all of them together
        for done, ((_, start, before), (index, end, after)) in enumerate(pairwise(samples.marks)):
            number = index if type(index) is int else int(index) if isinstance(index, Integral) else -1
            number = number if -(1 << 63) <= number < 1 << 63 else -1
            start, end = start + done * off, end + (done + 1) * off
            cpu = max(after - before - mark_ns + cpu_freeing, 0)
            spool.note((name, thread, start, max(end, start), turn, iteration, number, cpu, 0, 0, Kind.SAMPLE))


def _gets_all_at_once(dataset: Any) -> bool:
    """Whether it is asked for all samples of a batch at once, if it wants to be, as torch asks it. Torch's own subsets
    do, and then get one after the other of a data set that does not."""
    if type(dataset) is sys.modules["torch"].utils.data.Subset:
        dataset = dataset.dataset
    return bool(getattr(dataset, "__getitems__", None))


@dataclass(slots=True)
class _Place:
    """Which iteration of this process a fetcher serves, and how many batches it has made."""

    iteration: int
    turn: int = 0


def _fetches_by_function(fetcher: type) -> bool:
    """Whether what its batches are fetched with is called as torch's own is: a program may have put anything there."""
    return type(vars(fetcher).get("fetch")) is FunctionType


def _allocations_on_devices() -> int:
    """How often this process has got memory of its GPU; -1 where that is not told, or not asked: on another thread than
    the main one, which may use the GPU meanwhile."""
    if get_ident() != main_thread().ident:
        return -1
    cuda = sys.modules["torch"].cuda
    try:
        return int(cuda.memory_stats().get("allocation.all.allocated", -1)) if cuda.is_initialized() else 0
    except Exception as error:  # an allocator of the program's own may not count
        if comes_from_a_signal_handler(error):
            raise
        return -1
