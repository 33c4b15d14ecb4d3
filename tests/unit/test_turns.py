"""Which steps of a run that took turns are good."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracekit.study.turns import COLD_STEPS, undisturbed


def test_the_step_that_was_stopped_and_the_next_ones_go() -> None:
    starts = np.arange(10, dtype=np.int64) * 10
    ends = starts + 10
    starts[4:] += 1000
    ends[3:] += 1000  # step 3 was stopped at 35

    kept = undisturbed(starts, ends, [(35, 1035)])

    assert kept.tolist() == [True] * 3 + [False] * (1 + COLD_STEPS) + [True] * (6 - COLD_STEPS)


def test_a_stop_between_steps_before_them_or_behind_them() -> None:
    starts = np.array([0, 20, 40, 60, 80], dtype=np.int64)
    ends = starts + 10
    assert undisturbed(starts, ends, [(12, 18)]).tolist() == [True, False, False, True, True]
    assert undisturbed(starts, ends, [(-9, -5)]).tolist() == [False, False, True, True, True]
    assert undisturbed(starts, ends, [(100, 200)]).all()
    assert undisturbed(starts, ends, []).all()


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 20)), max_size=30), st.data())
def test_no_step_that_is_kept_meets_a_stop(steps: list[tuple[int, int]], data: st.DataObject) -> None:
    ends = np.cumsum([length + gap for length, gap in steps], dtype=np.int64)
    starts = ends - np.array([length for length, _ in steps], dtype=np.int64)
    times = sorted(data.draw(st.lists(st.integers(0, 1500), max_size=8)))
    stops = list(zip(times[::2], times[1::2], strict=False))

    kept = undisturbed(starts, ends, stops)

    for stopped, resumed in stops:
        assert not (kept & (ends > stopped) & (starts < resumed)).any()
