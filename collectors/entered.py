"""Which communication a rank came to last, where the supervisor finds it should the rank never come out of it."""

import os
from collections.abc import Callable
from functools import partial
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, NamedTuple

from tracekit.record.wire import RECORD, Kind

from .spool import Mapped, threads

if TYPE_CHECKING:
    from .agent import Agent


_IN_IT, _OVER = 0, 1
IN_IT, OVER = ((0, 0, 0, each, int(Kind.ENTERED)) for each in (_IN_IT, _OVER))


class Passing(NamedTuple):
    """How to say in which backward pass a rank is whose buckets go past us, without a frame of ours: `say(next(),
    *IN_IT)`, and with `OVER` of the same number behind it. It is in the bucket that is sent next, or a later one."""

    next: Callable[[], int]
    say: Callable[..., object]


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
            RECORD.pack_into(self._mapped.buffer, 0, *self._last, _IN_IT, int(Kind.ENTERED))

    def end(self) -> None:
        if self._mapped is not None and self._last:
            RECORD.pack_into(self._mapped.buffer, 0, *self._last, _OVER, int(Kind.ENTERED))

    def passing(self, op: int, group_and_dtype: int, count: Callable[[], int]) -> Passing | None:
        """For buckets that `count` numbers."""
        if self._mapped is None:
            return None
        now, tid = clock(), threads.current().tid
        return Passing(count, partial(RECORD.pack_into, self._mapped.buffer, 0, op, tid, now, now, group_and_dtype))
