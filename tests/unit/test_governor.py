"""The governor on a fake clock: what is recorded in detail, and whether the budget holds."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.collectors import governor as module
from tracekit.collectors.governor import Governor

MS = 1_000_000


class Program:
    """A training loop on a clock of its own: each step takes its time, and more when it is recorded in detail."""

    def __init__(self, budget: float = 0.01) -> None:
        self.now = 0
        patched = pytest.MonkeyPatch()
        patched.setattr(module, "clock", lambda: self.now)
        self.close = patched.undo
        self.governor = Governor(budget)
        self.detailed: list[bool] = []

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def step(self, own_ns: int, detail_ns: int, always_ns: int = 0) -> None:
        cost = always_ns + (detail_ns if self.governor.detailed else 0)
        self.detailed.append(self.governor.detailed)
        self.now += own_ns + cost
        self.governor.spent_ns += cost
        self.governor.steps += 1
        if self.governor.steps >= self.governor.settle_at:
            self.governor.settle()

    def share(self, since: int = 0, began: int = 0) -> float:
        """Of wall time spent in hooks."""
        return (self.governor.spent_ns - since) / (self.now - began)


def test_first_steps_are_detailed_whatever_they_cost() -> None:
    with Program() as program:
        for _ in range(4):
            program.step(own_ns=1 * MS, detail_ns=50 * MS)

        assert program.detailed == [True, True, True, False]


@settings(max_examples=40)
@given(
    st.integers(MS // 10, 500 * MS),
    st.floats(1e-5, 3.0),
    st.sampled_from([0.001, 0.01, 0.05, 0.5]),
)
def test_detail_keeps_its_half_of_the_budget(own_ns: int, cost: float, budget: float) -> None:
    """GIVEN steps of one length and detail of any cost THEN, beyond the first steps, it takes at most its half."""
    with Program(budget) as program:
        detail_ns = int(own_ns * cost)
        for _ in range(4):
            program.step(own_ns, detail_ns)
        spent, began = program.governor.spent_ns, program.now
        for _ in range(2_000):
            program.step(own_ns, detail_ns)

        one = detail_ns / (program.now - began)  # the last one may stand at the very end of its stretch
        assert program.share(spent, began) <= budget * 0.5 + one


def test_cheap_detail_is_taken_on_every_step() -> None:
    with Program(budget=0.01) as program:
        for _ in range(100):
            program.step(own_ns=100 * MS, detail_ns=MS // 10)

        assert all(program.detailed)
        assert program.governor.detailed_steps == 100


def test_costly_detail_comes_back_and_not_always_at_the_same_place() -> None:
    """A spacing that divides a pattern of the program would show only a part of it."""
    with Program(budget=0.01) as program:
        for _ in range(4_000):
            program.step(own_ns=10 * MS, detail_ns=1 * MS)

        at = [number for number, detailed in enumerate(program.detailed) if detailed][3:]
        assert len(at) > 100
        assert {number % 2 for number in at} == {0, 1}
        assert max(b - a for a, b in pairwise(at)) <= 1 * MS / (10 * MS * 0.01 * 0.5) + 3


@pytest.mark.parametrize(("before", "after"), [(100, 1), (1, 100), (20, 5)])
def test_spacing_follows_a_program_that_changes_its_pace(before: int, after: int) -> None:
    """GIVEN steps that become another length THEN detail soon takes its half of the budget again and not more."""
    with Program(budget=0.02) as program:
        detail_ns = MS // 2
        for length in (before, after):
            for _ in range(300):
                program.step(length * MS, detail_ns)
        spent, began, seen = program.governor.spent_ns, program.now, len(program.detailed)
        for _ in range(3_000):
            program.step(after * MS, detail_ns)

        assert program.share(spent, began) <= 0.02 * 0.5 * 1.02
        spacing = detail_ns / (after * MS * 0.02 * 0.5)
        assert sum(program.detailed[seen:]) >= 3_000 / (spacing + 3)


def test_one_step_that_took_long_in_our_hooks_does_not_make_detail_seem_free() -> None:
    """GIVEN detail of 1 ms in steps of 25, and a first step without it whose thread lost its CPU in a hook for 20 ms,
    and so once more when the program goes on with steps of 50 THEN detail keeps its half of the budget."""
    with Program(budget=0.01) as program:
        for length in (25, 50):
            is_lost = True
            for step in range(1_100):
                if step == 100:
                    spent, began = program.governor.spent_ns, program.now
                lost_ns = 20 * MS if is_lost and not program.governor.detailed else 0
                is_lost &= not lost_ns
                program.step(length * MS, detail_ns=MS, always_ns=lost_ns)
            assert program.share(spent, began) <= 0.01 * 0.5 * 1.02


@settings(max_examples=60)
@given(st.integers(MS // 5, 200 * MS), st.integers(1_000, 200_000), st.floats(0.001, 0.02))
def test_calls_keep_their_part_of_the_budget(own_ns: int, calls_ns: int, budget: float) -> None:
    """GIVEN calls of any cost THEN they are recorded on every step where that is cheap, else on as many as are allowed,
    but never on less than one step in ten, and on some steps on end."""
    with Program(budget) as program:
        seen: list[bool] = []
        for _ in range(6_000):
            program.governor.calls_ns = calls_ns
            seen.append(program.governor.with_calls)
            program.step(own_ns, detail_ns=own_ns // 4, always_ns=calls_ns if program.governor.with_calls else 0)
        plain = [was for was, detailed in zip(seen, program.detailed, strict=True) if not detailed][100:]
        share, allowed = sum(plain) / len(plain), own_ns * budget * 0.05 / calls_ns
        if allowed >= 1.01:
            assert share == 1
        elif allowed <= 0.98:
            assert max(allowed * 0.7, 0.1) <= share <= max(allowed * 1.4, 0.16)
        assert all(was for was, detailed in zip(seen, program.detailed, strict=True) if detailed)


def test_calls_are_recorded_on_steps_on_end() -> None:
    with Program() as program:
        seen = []
        for _ in range(5_000):
            program.governor.calls_ns = MS
            seen.append(program.governor.with_calls)
            program.step(2 * MS, detail_ns=MS)
        runs = "".join("1" if was else "0" for was in seen[100:]).split("0")
        assert max(map(len, runs)) >= 16
        gaps = {len(gap) for gap in "".join("1" if was else "0" for was in seen).split("1") if gap}
        assert len(gaps) > 5  # no period of ours


def test_one_costly_step_does_not_end_the_detail() -> None:
    """GIVEN one detailed step a thousand times as costly (a page fault, a suspended laptop) THEN detail goes on."""
    with Program(budget=0.01) as program:
        for number in range(2_000):
            program.step(10 * MS, 1_000 * MS if number == 40 else MS // 10)

        assert sum(program.detailed[1_000:]) > 200


@pytest.mark.parametrize("lengths", [[1], [1, 9], [5, 5, 5, 80]])
def test_windows_stay_within_their_half(lengths: list[int]) -> None:
    """GIVEN windows opened whenever they are afforded THEN their share of the time never exceeds their half."""
    with Program(budget=0.01) as program:
        opened = 0
        for number in range(20_000):
            if program.now >= program.governor.next_window(3 * MS):
                opened += 1
                program.governor.profiler_ns += 3 * MS
                program.now += 3 * MS
            program.step(lengths[number % len(lengths)] * MS, 0)
            assert program.governor.profiler_ns <= 0.01 * 0.5 * program.now
        assert program.governor.profiler_ns >= 0.01 * 0.5 * program.now - 3 * MS - max(lengths) * MS
        assert opened


def test_a_pause_of_the_program_pays_for_no_burst_of_windows() -> None:
    """GIVEN a program that validates for an hour WHEN it goes on THEN windows of 3 ms come as far apart as ever, but
    for one."""
    with Program(budget=0.01) as program:
        opened: list[int] = []
        for number in range(4_000):
            if number == 2_000:
                program.now += 3_600_000 * MS
                opened.clear()
            if program.now >= program.governor.next_window(3 * MS):
                opened.append(program.now)
                program.governor.profiler_ns += 3 * MS
            program.step(MS, 0)
        apart = [after - before for before, after in pairwise(opened)]
        assert apart[0] >= MS and min(apart[1:]) >= 0.95 * 3 * MS / (0.01 * 0.5)


def test_the_first_window_of_which_no_cost_is_known_may_open_at_once() -> None:
    with Program(budget=0.01) as program:
        for _ in range(3):
            program.step(MS, 0)
            before = program.now
            program.now += 1_000  # whoever asks has read the clock already
            assert program.governor.next_window(0) <= before


def test_windows_take_what_hooks_leave() -> None:
    """GIVEN hooks that take a third, or all, of the budget and that nothing can space out THEN windows take their half,
    or a tenth of it."""
    for always_ns, share in ((MS // 300, 0.5), (MS // 20, 0.1)):
        with Program() as program:
            for _ in range(200):
                program.step(own_ns=MS, detail_ns=0, always_ns=always_ns)
            wait = program.governor.next_window(3 * MS) - program.governor.started
            assert wait == pytest.approx(3 * MS / (0.01 * share), rel=0.01)


def test_no_budget_leaves_the_first_steps_and_raises_nothing() -> None:
    with Program(budget=0.0) as program:
        for _ in range(10_000):
            program.step(own_ns=1 * MS, detail_ns=1_000)

        assert sum(program.detailed) <= 4


def test_steps_that_take_no_time() -> None:
    with Program() as program:
        for _ in range(100):
            program.step(own_ns=0, detail_ns=0)

        assert program.governor.steps == 100
        assert program.governor.overhead() == {"program": 0.0, "profiler": 0.0}


def test_typical_step_is_the_median_of_the_last_ones() -> None:
    with Program() as program:
        assert program.governor.typical_step_ns == 0
        program.step(own_ns=10_000 * MS, detail_ns=0)  # the first holds what came before the loop
        assert program.governor.typical_step_ns == 0
        for length in [5, 5, 900, 5, 5]:
            program.step(length * MS, 0)
        assert program.governor.typical_step_ns == 5 * MS


def test_overhead_is_what_the_program_would_not_have_spent() -> None:
    with Program() as program:
        program.now = 110 * MS
        program.governor.spent_ns, program.governor.profiler_ns = 4 * MS, 6 * MS

        assert program.governor.overhead() == {"program": 0.1, "profiler": pytest.approx(6 / 110)}


@settings(max_examples=40)
@given(st.integers(MS // 10, 20 * MS), st.integers(1, 3000))
def test_what_a_kill_can_lose_is_half_a_percent_of_the_steps(own_ns: int, steps: int) -> None:
    """Short steps are written some at a time, but never more than 0.5 % of those so far; long ones one by one."""
    with Program() as program:
        for _ in range(steps):
            program.step(own_ns=own_ns, detail_ns=MS // 10)

        unwritten = program.governor.steps_per_write - 1
        assert unwritten <= max(0.005 * steps, 0)
        assert unwritten == 0 or own_ns < 20 * MS
        assert steps < 2000 or own_ns >= 20 * MS or unwritten > 0
