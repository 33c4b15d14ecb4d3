"""Keeps recording under its budget: which steps are recorded in detail, and when a profiler window may open."""

from collections import deque
from time import perf_counter_ns as clock

# The budget is split: half for the hooks that are always there and the detailed steps, half for profiler windows.
_SHARE_OF_DETAIL = 0.5
# The first steps are recorded in detail whatever they cost, so that a run of a few steps names every layer.
_FIRST_DETAILED_STEPS = 3
# Only this many step times are remembered: the median follows a program that changes its pace.
_REMEMBERED_STEPS = 64


class Governor:
    """Counts what recording costs in this process and spaces out what can be spaced out.

    Costs are nanoseconds spent in tracekit's own code on the program's threads. `budget` is a share of wall time.
    """

    def __init__(self, budget: float) -> None:
        self.budget = budget
        self.started = clock()
        self.spent_ns = 0
        self.profiler_ns = 0
        self.steps = 0
        self.detailed = True
        self.detailed_steps = 0
        self.typical_step_ns = 0  # the median of the last steps, 0 before there are any
        self._step_began = self.started
        self._spent_before = 0
        self._next_detailed = 0
        self._step_times: deque[int] = deque(maxlen=_REMEMBERED_STEPS)
        self._detail_costs: deque[int] = deque(maxlen=8)

    def step_ended(self) -> None:
        """Called at every step's end; decides whether the next one is recorded in detail."""
        now = clock()
        if self.steps:
            self._step_times.append(now - self._step_began)
            if self.steps < _REMEMBERED_STEPS or self.steps % _REMEMBERED_STEPS == 0:
                self.typical_step_ns = sorted(self._step_times)[len(self._step_times) // 2]
        cost = self.spent_ns - self._spent_before
        self._step_began, self._spent_before = now, self.spent_ns
        self.steps += 1
        if self.detailed:
            self.detailed_steps += 1
            self._detail_costs.append(cost)
            self._next_detailed = self.steps + self._spacing()
        self.detailed = self.steps < _FIRST_DETAILED_STEPS or self.steps >= self._next_detailed

    def _spacing(self) -> int:
        """Steps from one detailed step to the next, so that detail costs its share of the budget on average.

        One step is added now and then: a spacing that divides a pattern of the program would always meet the same part.
        """
        typical = self.typical_step_ns
        if not typical:
            return 0
        cost = sorted(self._detail_costs)[len(self._detail_costs) // 2]
        spacing = cost / (typical * self.budget * _SHARE_OF_DETAIL)
        return int(spacing) + (self.detailed_steps % 2 if spacing > 1 else 0)

    def next_window(self, cost_ns: float) -> int:
        """When a profiler window of this cost will keep windows within their share of the time: CLOCK_MONOTONIC ns."""
        return self.started + int((self.profiler_ns + cost_ns) / (self.budget * (1 - _SHARE_OF_DETAIL)))

    def overhead(self) -> dict[str, float]:
        """The shares of wall time spent in hooks (`program`) and, of these, in profiler windows (`profiler`)."""
        elapsed = max(clock() - self.started, 1)
        program = (self.spent_ns + self.profiler_ns) / max(elapsed - self.spent_ns - self.profiler_ns, 1)
        return {"program": program, "profiler": self.profiler_ns / elapsed}
