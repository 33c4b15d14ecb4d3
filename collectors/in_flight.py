"""Communication that goes on beside the program, until it is found done.

Nothing of ours is called when it is: a callback would need Python in a thread of the backend, and Python may be gone by
then. Somebody looks wherever the program comes by anyway, so the end is known but for the time since the last look.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, Any

from tracekit.record.wire import BUCKET, Kind

from .spool import threads

if TYPE_CHECKING:
    from .agent import Agent

NOT_SEEN = -1
_LONGEST_UNSURE = 2**31 - 1  # what a record has room for
_MOST = 1024  # of a program that never waits for what it begins
# Backends do what they were given nearly in order: behind so many that go on nobody asks, or each call would ask all of
# those that a program has begun at once.
_AHEAD = 4


@dataclass(slots=True)
class Sent:
    """What a record says of communication, but for its end: times are CLOCK_MONOTONIC ns."""

    op: int
    ready: int
    begun: int
    group_and_dtype: int
    sequence: int
    size: int
    how: int
    on_device: bool = False  # whose work is not asked: that could be no time for it, as while a graph is captured


class InFlight:
    """What was begun and has not been found done."""

    def __init__(self, agent: "Agent") -> None:
        self._note = agent.spool.note
        self._works: deque[tuple[Sent, Callable[[], bool], int]] = deque()
        self._sent: dict[int, Sent] = {}  # by id of the work, which `_works` keeps
        self.has_failed = False  # something of it, or it was never done

    def add(self, sent: Sent, is_done: Callable[[], bool]) -> None:
        if len(self._works) < _MOST and not sent.on_device:
            self._works.append((sent, is_done, sent.begun))
            self._sent[_id_of(is_done)] = sent
        else:
            self.note(sent, sent.begun, NOT_SEEN)

    def of(self, work: object) -> Sent | None:
        """What a work of torch's is about, if that goes on."""
        return self._sent.get(id(work))

    def is_newest(self, work: object) -> bool:
        """Whether a work of torch's is about what was begun last of what goes on."""
        try:
            return getattr(self._works[-1][1], "__self__", None) is work
        except IndexError:
            return False

    def look(self, have_buckets: bool = False, after_error: bool = False) -> None:
        """Note what is done by now; where `have_buckets` all buckets are, whatever their works say yet. Where the
        program got an error it may be that of one of them."""
        works = self._works
        go_on: list[tuple[Sent, Callable[[], bool], int]] = []
        try:
            for _ in range(len(works)):
                if len(go_on) == _AHEAD and not (have_buckets or after_error):
                    break
                try:
                    sent, is_done, not_before = works.popleft()
                except IndexError:  # another thread looks too
                    break
                now = clock()
                go_on.append((sent, is_done, now))
                if (have_buckets and sent.how >= BUCKET) or is_done():
                    failed = after_error and _has_failed(is_done)
                    self.has_failed |= failed
                    go_on.pop()
                    self._sent.pop(_id_of(is_done), None)
                    self.note(sent, now, NOT_SEEN if failed else min(now - not_before, _LONGEST_UNSURE))
        finally:  # a handler of the program's for a signal may raise what the program goes on from
            works.extendleft(reversed(go_on))

    @property
    def oldest(self) -> Sent | None:
        """What was begun first of what goes on."""
        try:
            return self._works[0][0]
        except IndexError:
            return None

    @property
    def is_empty(self) -> bool:
        return not self._works

    @property
    def is_over(self) -> bool:
        """Whether all of it is done, and has not failed, as where another rank never came to it."""
        return not self._works and not self.has_failed

    def give_up(self) -> None:
        """The program ends: what is not done by now was not seen to end."""
        while self._works:
            sent, is_done, _ = self._works.popleft()
            self._sent.pop(_id_of(is_done), None)
            self.has_failed = True
            self.note(sent, sent.begun, NOT_SEEN)

    def forget(self) -> None:
        """In a forked child, whose parent's works these are."""
        self._works.clear()
        self._sent.clear()

    def note(self, sent: Sent, end: int, unsure: int) -> None:
        """Note communication that has ended."""
        held = sent.begun - sent.ready
        self._note(
            (
                sent.op, threads.current().tid, sent.ready, end, sent.group_and_dtype, sent.sequence, sent.size, held,
                unsure, sent.how, int(Kind.COLLECTIVE),
            )
        )  # fmt: skip


def _id_of(is_done: Callable[[], bool]) -> int:
    return id(getattr(is_done, "__self__", None))


def _has_failed(is_done: Callable[[], bool]) -> bool:
    """Whether what is done has ended by an error, as far as its work or future says so."""
    work: Any = getattr(is_done, "__self__", None)
    try:
        # Not by what works say of themselves, for which torch warns.
        future = work.get_future() if hasattr(work, "get_future") else work
        if hasattr(future, "value"):
            future.value()
    except Exception:
        return True
    return False
