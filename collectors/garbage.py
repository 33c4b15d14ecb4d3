"""Garbage: Python's full collections. While one lasts nothing else of the program runs in its process."""

import gc
from time import perf_counter_ns as clock

from tracekit.record.wire import Kind

from .agent import Agent
from .spool import threads

_GARBAGE = int(Kind.GARBAGE)
# The others look at young objects, a few hundred or thousand, and take microseconds.
_OLDEST = 2


class Garbage:
    """Times the collections of the oldest generation, in workers of loaders too."""

    def install(self, agent: Agent) -> None:
        self._agent = agent
        self._name = agent.spool.intern("full collection")
        self._began = 0
        gc.callbacks.append(self._collects)
        agent.before_exit.append(self.off)  # as Python ends it collects once more

    def off(self) -> None:
        if self._collects in gc.callbacks:
            gc.callbacks.remove(self._collects)

    def _collects(self, phase: str, facts: dict[str, int]) -> None:
        try:
            if facts["generation"] != _OLDEST:
                return
            if phase == "start":
                self._began = clock()
            elif self._began:
                began, self._began = self._began, 0
                tid = threads.current().tid
                self._agent.spool.note((self._name, tid, began, clock(), -1, 0, 0, 0, 0, 0, _GARBAGE))
        except Exception as error:
            self._agent.fail("garbage", error)
