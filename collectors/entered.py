"""Which communication a rank came to last, where the supervisor finds it should the rank never come out of it."""

import os
import sys
from _thread import start_new_thread
from contextlib import suppress
from threading import get_ident
from time import perf_counter_ns as clock
from time import sleep
from typing import TYPE_CHECKING

from tracekit.record.wire import IN_IT, LEFT, OVER, RECORD, Kind

from .engine import is_in_backward
from .groups import Numbers
from .spool import Mapped, threads

if TYPE_CHECKING:
    from .agent import Agent

_ENTERED = int(Kind.ENTERED)
_LOOK_EVERY_S = 0.25


class Entered:
    """One record in a file of its own, written over and over; nothing where the disk does not take it.

    Of the buckets that go past us a thread looks now and then how many have begun: to say so in each step would cost
    more than all else that is done there. A rank is in one of them where no more have begun since the look before and
    its loop is in a backward pass.
    """

    def __init__(self, agent: "Agent") -> None:
        self._mapped: Mapped | None = None
        self._last: tuple[int, ...] = ()
        self._governor = agent.governor
        self._is_in_call = self._is_open = False
        self.goes_on = False  # what the program has come back from; not where it came by an exception
        self._passing: tuple[int, int, Numbers] | None = None  # the op, the group and dtype, the numbers of the group
        self._is_watched = False
        self._told, self._told_at_step = (OVER, -1), 0
        try:
            self._mapped = Mapped(os.path.join(agent.folder, f"{agent.stem}.entered"), RECORD.size)
        except OSError:
            agent.note_missing("communication that never ended", "its place in the spool could not be made")

    def begin(self, op: int, group_and_dtype: int, sequence: int) -> None:
        """Something begins that we see."""
        self._is_in_call, self._is_open, self.goes_on = True, True, False
        self._tell(IN_IT, op, group_and_dtype, sequence)

    def end(self) -> None:
        """What began last, and all before it, is over."""
        self._is_open = self.goes_on = False
        if self._mapped is not None and self._last:
            RECORD.pack_into(self._mapped.buffer, 0, *self._last, OVER, _ENTERED)

    def fails(self) -> None:
        """The program has come back from what began last by an exception."""
        if self._mapped is not None and self._last:
            RECORD.pack_into(self._mapped.buffer, 0, *self._last, LEFT, _ENTERED)

    def left(self, goes_on: bool = True) -> None:
        """The program has come back from what it has begun, which may go on."""
        self.goes_on = goes_on and self._is_open
        self._is_in_call = False

    def passes(self, op: int, group_and_dtype: int, numbers: Numbers) -> None:
        """From here on buckets of a group that has these numbers go past us. To be called by the thread of the loop."""
        self._told = OVER, -1
        self._passing = op, group_and_dtype, numbers
        if not self._is_watched and self._mapped is not None:
            self._is_watched = True
            with suppress(RuntimeError):  # there may be no more threads
                start_new_thread(self._watch, (get_ident(),))

    def sees(self) -> None:
        """From here on they do not, as a step has ended: the rank is in none of them."""
        self._passing = None
        if self._told[0] == IN_IT:
            self.end()

    def leaves(self) -> None:
        """The process ends: the rank is in none of them if it has come out of the pass, and ended its step."""
        if self._told[0] == IN_IT and self._governor.steps == self._told_at_step:
            self._passing = None
        else:
            self.sees()

    def stop(self) -> None:
        """Nobody is to look any more: what the rank is in from now on is not known."""
        self.sees()
        self.end()
        self._is_watched = False

    def _watch(self, loop: int) -> None:
        before = -1
        while self._is_watched:
            sleep(_LOOK_EVERY_S)
            passing = self._passing
            try:
                before = -1 if passing is None or self._is_in_call else self._look(*passing, before, loop)
            except Exception:
                return  # what is known then stays

    def _look(self, op: int, group_and_dtype: int, numbers: Numbers, before: int, loop: int) -> int:
        begun = numbers.begun()
        if self._is_open and begun <= self._last[5]:  # the program may be waiting for what it has begun itself
            return begun
        is_in = begun == before and is_in_backward(sys._current_frames().get(loop))
        told = IN_IT if is_in else OVER, begun
        if told != self._told and self._passing is not None and not self._is_in_call:
            self._told, self._told_at_step = told, self._governor.steps
            self._is_open = self.goes_on = False
            self._tell(told[0], op, group_and_dtype, begun)
        return begun

    def _tell(self, state: int, op: int, group_and_dtype: int, sequence: int) -> None:
        if self._mapped is not None:
            now, tid = clock(), threads.current().tid
            self._last = (op, tid, now, now, group_and_dtype, sequence, 0, 0, 0)
            RECORD.pack_into(self._mapped.buffer, 0, *self._last, state, _ENTERED)
