"""Backward passes of ranks: what is told of them where most are left out."""

from pathlib import Path

import pandas as pd
import pytest
from synthetic import BEGIN_NS, Tape, make_run, ns

from tracekit.analysis.gradient_passes import PASSES, _computed, _cpu_beside
from tracekit.run.reader import open_run

STEP_MS, STEPS = 10.0, 160
BUSY, BUSY_LOOP = 0.8, 0.5  # of a CPU: the process, and of it the thread of the loop


@pytest.mark.parametrize("followed", [range(STEPS), [*range(32), *range(96, 128)]])
def test_the_cpu_time_beside_a_pass_is_that_of_one_step(followed: list[int], tmp_path: Path) -> None:
    """GIVEN steps of which some blocks have no records of their passes THEN other threads are taken to have worked for
    each pass what they do in one step, not all that they did from one recorded pass to the next."""
    tape = Tape(process=0, role="rank 0", rank=0)
    for step in followed:
        start = ns(step * STEP_MS)
        tape.add("spans", start, start + ns(4), kind="phase", name="backward")
        tape.add("changes", start, start, phase="backward", cpu_ns=round(BUSY_LOOP * start), delayed_ns=0)
    for start in range(0, round(STEPS * STEP_MS), 100):
        tape.counter("process.cpu_ns", round(BUSY * 100e6), start, 100)
    run = open_run(make_run(tmp_path / "run", [tape]))
    passes = run.sql(PASSES.format(ranks=0))
    assert _cpu_beside(run, passes, passes) == pytest.approx((BUSY - BUSY_LOOP) * STEP_MS / 1e3, rel=0.02)
    # Where gradients of four passes are added up, what is sent in the last of them costs what all four took.
    with_buckets = passes[passes["number"] % 4 == 0][["process", "number"]]
    beside = _cpu_beside(run, passes, with_buckets)
    assert beside == pytest.approx(4 * (BUSY - BUSY_LOOP) * STEP_MS / 1e3, rel=0.02)


def test_what_is_gathered_within_a_pass_is_no_end_of_it(tmp_path: Path) -> None:
    """GIVEN a loss whose own backward pass gathers, before the buckets are waited for THEN all that was computed in the
    pass until then is."""
    tape, cpu, starts = Tape(process=0, role="rank 0", rank=0), 0, []
    within = [("backward", 3), ("communication", 0.5), ("backward", 5), ("communication", 0.25), ("backward", 1)]
    for _ in range(STEPS):
        for phase, ms in [("forward", 2.0), *within, ("optimizer", 1.0)]:
            if phase == "backward" and tape.rows["changes"][-1]["phase"] == "forward":
                starts.append(BEGIN_NS + tape.now)
            tape.change(phase, cpu)
            cpu += ns(ms)
            tape.gap(ms + 1)  # off its CPU
    took = sum(ms + 1 for _, ms in within) / 1e3
    passes = pd.DataFrame({"process": 0, "number": range(STEPS), "start_ns": starts, "took": took})
    found = _computed(open_run(make_run(tmp_path / "run", [tape])), passes)
    assert found == pytest.approx((8.5e-3, 1.25e-3))
