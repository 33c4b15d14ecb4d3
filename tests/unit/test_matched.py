"""The steps of runs that took turns."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tracekit.study.matched import COLD_STEPS, RunSteps, StepTime, step_times, whole_loop_ms


def steps(starts: list[int], length: int, stops: list[tuple[int, int]]) -> RunSteps:
    return RunSteps(np.array(starts, dtype=np.int64), np.full(len(starts), length, dtype=np.int64), stops)


def test_the_step_that_was_stopped_and_the_next_ones_go() -> None:
    starts = np.arange(10, dtype=np.int64) * 10
    durations = np.full(10, 10, dtype=np.int64)
    starts[4:] += 1000
    durations[3] += 1000  # stopped at 35

    kept = RunSteps(starts, durations, [(35, 1035)]).undisturbed()

    assert kept.tolist() == [True] * 3 + [False] * (1 + COLD_STEPS) + [True] * (6 - COLD_STEPS)


def test_a_stop_between_steps_before_them_or_behind_them() -> None:
    starts = [0, 20, 40, 60, 80]
    assert steps(starts, 10, [(12, 18)]).undisturbed().tolist() == [True, False, False, True, True]
    assert steps(starts, 10, [(-9, -5)]).undisturbed().tolist() == [False, False, True, True, True]
    assert steps(starts, 10, [(100, 200)]).undisturbed().all()
    assert steps(starts, 10, []).undisturbed().all()


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 20)), max_size=30), st.data())
def test_no_step_that_is_kept_meets_a_stop(lengths: list[tuple[int, int]], data: st.DataObject) -> None:
    ends = np.cumsum([length + gap for length, gap in lengths], dtype=np.int64)
    durations = np.array([length for length, _ in lengths], dtype=np.int64)
    times = sorted(data.draw(st.lists(st.integers(0, 1500), max_size=8)))
    stops = list(zip(times[::2], times[1::2], strict=False))

    kept = RunSteps(ends - durations, durations, stops).undisturbed()

    for stopped, resumed in stops:
        assert not (kept & (ends > stopped) & (ends - durations < resumed)).any()


def taking_turns(step_ns: list[int], cycles: int, speed: np.ndarray) -> list[RunSteps]:
    """Runs with steps so long, 8 of them a turn, on a machine whose speed changes from turn to turn."""
    clock = 0
    tables: list[tuple[list[int], list[int], list[tuple[int, int]]]] = [([], [], [(0, 0)]) for _ in step_ns]
    for cycle in range(cycles):
        for (starts, durations, stops), length in zip(tables, step_ns, strict=True):
            stops[-1] = (stops[-1][0], clock)
            for _ in range(8):
                starts.append(clock)
                durations.append(int(length * speed[cycle]))
                clock += durations[-1]
            stops.append((clock, clock))
    return [RunSteps(np.array(starts), np.array(durations), stops) for starts, durations, stops in tables]


def test_what_the_machine_does_to_all_cancels() -> None:
    """GIVEN a machine whose speed halves and doubles WHEN one run is 10 % faster THEN that is what is found."""
    speed = np.exp(np.random.default_rng(0).normal(0, 0.7, 40))

    slow, fast = step_times(taking_turns([1_000_000, 900_000], 40, speed))

    assert fast.median_ms / slow.median_ms == pytest.approx(0.9, rel=1e-3)
    assert fast.mean_ms / slow.mean_ms == pytest.approx(0.9, rel=1e-3)


def test_a_run_that_ends_early_is_compared_over_what_all_have_had() -> None:
    speed = np.array([1.0] * 20 + [3.0] * 20)
    first, second = taking_turns([1_000_000, 1_000_000], 40, speed)
    early = RunSteps(first.starts_ns[:160], first.durations_ns[:160], first.stops[:21])

    assert [each.median_ms for each in step_times([early, second])] == pytest.approx([1, 1], rel=1e-3)


def taking_timed_turns(
    step_ns: list[NDArray[np.int64]], turns_ns: list[int], slow_after: float = np.inf
) -> list[RunSteps]:
    """Runs of these steps, which take turns of so long, each its own, until each has ended; on a machine that takes
    twice as long for all of them after some time."""
    durations_ns = [np.zeros_like(each) for each in step_ns]
    clock, done = 0, [0] * len(step_ns)
    tables: list[tuple[list[int], list[tuple[int, int]]]] = [([], [(0, 0)]) for _ in step_ns]
    while any(at < len(each) for at, each in zip(done, step_ns, strict=True)):
        for number, ((starts, stops), durations) in enumerate(zip(tables, step_ns, strict=True)):
            if done[number] == len(durations):
                continue
            stops[-1] = (stops[-1][0], clock)
            until = clock + turns_ns[number]
            while clock < until and done[number] < len(durations):
                starts.append(clock)
                durations_ns[number][done[number]] = durations[done[number]] * (1 + (clock >= slow_after))
                clock += int(durations_ns[number][done[number]])
                done[number] += 1
            if done[number] < len(durations):
                stops.append((clock, clock))
    return [
        RunSteps(np.array(starts), durations, stops) for (starts, stops), durations in zip(tables, step_ns, strict=True)
    ]


@pytest.mark.parametrize(
    "lengths",
    [
        np.repeat([0.5, 5.0], [5600, 240]),  # a phase of longer steps
        np.linspace(10, 2, 1200),  # sorted by length
        np.linspace(2, 10, 1200),
        np.ones(2000),
    ],
)
def test_steps_that_differ_are_compared_with_themselves(lengths: NDArray[np.float64]) -> None:
    """GIVEN a program whose steps differ WHEN one run takes 10 % less for each THEN that is what is found, though it
    comes to the longer ones earlier."""
    slow = (lengths * 1e6).astype(np.int64)

    one, other = step_times(taking_timed_turns([slow, slow * 9 // 10], [20_000_000, 20_000_000]))

    assert other.median_ms / one.median_ms == pytest.approx(0.9, rel=5e-3)
    assert other.mean_ms / one.mean_ms == pytest.approx(0.9, rel=5e-3)


def test_of_steps_of_two_kinds_the_mean_tells_what_a_run_gains() -> None:
    """GIVEN steps of 4 and of 7.5 ms WHEN one run has more of the fast ones THEN medians tell one kind against the
    other, and means what all of them together take."""
    draws = np.random.default_rng(0).random(4000)
    one, other = (np.where(draws < share, 7_500_000, 4_000_000) for share in (0.7, 0.3))

    had, has = step_times(taking_timed_turns([one, other], [40_000_000, 30_000_000]))

    assert had.median_ms / has.median_ms > 1.4
    assert had.mean_ms / has.mean_ms == pytest.approx((0.7 * 7.5 + 0.3 * 4) / (0.3 * 7.5 + 0.7 * 4), rel=0.02)


def test_turns_of_as_many_steps_cancel_what_the_machine_does_half_way() -> None:
    """GIVEN runs of different speed, with turns as long as their steps WHEN the machine slows down half-way THEN it
    does so at the same step of all."""
    slow = np.full(2000, 1_000_000)
    fast = slow * 7 // 10

    one, other = step_times(taking_timed_turns([slow, fast], [20_000_000, 14_000_000], slow_after=1.7e9))

    assert other.median_ms / one.median_ms == pytest.approx(0.7, rel=0.01)
    assert other.mean_ms / one.mean_ms == pytest.approx(0.7, rel=0.01)


def test_runs_with_few_turns_or_alone_give_their_own() -> None:
    runs = taking_turns([1_000_000, 2_000_000], 3, np.ones(3))
    assert step_times(runs) == [StepTime(1.0, 1.0), StepTime(2.0, 2.0)]
    uneven = RunSteps(np.arange(5) * 20, np.array([50, 1, 2, 2, 9]) * 1_000_000, [])
    assert step_times([uneven]) == [pytest.approx((2.0, 3.5))]


def test_the_mean_step_counts_what_every_tenth_step_waits_for() -> None:
    """GIVEN nine steps of 1 ns after each of 11 ns THEN a step takes 2 ns, which no median tells."""
    durations = np.array([11, *[1] * 9] * 8, dtype=np.int64)
    starts = np.cumsum(durations) - durations
    assert whole_loop_ms(RunSteps(starts, durations, [])) == pytest.approx(2e-6)
    assert whole_loop_ms(RunSteps(80 + starts, durations, [])) == pytest.approx(3e-6)  # it waited for the first batch
