"""Which communication a rank came to last, where the supervisor finds it should the rank never come out of it."""

import os
from collections.abc import Callable
from functools import partial
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING

from tracekit.record.wire import RECORD, Kind

from .groups import Numbers
from .spool import Mapped, threads

if TYPE_CHECKING:
    from .agent import Agent

_IN_IT, _OVER = 0, 1
_ENTERED = int(Kind.ENTERED)


class Passing:
    """Tells of the backward passes whose buckets go past us: in one of them a rank is in the bucket that came next when
    it began, or in a later one; behind it, it has come to the last that were sent.

    To enter and to leave are a function each that calls none of ours: between two operations nothing of ours is in the
    caches, and a frame of Python more takes 8 us there.
    """

    def __init__(self, numbers: Numbers, say: Callable[..., object]) -> None:
        self._numbers, self._say = numbers, say
        self._depth = self._number = 0

    @property
    def is_in_one(self) -> bool:
        return self._depth > 0

    def enter(self) -> None:
        """A pass begins; one may begin another."""
        self._depth += 1
        if self._depth == 1:
            numbers = self._numbers
            if numbers.count is None or numbers.count() != numbers.counted:  # as a rule, nothing has begun meanwhile
                numbers.catch_up()
            numbers.is_seen = False  # what begins from now on goes past us
            self._number = numbers.next
            self._say(self._number, 0, 0, 0, _IN_IT, _ENTERED)

    def leave(self) -> None:
        """It has ended."""
        self._depth -= 1
        if self._depth == 0:
            numbers = self._numbers
            if numbers.count is not None:  # as `Numbers.catch_up`, of what went past
                counted = numbers.count()
                numbers.next += counted - numbers.counted
                numbers.counted = counted
            numbers.is_seen = True
            self._say(numbers.next - 1, 0, 0, 0, _OVER, _ENTERED)

    def again(self) -> None:
        """Something else has been told of since."""
        if self._depth:
            self._say(self._number, 0, 0, 0, _IN_IT, _ENTERED)


class Entered:
    """One record in a file of its own, written over and over; nothing where the disk does not take it."""

    def __init__(self, agent: "Agent") -> None:
        self._mapped: Mapped | None = None
        self._last: tuple[int, ...] = ()
        try:
            self._mapped = Mapped(os.path.join(agent.folder, f"{agent.stem}.entered"), RECORD.size)
        except OSError:
            agent.note_missing("communication that never ended", "its place in the spool could not be made")

    def begin(self, op: int, group_and_dtype: int, sequence: int) -> None:
        if self._mapped is not None:
            now, tid = clock(), threads.current().tid
            self._last = (op, tid, now, now, group_and_dtype, sequence, 0, 0, 0)
            RECORD.pack_into(self._mapped.buffer, 0, *self._last, _IN_IT, _ENTERED)

    def end(self) -> None:
        if self._mapped is not None and self._last:
            RECORD.pack_into(self._mapped.buffer, 0, *self._last, _OVER, _ENTERED)

    def passing(self, op: int, group_and_dtype: int, numbers: Numbers) -> Passing | None:
        """For buckets of a group that has these numbers."""
        if self._mapped is None:
            return None
        now, tid = clock(), threads.current().tid
        say = partial(RECORD.pack_into, self._mapped.buffer, 0, op, tid, now, now, group_and_dtype)
        return Passing(numbers, say)
