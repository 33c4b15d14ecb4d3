"""In which phase the loop of a rank is, and what its thread has had of the CPU at each change.

Ranks wait for each other, so each step of all of them is as long as that of the slowest. Whose delay it was, and in
which phase, is told by how long each rank took for its own work; and what it was only kept from the CPU is no work.
"""

import os
from collections import deque
from collections.abc import Callable
from sys import _getframe
from threading import get_ident
from time import perf_counter_ns as clock
from time import thread_time_ns as cpu_clock
from typing import TYPE_CHECKING

from tracekit.record.wire import Kind

from .engine import is_in_backward
from .spool import threads

if TYPE_CHECKING:
    from .agent import Agent

LOADING, FORWARD, BACKWARD = "loading", "forward", "backward"
COMMUNICATION, OPTIMIZER, OTHER = "communication", "optimizer", "other"
NOT_KNOWN = ""

_CHANGE = int(Kind.CHANGE)
# Of the budget, as much as changes may cost; of shorter steps some are left out. The steps that are not followed cost
# some 0.02 to 0.07 ms as well where two ranks share two CPUs.
_SHARE = 0.2
# What took longer did so because the thread was kept from its CPU meanwhile: a change takes 3 to 10 us.
_LONGEST_NS = 30_000
# For so long a thread may not have been on its CPU before anybody asks whether it waited for one: that costs as much as
# all else of a change.
_UNNOTICED_NS = 20_000
# The first steps are followed whatever it costs, some 0.1 s in all: what a change costs is known then, and a short run
# tells who was late.
_FIRST_STEPS = 256
# And of a model that is wrapped later so many.
_NEW_STEPS = 32
# Behind them so many on end or none: what a rank did between two meetings is known where both steps were followed.
_ON_END = 16
# Which steps are followed must be the same on all ranks, and no rank must fall into step with them: by a hash.
_SPREAD, _RANGE = 0x9E3779B1, 1 << 32
# So many blocks, each beside one of the other kind, tell how much longer steps are that are followed; the last ones do.
_FEWEST_PAIRS, _MOST_PAIRS = 8, 64
# Of the blocks until then, where steps are longer by no more than so many times what we see of it ourselves.
_TO_COMPARE, _MOST_UNSEEN = 0.5, 10


class PhaseClock:
    """Notes the changes on the thread that makes it, which has to be the one that runs the loop."""

    def __init__(self, agent: "Agent") -> None:
        self._agent = agent
        self._words = {
            phase: agent.spool.intern(phase)
            for phase in (LOADING, FORWARD, BACKWARD, COMMUNICATION, OPTIMIZER, OTHER, NOT_KNOWN)
        }
        self._thread, self._has_loop = get_ident(), False
        self.by_calls = True  # outermost module calls are the forward pass, as nothing else says where that is
        self._is_in_call = False
        self._open: list[str] = []  # none of a step that is not followed
        self._step, self._block = -1, -1
        self.follows = True  # this step: its phases, and the buckets that are sent in it
        self.on_turn: list[Callable[[bool], None]] = []  # told of `follows` when that changes
        self._followed = 0
        self._spent_ns = 0  # in this step
        self._away_ns, self._waited_ns = 0, -1  # when it was asked last: time off the CPU, and of it waiting for one
        self._costs: deque[int] = deque(maxlen=_FIRST_STEPS)  # of steps that were followed, as we see them
        self._longer: deque[int] = deque(maxlen=_MOST_PAIRS)  # by how much blocks are that are followed
        self._began, self._took = 0, 0  # this block; how long the last one took, with its sign: rested ones below 0
        self._schedstat = _schedstat_of_this_thread()

    def enter(self, phase: str) -> None:
        """The loop goes into a phase, from which it comes back."""
        if self.follows and (get_ident() == self._thread or self._is_here(phase)):
            self._begin_step()
            if phase == OPTIMIZER:
                self._has_loop = True
                if phase in self._open:  # it was left by an exception
                    del self._open[self._open.index(phase) :]
            self._open.append(phase)
            self._change(phase)

    def _is_here(self, phase: str) -> bool:
        """Whether the loop turns out to run on this thread: a program may become a rank on another one than that of its
        first optimizer step."""
        if self._has_loop or phase != OPTIMIZER or BACKWARD in self._open:  # in a backward pass, on a thread of torch's
            return False
        self.stop()
        self._thread, self._schedstat = get_ident(), _schedstat_of_this_thread()
        self._away_ns, self._waited_ns = 0, -1
        self._open.clear()
        return True

    def leave(self, phase: str) -> None:
        """It has come back, also out of what was entered meanwhile and never left."""
        if self.follows and get_ident() == self._thread and phase in self._open:
            self._begin_step()
            while self._open.pop() != phase:
                pass
            self._change(self._open[-1] if self._open else OTHER)

    def enter_wait(self) -> None:
        """All that is left of the backward pass is waiting, if one is under way: ranks that have no more inputs send
        their buckets outside of any."""
        if BACKWARD in self._open:
            self.enter(COMMUNICATION)

    def enter_call(self) -> None:
        """An outermost module call begins; in a backward pass it does again what was done already, and as a batch is
        made it is a part of that."""
        is_forward = self.by_calls and BACKWARD not in self._open and LOADING not in self._open
        if is_forward and get_ident() == self._thread:
            self._is_in_call = True
            self.enter(FORWARD)

    def leave_call(self) -> None:
        """It is over."""
        if self._is_in_call and get_ident() == self._thread:
            self._is_in_call = False
            self.leave(FORWARD)

    def step_ended(self) -> int:
        """Decide whether the next step is followed. The number of steps when to call this again at the latest.

        Nowhere else, and not for a step that ends within a backward pass: there torch may hold a lock that who is told
        of the turn needs.
        """
        if (
            get_ident() == self._thread
            and BACKWARD not in self._open
            and (self.follows or not is_in_backward(_getframe()))
        ):
            self._begin_step()
            self._turn(self._is_followed())
        return (self._agent.governor.steps // _ON_END + 1) * _ON_END

    def start_anew(self) -> None:
        """Follow the steps that come, as many as it takes to see what they do."""
        self._followed, self._block = min(self._followed, _FIRST_STEPS - _NEW_STEPS), -1
        self._turn(True)

    def stop(self) -> None:
        """In a forked child, or where the collector is off."""
        if self._schedstat >= 0:
            os.close(self._schedstat)
            self._schedstat = -1

    def spent(self, ns: int) -> None:
        """What following this step has cost."""
        self._spent_ns += ns
        self._agent.governor.spent_ns += ns

    def _begin_step(self) -> None:
        if self._agent.governor.steps == self._step:
            return
        self._step = self._agent.governor.steps
        if self.follows and self._spent_ns:
            self._costs.append(self._spent_ns)
        self._spent_ns = 0
        self._followed += self.follows

    def _turn(self, follows: bool) -> None:
        if follows == self.follows:
            return
        self.follows = follows
        if not follows:
            self._open.clear()
            self._note(NOT_KNOWN, clock())
        for act in self.on_turn:
            act(follows)

    def _change(self, phase: str) -> None:
        began = clock()
        self._note(phase, began)
        self.spent(min(clock() - began, _LONGEST_NS))

    def _note(self, phase: str, now: int) -> None:
        cpu = cpu_clock()
        if now - cpu - self._away_ns > _UNNOTICED_NS or self._waited_ns < 0:
            self._away_ns, self._waited_ns = now - cpu, self._delayed()
        tid = threads.current().tid
        self._agent.spool.note((self._words[phase], tid, now, now, cpu, self._waited_ns, 0, 0, 0, 0, _CHANGE))

    def _is_followed(self) -> bool:
        if self.by_calls and self._agent.calls_go_past is not None:
            return False  # nothing tells the forward pass: it would be "other" on this rank alone
        governor, before = self._agent.governor, self._block
        self._block = block = self._step // _ON_END
        if block != before:
            self._block_ended(is_next=block == before + 1)
        if self._followed <= _FIRST_STEPS or not self._costs:  # this one is counted
            return True
        if block == before:  # ranks come here at the same time only where a block begins
            return self.follows
        allowed = governor.typical_step_ns * governor.budget * _SHARE
        return block * _SPREAD % _RANGE < self._followed_share(allowed) * _RANGE

    def _block_ended(self, is_next: bool) -> None:
        now, took = clock(), 0
        if is_next and self._began:
            took = (now - self._began) * (1 if self.follows else -1)
            if took * self._took < 0:  # one of each kind
                self._longer.append(took + self._took)
        self._began, self._took = now, took

    def _followed_share(self, allowed: float) -> float:
        """Of the blocks, where following a step may cost so many ns of each: by what we spend in it, or by how much
        longer it is, where that is more. Torch's way to us and back, and what we drive from its caches, are in no
        account of ours; until enough blocks tell, some of both kinds are looked at, unless nothing hangs on it."""
        cost = sorted(self._costs)[len(self._costs) // 2]
        if len(self._longer) < _FEWEST_PAIRS:
            return allowed / cost if cost * _MOST_UNSEEN < allowed else min(allowed / cost, _TO_COMPARE)
        return allowed / max(cost, sorted(self._longer)[len(self._longer) // 2] // _ON_END)

    def _delayed(self) -> int:
        # At a place: should the program have closed our file and opened another one, nothing of that is lost.
        try:
            return int(os.pread(self._schedstat, 64, 0).split()[1])
        except (OSError, IndexError, ValueError):
            return -1


def _schedstat_of_this_thread() -> int:
    """The open file that says for how long it waited for a CPU; -1 where there is none."""
    try:
        return os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
