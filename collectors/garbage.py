"""Garbage: Python's full collections. While one lasts nothing else of the program runs in its process."""

import gc
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from threading import Lock
from time import perf_counter_ns as clock

from tracekit.record.wire import Kind

from .agent import Agent
from .spool import threads

_GARBAGE = int(Kind.GARBAGE)
# Collections of young objects come hundreds of times a second in a program that makes many: so many are told apart from
# a full one when somebody looks, every few steps.
_MOST = 1 << 14


class Garbage:
    """Times the collections of the oldest generation, in workers of loaders too."""

    def install(self, agent: Agent) -> None:
        self._agent = agent
        self._name = agent.spool.intern("full collection")
        self._starts: deque[int] = deque(maxlen=_MOST)
        self._stops: deque[int] = deque(maxlen=_MOST)
        self._full = _full_collections()
        self._turn = Lock()
        self._notes_time = _noting(self._starts, self._stops)
        gc.callbacks.append(self._notes_time)
        agent.spool.before_writing.append(self._look)
        agent.before_fork.append(self._look)  # what is left of these a forked child would have to copy to forget it
        agent.after_fork.append(self._start_anew)
        agent.before_exit.append(self.off)  # as Python ends it collects once more

    def off(self) -> None:
        for at, each in enumerate(gc.callbacks):
            if each is self._notes_time:  # one of the program's may have an answer of its own to `==`
                del gc.callbacks[at]
                break
        self._look()
        looks = self._agent.spool.before_writing
        if self._look in looks:
            looks.remove(self._look)

    def _start_anew(self) -> None:
        """In a forked child, whose parent's collections these are; as a rule there are none, and nobody looks."""
        if self._starts or self._stops:
            self._starts.clear()
            self._stops.clear()
            self._full = _full_collections()
        if self._turn.locked():
            self._turn = Lock()

    def _look(self) -> None:
        """Note the full ones among those since the last look: how many that is Python counts, and they take longest."""
        if not self._stops or not self._turn.acquire(blocking=False):
            return  # another thread looks, or a signal handler of the program's is in the midst of it
        try:
            before, self._full = self._full, _full_collections()
            spans = sorted(self._ended(), key=lambda span: span[0] - span[1])
            for began, end in spans[: self._full - before]:
                tid = threads.current().tid
                self._agent.spool.note((self._name, tid, began, end, -1, 0, 0, 0, 0, 0, _GARBAGE))
        except Exception as error:
            self._agent.fail("garbage", error)
        finally:
            self._turn.release()

    def _ended(self) -> Iterator[tuple[int, int]]:
        """From when to when each collection lasted. One may lack its start, or its stop: the program may take all
        callbacks away, and fork, in the midst of it."""
        starts, stops = self._starts, self._stops
        while starts and stops:
            if stops[0] < starts[0]:
                stops.popleft()
            elif len(starts) > 1 and starts[1] <= stops[0]:
                starts.popleft()
            else:
                yield starts.popleft(), stops.popleft()


def _full_collections() -> int:
    """How many this process has done."""
    return int(gc.get_stats()[-1]["collections"])


def _noting(starts: "deque[int]", stops: "deque[int]") -> Callable[[str, object], object]:
    """What `gc` is to call as a collection starts and stops, with one of these words: it notes the time, and runs no
    Python. Where Python runs, signal handlers of the program may, and `gc` would drop what they raise: Ctrl-C."""

    class Moments:
        start = property(partial(next, map(starts.append, iter(clock, None))))
        stop = property(partial(next, map(stops.append, iter(clock, None))))

    return partial(getattr, Moments())
