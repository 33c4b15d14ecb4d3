"""Short batches: of most no more is noted than their times, which become records later, many at once."""

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, Any

from tracekit.record.wire import Kind

from .access_order import Epoch
from .agent import Agent
from .spool import Record, threads
from .steps import BATCH

if TYPE_CHECKING:
    from .fetching import Fetching

_BATCH = int(Kind.BATCH)
_LONGEST_TOLD = 2**31 - 1  # of taking a batch: what a record has room for

# A stretch of batches ends after so long, also where they suddenly take longer; a kill loses those of one stretch. What
# is done at its end finds nothing in the caches and takes some 100 us: of batches of 1 ms, 0.2 %.
_AT_MOST_NS = 50_000_000

Times = tuple[int, int, int, int, int]  # of a batch: its index, begin, end, when its bytes had come, who made it


@dataclass(slots=True)
class Iteration:
    """What is known of a loader's iterator: its loader, the epoch it is in, and who made the batch that is due."""

    loader: str
    name: int  # the same, interned
    epoch: int
    generator: Any  # the loader's own, if it has one
    makes_batches: bool  # itself: the loader has no workers
    worker: int = -1
    arrived: int = 0  # when the bytes of the last batch that was taken were there, by the clock
    order: Epoch | None = None
    next_look: int = 0  # from this batch on one is measured
    next_thorough_look: int = 0
    only_timed_until: int = 0  # of batches up to this one no more than the times is noted,
    deadline: int = 0  # and of none that begins after this moment, by the clock
    drawing_ns: int = 0  # what making an iterator of the sampler took, and drawing the first indices
    thread: int = 0  # the one that asks for its batches; -1: more do
    times: deque[Times] = field(default_factory=deque)
    note_time: Callable[[Times], None] = field(init=False)

    def __post_init__(self) -> None:
        self.note_time = self.times.append

    def start_anew(self, epoch: int) -> None:
        """The same iterator goes on with another epoch."""
        self.epoch = epoch
        self.next_look = self.next_thorough_look = self.only_timed_until = self.thread = 0

    def record(self, thread: int, times: Times, size: int) -> Record:
        index, start, end, arrived, worker = times
        taking = min(end - arrived, _LONGEST_TOLD) if arrived > start else -1
        return self.name, thread, start, end, self.epoch, index, worker, size, taking, 0, _BATCH


class ShortBatches:
    """Decides of which batches no more is noted than their times, and makes records of them.

    All that is looked up around a batch otherwise takes 10 to 20 us, as none of it is in the caches.
    """

    def __init__(self, agent: Agent, fetching: "Fetching") -> None:
        self._agent, self._fetching = agent, fetching
        # Those with times that may not be told, by their ids, and what notices that the program has left the iterator.
        self._open: dict[int, tuple[Iteration, weakref.ref[Any]]] = {}
        agent.before_leaving.append(self._tell_all)
        agent.after_fork.append(self._forget)

    def let_pass(self, iterator: Any, of: Iteration, index: int) -> None:
        """Batch `index` has been seen: decide up to which of the next ones nothing is due."""
        agent, thread, now = self._agent, threads.current().tid, clock()
        if of.thread != thread:  # of more than one it would have to be noted who asks
            of.thread = -1 if of.thread else thread
        until = of.next_look
        if of.order is not None and of.order.expected > index + 1:
            until = min(until, of.order.expected - 1)  # the last one is to be seen
        is_awaited = bool(agent.phases or agent.on_step)
        if agent.step_source_rank >= BATCH:
            until = min(until, index + agent.governor.settle_at - agent.governor.steps)
            is_awaited |= bool(agent.calls_go_past or agent.safe_point_due)
        of.deadline = now + _AT_MOST_NS
        if of.makes_batches:
            of.deadline = min(of.deadline, self._fetching.next)
        of.only_timed_until = 0 if is_awaited or of.thread == -1 or now > of.deadline else until
        if of.only_timed_until and id(of) not in self._open:
            self._open[id(of)] = of, weakref.ref(iterator, lambda _: self.end(of))

    def tell(self, of: Iteration) -> None:
        """Note the batches of which the times were noted, and count them where they are the steps."""
        while of.times:
            self._agent.spool.note(of.record(of.thread, of.times.popleft(), -1))
            if self._agent.step_source_rank >= BATCH:
                self._agent.governor.steps += 1

    def end(self, of: Iteration) -> None:
        """The program has had all batches of an epoch, or has let go of the iterator."""
        try:
            self._open.pop(id(of), None)
            self.tell(of)
        except Exception as error:
            self._agent.fail("loading", error)

    def _tell_all(self) -> None:
        for of, _ in list(self._open.values()):
            self.tell(of)

    def _forget(self) -> None:
        """In a forked child: they are its parent's."""
        for of, _ in self._open.values():
            of.times.clear()
            of.only_timed_until = 0
        self._open.clear()
