"""Which communication a rank came to last, where the supervisor finds it should the rank never come out of it."""

import os
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING

from tracekit.record.wire import RECORD, Kind

from .spool import Mapped, threads

if TYPE_CHECKING:
    from .agent import Agent


_IN_IT, _OVER = 0, 1


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
