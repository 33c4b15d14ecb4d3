"""Keeps recording under its budget: which steps are recorded in detail, which without the module calls, and when a
profiler window may open.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable
from time import perf_counter_ns as clock

# The budget is split: half for the hooks that are always there and the detailed steps, half for profiler windows.
_SHARE_OF_HOOKS = 0.5
# Of the budget for detailed steps, and for windows, also where the hooks that are always there have used up all of it.
_LEAST_SHARE = 0.1
# Of the budget for calls on steps without detail. They come between operations, where nothing of ours is in the caches:
# recorded on every step they were about half of what recording cost, 50 us in a step of 2 ms and 120 us in one of 12 ms
# (`benchmarks/overhead.py`).
_SHARE_OF_CALLS = 0.05
# Calls are recorded on so many steps on end, so that a round of several optimizers is among them as a whole; and never
# on less than one step in so many: what detailed steps cost would show in the phases if most of the known were they.
_CALLS_ON_END = 16
_RAREST_CALLS = 8
# The first steps are recorded in detail whatever they cost, so that a run of a few steps names every layer.
_FIRST_DETAILED_STEPS = 3
# Only this many measurements are remembered: the medians follow a program that changes its pace.
_REMEMBERED = 16
# Accounts are settled this often, also where no step is recorded in detail for long; and at the end of every step that
# is, unless steps in detail are as cheap as others and short: to settle takes 20 to 40 us.
_SETTLED_EVERY_NS = 1_000_000_000
# The records of short steps are written for so long at a time: a write takes 10 to 40 us in cold caches, so it is 0.1 %
# and more of steps below this. What a killed process has not written is at most this share of its steps, too. The
# accounts of short steps are settled for longer at a time: with the safe point that follows it takes 100 us.
_SHORT_STEP_NS = 20_000_000
_WRITTEN_TOGETHER_NS = 50_000_000
_MAY_BE_LOST = 0.005
_SETTLED_TOGETHER_NS = 100_000_000
# More than the caches of a core hold, those of page addresses included.
_CACHES_BYTES = 8 << 20
_COLD_ROUNDS = 5
# More steps, and more nanoseconds, than any program lives.
_NEVER = 1 << 62


class Governor:
    """Counts what recording costs in this process and spaces out what can be spaced out.

    Costs are nanoseconds spent in tracekit's own code on the program's threads. `budget` is a share of wall time.
    """

    def __init__(self, budget: float, note_ns: int = 0) -> None:
        self.budget = budget
        self.started = clock()
        self.spent_ns = 0
        self.profiler_ns = 0
        self._forfeited_ns = 0  # time that could have paid for profiler windows, and there were no steps
        self.note_ns = note_ns  # of a hook that times one call and notes it
        self.has_calls = True  # of modules, which detail is about
        self.count_from_here()

    def count_from_here(self) -> None:
        """Begin to count steps: at the start, and when events are met that tell the steps better than those so far."""
        self.steps = 0
        self.detailed = True
        self.detailed_steps = 0
        self.typical_step_ns = 0  # the median of recent stretches' mean steps, less our own part; 0 before any
        self.steps_per_write = 1  # so many steps' records are written together
        self.settled_steps = 1  # how many steps the stretch had that was settled last,
        self.plain_steps = 0  # and how many of them without detail: all or none
        self.with_calls = True  # whether module calls are recorded in this stretch
        self.calls_ns = 0  # what they cost on a step without detail; 0 where they are to be recorded on every step
        self._began = clock()
        self._began_at_step = 0
        self._spent_before = self.spent_ns
        self.settle_at = 1
        self._next_detailed = 0
        self._next_calls = 0
        self._random = random.Random(0)
        self._step_times: deque[int] = deque(maxlen=_REMEMBERED)
        self._detail_costs: deque[int] = deque(maxlen=_REMEMBERED)
        self._plain_costs: deque[int] = deque(maxlen=_REMEMBERED)

    def settle(self) -> None:
        """To be called when `steps`, which the caller counts, come to `settle_at`: there ends a stretch of steps that
        were recorded alike. Then `detailed` says how the next stretch is recorded."""
        now, count = clock(), max(self.steps - self._began_at_step, 1)
        cost = self.spent_ns - self._spent_before
        if self._began_at_step:  # the first step has the program's start in it
            self._step_times.append(max(now - self._began - cost, 0) // count)
            self.typical_step_ns = _median(self._step_times)
        is_cheap = False
        if self.detailed:
            self.detailed_steps += count
            self._detail_costs.append(cost // count)
            spacing = self._spacing()
            is_cheap = spacing == 0
            self._next_detailed = self.steps + spacing
        else:
            self._plain_costs.append(cost // count)
        self.settled_steps, self.plain_steps = count, 0 if self.detailed else count
        self.detailed = self.steps < _FIRST_DETAILED_STEPS or self.steps >= self._next_detailed
        stretch, self.with_calls = 1, True
        if is_cheap and self.detailed and self.typical_step_ns > 0:
            stretch = max(min(_SETTLED_TOGETHER_NS // self.typical_step_ns, self.steps // _REMEMBERED), 1)
        if not self.detailed:
            stretch = min(self._next_detailed - self.steps, max(_SETTLED_EVERY_NS // max(self.typical_step_ns, 1), 1))
            stretch = self._space_calls(stretch)
        self.settle_at = self.steps + stretch
        if self.typical_step_ns < _SHORT_STEP_NS:
            together = -(-_WRITTEN_TOGETHER_NS // max(self.typical_step_ns, 1))
            self.steps_per_write = max(1, min(int(self.steps * _MAY_BE_LOST), together))
        else:
            self.steps_per_write = 1
        self._began, self._began_at_step, self._spent_before = now, self.steps, self.spent_ns

    def _spacing(self) -> int:
        """Steps from one detailed step to the next, so that detail costs what the other hooks leave of their half.

        One step is added now and then: a spacing that divides a pattern of the program would always meet the same part.
        """
        if not self.typical_step_ns or not self.has_calls:
            return 0
        always = _median(self._plain_costs) if self._plain_costs else 0
        budget = self.typical_step_ns * self.budget
        allowed = max(budget * _SHARE_OF_HOOKS - always, budget * _LEAST_SHARE)
        if not allowed:
            return _NEVER
        detail = _median(self._detail_costs)
        spacing = max(detail - always, 0) / allowed
        if detail > budget * _SHARE_OF_HOOKS:
            # What the others cost is looked at again as long as that is more: of few, or of long ago, it may be said
            # too much, as where the thread lost its CPU in a hook.
            spacing = max(spacing, 1.0)
        return int(spacing) + (self.detailed_steps % 2 if spacing > 1 else 0)

    def _space_calls(self, stretch: int) -> int:
        """Decide on the calls of a stretch without detail; how long it is then.

        The gaps between the steps with calls vary, as the program may have a period of its own.
        """
        allowed = self.typical_step_ns * self.budget * _SHARE_OF_CALLS
        self.with_calls = self.calls_ns <= allowed or self.steps >= self._next_calls
        if self.calls_ns <= allowed:
            return stretch
        if not self.with_calls:
            return min(stretch, self._next_calls - self.steps)
        stretch = min(stretch, _CALLS_ON_END)
        spacing = min(self.calls_ns / allowed, _RAREST_CALLS) if allowed else _RAREST_CALLS
        gap = stretch * (spacing - 1) * self._random.uniform(0.5, 1.5)
        self._next_calls = self.steps + stretch + int(gap + self._random.random())
        return stretch

    def next_window(self, cost_ns: float) -> int:
        """When a profiler window of this cost will keep windows within their share of the time: CLOCK_MONOTONIC ns.

        Their half, or less where the hooks that are always there take more than theirs. No more time is saved up than
        one window takes: after a pause of the program they do not come in a burst.
        """
        hooks = _median(self._plain_costs or self._detail_costs or (0,)) / max(self.typical_step_ns, 1)
        left = max(self.budget * (1 - _LEAST_SHARE) - hooks, self.budget * _LEAST_SHARE)
        share = min(self.budget * (1 - _SHARE_OF_HOOKS), left)
        if not share:
            return _NEVER
        due = self.started + self._forfeited_ns + int((self.profiler_ns + cost_ns) / share)
        self._forfeited_ns += max(clock() - due - int(cost_ns / share), 0)
        return due

    def overhead(self) -> dict[str, float]:
        """The shares of wall time spent in hooks (`program`) and, of these, in profiler windows (`profiler`)."""
        elapsed = max(clock() - self.started, 1)
        program = (self.spent_ns + self.profiler_ns) / max(elapsed - self.spent_ns - self.profiler_ns, 1)
        return {"program": program, "profiler": self.profiler_ns / elapsed}


def cold_ns(act: Callable[[], object]) -> int:
    """The time of a call that finds nothing of its own in the caches, as hooks between two operations do, ns."""
    others = bytes(_CACHES_BYTES)

    def timed(function: Callable[[], object]) -> int:
        others.count(1)
        began = clock()
        function()
        return clock() - began

    rounds = [(timed(act), timed(_nothing)) for _ in range(_COLD_ROUNDS)]
    return max(_median(first for first, _ in rounds) - _median(second for _, second in rounds), 0)


def _nothing() -> None: ...


def _median(values: Iterable[int]) -> int:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
