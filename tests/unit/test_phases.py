"""Phases are exclusive, exact, and follow the precedence that their module states."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import MS, Tape, make_run, training_run

from tracekit.analysis.loop import Rows, What
from tracekit.analysis.phases import PHASES, phase_shares, phase_times, step_phases
from tracekit.analysis.steps import find_steps
from tracekit.run.reader import open_run


def phases_of(path: Path, *tapes: Tape) -> dict[str, list[float]]:
    run = open_run(make_run(path / "run", tapes))
    steps = find_steps(run)
    frame = step_phases(run, steps)
    sums = frame.groupby("step")["duration_ns"].sum()
    assert sums.tolist() == steps.frame["duration_ns"].tolist()
    return {name: (part["duration_ns"] / MS).tolist() for name, part in frame.groupby("phase", observed=False)}


def test_an_ordinary_step(tmp_path: Path) -> None:
    run = open_run(training_run(tmp_path / "run", steps=4))
    frame = step_phases(run, find_steps(run))
    last = frame[frame["step"] == 3].set_index("phase")["duration_ns"] / MS
    assert last.to_dict() == {
        "loading wait": 2, "forward": 6, "backward": 8, "optimizer": 3, "communication": 0, "other": 1,
    }  # fmt: skip
    shares = phase_shares(frame, 0)
    assert list(shares) == PHASES
    assert sum(shares.values()) == pytest.approx(1)


@pytest.mark.parametrize(("table", "are_known"), [("batches", False), ("spans", False), ("counters", True)])
def test_what_cannot_be_read_leaves_phases_unknown(tmp_path: Path, table: str, are_known: bool) -> None:
    """GIVEN a truncated file of batches THEN no step is said to have waited 0 ms for them; counters tell no phases."""
    path = training_run(tmp_path / "run", steps=4)
    folder = path / "tables" / table
    folder.mkdir(exist_ok=True)
    for part in [*folder.glob("*.parquet")] or [folder / "node0-000099.parquet"]:
        part.write_bytes(b"PAR1")
    run = open_run(path)
    assert any(f"tables/{table}/" in note.what and note.lost for note in run.missing)
    assert (len(step_phases(run, find_steps(run))) > 0) == are_known


def test_a_closure_splits_the_optimizer_step(tmp_path: Path) -> None:
    tape = Tape()
    with tape.in_optimizer():
        for _ in range(3):
            tape.call("Model", 5)
            with tape.backward(4):
                pass
            tape.gap(1)
    found = phases_of(tmp_path, tape)
    assert (found["forward"], found["backward"], found["optimizer"]) == ([15], [12], [3])


def test_a_forward_inside_backward_is_backward(tmp_path: Path) -> None:
    tape = Tape()
    tape.call("Model", 5)
    with tape.backward(4):
        tape._depth = 0
        tape.call("Block", 2)
    found = phases_of(tmp_path, tape)
    assert (found["forward"], found["backward"]) == ([5], [6])


def test_communication_comes_first_unless_it_returns_at_once(tmp_path: Path) -> None:
    tape = Tape()
    tape.call("Model", 5)
    with tape.backward(4):
        tape.collective(3)
        tape.collective(2, is_async=True)
    found = phases_of(tmp_path, tape)
    assert (found["communication"], found["backward"]) == ([3], [6])


def test_other_threads_do_not_count(tmp_path: Path) -> None:
    tape = Tape()
    with tape.backward(4):
        pass
    tape.rows["spans"].append(
        tape.rows["spans"][0] | {"thread": 9, "kind": "layer", "name": "Model", "direction": "forward"}
    )
    tape.optimizer(2)
    assert phases_of(tmp_path, tape)["forward"] == [0]


def test_phases_of_steps_without_calls_are_not_known(tmp_path: Path) -> None:
    """GIVEN calls left out from within step 1 into step 3, and again in the last, when the program was killed THEN only
    the steps with all calls have phases."""
    tape = Tape()
    for step in range(6):
        if step in (2, 5):
            tape.calls_seen(False)
        elif step == 4:
            tape.calls_seen(True)
        if step not in (2, 3, 5):
            tape.call("Model", 5)
        else:
            tape.gap(5)
        tape.optimizer(2)
    run = open_run(make_run(tmp_path / "run", [tape]))
    steps = find_steps(run)
    assert len(steps.frame) == 6
    frame = step_phases(run, steps)
    assert frame["step"].unique().tolist() == [0, 1, 4]
    assert phase_shares(frame, 0)["forward"] == pytest.approx(5 / 7)


def test_a_run_without_steps(tmp_path: Path) -> None:
    assert phases_of(tmp_path) == {name: [] for name in PHASES}


rows = st.lists(st.tuples(st.sampled_from(list(What)), st.integers(0, 30), st.integers(0, 10)), max_size=15)


@given(rows)
def test_each_moment_belongs_to_the_first_phase_that_is_open(found: list[tuple[What, int, int]]) -> None:
    found.sort(key=lambda row: row[1])
    starts = np.array([start for _, start, _ in found], dtype=np.int64)
    ends = starts + np.array([length for _, _, length in found], dtype=np.int64)
    kinds = np.array([what for what, _, _ in found], dtype=np.int8)
    times = phase_times(Rows(kinds, starts * 0, starts * 0, starts, ends))
    precedence = [What.COLLECTIVE, What.BATCH, What.BACKWARD, What.CALL, What.OPTIMIZER]
    for moment in range(45):
        opened = {what for what, start, length in found if start <= moment < start + length}
        expected = next((what for what in precedence if what in opened), None)
        on = [
            index
            for index, when in enumerate(times.values())
            if when.overlap(np.array([moment]), np.array([moment + 1]))
        ]
        assert on == ([precedence.index(expected)] if expected is not None else [])
