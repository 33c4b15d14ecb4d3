"""Steps: one test per way of writing a main loop; the count must be exact and the spans where they belong."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from synthetic import BEGIN_NS, MS, Tape, make_run, training_run

from tracekit.analysis.steps import Steps, find_steps
from tracekit.run.reader import open_run


def steps_of(path: Path, *tapes: Tape) -> Steps:
    return find_steps(open_run(make_run(path / "run", tapes)))


def forward_backward(tape: Tape) -> None:
    tape.call("Model", 5)
    tape.call("CrossEntropyLoss", 1)
    with tape.backward(4):
        pass


def ordinary(tape: Tape) -> None:
    for _ in range(10):
        tape.batch(1)
        forward_backward(tape)
        tape.optimizer(2)


def manual_update(tape: Tape) -> None:
    for _ in range(10):
        forward_backward(tape)
        tape.gap(2)


def lbfgs(tape: Tape) -> None:
    for step in range(10):
        with tape.in_optimizer():
            for _ in range(3 + step % 4):
                forward_backward(tape)


def accumulation(tape: Tape) -> None:
    for _ in range(10):
        for _ in range(4):
            tape.batch(1)
            forward_backward(tape)
        tape.optimizer(2)


def inference_with_loader(tape: Tape) -> None:
    for _ in range(10):
        tape.batch(1)
        tape.call("Model", 5)
        tape.call("Softmax", 1)


def inference_without_loader(tape: Tape) -> None:
    for _ in range(10):
        tape.call("Normalize", 1)
        tape.call("Model", 5)
        tape.call("CrossEntropyLoss", 1)
        tape.call("CrossEntropyLoss", 1)


def inference_on_one_batch(tape: Tape) -> None:
    tape.batch(1)
    for _ in range(10):
        tape.call("Model", 5)


def gan(tape: Tape) -> None:
    for _ in range(10):
        for which in (0, 1):
            forward_backward(tape)
            tape.optimizer(2, which)


def gan_killed_in_a_round(tape: Tape) -> None:
    gan(tape)
    forward_backward(tape)
    tape.optimizer(2, 0)


def wgan(tape: Tape) -> None:
    for _ in range(2):
        for _ in range(5):
            forward_backward(tape)
            tape.optimizer(2, 0)
        forward_backward(tape)
        tape.optimizer(2, 1)


def folds(tape: Tape) -> None:
    for fold in range(2):
        for _ in range(5):
            forward_backward(tape)
            tape.optimizer(2, fold)


def wrapped_optimizer(tape: Tape) -> None:
    for _ in range(10):
        forward_backward(tape)
        with tape.in_optimizer(0):
            tape.optimizer(2, 1)


def validation_between_epochs(tape: Tape) -> None:
    for epoch in range(2):
        for _ in range(5):
            tape.batch(1, "train", epoch)
            forward_backward(tape)
            tape.optimizer(2)
        for _ in range(20):
            tape.batch(1, "validation", epoch)
            tape.call("Model", 5)


def second_order_with_optimizer(tape: Tape) -> None:
    for _ in range(10):
        tape.call("Model", 5)
        with tape.backward(3):
            pass
        forward_backward(tape)
        tape.optimizer(2)


def gradient_penalty_without_optimizer(tape: Tape) -> None:
    for _ in range(10):
        tape.call("Model", 5)
        with tape.backward(3):
            pass
        with tape.backward(4):
            pass


def gradients_returned_on_the_way(tape: Tape) -> None:
    for _ in range(10):
        tape.call("Model", 5)
        with tape.span("phase", "backward", layer=1):
            tape.gap(3)
        forward_backward(tape)


def functional_training(tape: Tape) -> None:
    for _ in range(10):
        with tape.backward(4):
            pass
        tape.gap(3)


def checkpointed_manual(tape: Tape) -> None:
    for _ in range(10):
        tape.call("Model", 5)
        with tape.backward(1):
            tape._depth = 0
            tape.call("Block", 2)  # recomputed inside the backward pass


def two_loaders_side_by_side(tape: Tape) -> None:
    for _ in range(10):
        tape.batch(1, "left")
        tape.batch(1, "right")
        tape.call("Model", 5)


def statistics_then_inference(tape: Tape) -> None:
    for _ in range(7):
        tape.batch(1, "train")
    inference_with_loader(tape)


def manual_update_with_calls_given_up(tape: Tape) -> None:
    gradient_penalty_without_optimizer(tape)
    for _ in range(30):
        with tape.backward(3):
            pass
        with tape.backward(4):
            pass


def inference_with_calls_given_up(tape: Tape) -> None:
    inference_with_loader(tape)
    for _ in range(30):
        tape.batch(1)
        tape.gap(5)


def loader_only(tape: Tape) -> None:
    for _ in range(10):
        tape.batch(1)


def explicit(tape: Tape) -> None:
    for step in range(10):
        forward_backward(tape)
        tape.optimizer(1)
        tape.optimizer(1)
        tape.mark(step)


def two_models_in_turn(tape: Tape) -> None:
    for _ in range(10):
        tape.call("Encoder", 3)
        tape.call("Encoder#2", 2)


def a_new_model_per_fold(tape: Tape) -> None:
    for fold in range(2):
        for _ in range(5):
            tape.call(f"Model#{fold + 1}", 3)


@pytest.mark.parametrize(
    ("program", "rule", "count"),
    [
        (ordinary, "optimizer", 10),
        (manual_update, "backward", 10),
        (lbfgs, "optimizer", 10),
        (accumulation, "optimizer", 10),
        (inference_with_loader, "batches", 10),
        (inference_without_loader, "calls", 10),
        (inference_on_one_batch, "calls", 10),
        (gan, "optimizer", 10),
        (gan_killed_in_a_round, "optimizer", 10),
        (wgan, "optimizer", 10),
        (folds, "optimizer", 10),
        (wrapped_optimizer, "optimizer", 10),
        (validation_between_epochs, "optimizer", 10),
        (second_order_with_optimizer, "optimizer", 10),
        (gradient_penalty_without_optimizer, "backward", 10),
        (gradients_returned_on_the_way, "backward", 10),
        (functional_training, "backward", 10),
        (checkpointed_manual, "backward", 10),
        (two_loaders_side_by_side, "batches", 10),
        (statistics_then_inference, "batches", 10),
        (manual_update_with_calls_given_up, "backward", 40),
        (inference_with_calls_given_up, "batches", 40),
        (loader_only, "batches", 10),
        (explicit, "explicit", 10),
        (two_models_in_turn, "calls", 10),
        (a_new_model_per_fold, "calls", 10),
    ],
    ids=lambda value: value.__name__ if callable(value) else str(value),
)
def test_every_way_to_write_a_loop(tmp_path: Path, program: Callable[[Tape], None], rule: str, count: int) -> None:
    tape = Tape()
    tape.gap(500)  # imports and model construction
    program(tape)
    steps = steps_of(tmp_path, tape)
    assert (steps.rule[0], len(steps.frame)) == (rule, count)
    begins = steps.frame["start_ns"]
    ends = begins + steps.frame["duration_ns"]
    assert (begins.to_numpy()[1:] == ends.to_numpy()[:-1]).all()
    assert begins.iloc[0] >= BEGIN_NS + 500 * MS
    assert ends.iloc[-1] <= BEGIN_NS + tape.now
    assert (steps.frame["duration_ns"] > 0).all()


def durations(steps: Steps) -> list[float]:
    return (steps.frame["duration_ns"] / MS).tolist()


def test_ordinary_steps_begin_with_the_wait_and_end_with_the_optimizer(tmp_path: Path) -> None:
    tape = Tape()
    tape.gap(500)
    ordinary(tape)
    assert durations(steps_of(tmp_path, tape)) == [13.0] * 10


def test_a_trial_pass_before_the_loop_is_not_part_of_the_first_step(tmp_path: Path) -> None:
    tape = Tape()
    tape.call("Model", 50)
    tape.gap(300)
    for _ in range(3):
        tape.batch(7, "validation")
        tape.call("Model", 5)
    tape.gap(300)
    accumulation(tape)
    assert durations(steps_of(tmp_path, tape)) == [46.0] * 10


def test_the_first_step_of_a_closure_begins_no_later_than_the_optimizer(tmp_path: Path) -> None:
    tape = Tape()
    tape.gap(500)
    lbfgs(tape)
    assert durations(steps_of(tmp_path, tape)) == [10.0 * (3 + step % 4) for step in range(10)]


def test_inference_steps_reach_from_wait_to_wait(tmp_path: Path) -> None:
    tape = Tape()
    inference_with_loader(tape)
    assert durations(steps_of(tmp_path, tape)) == [7.0] * 10


def test_ranks_have_steps_and_launcher_and_workers_have_none(tmp_path: Path) -> None:
    run = open_run(training_run(tmp_path / "run", steps=5, ranks=2, workers=2))
    steps = find_steps(run)
    assert steps.frame.groupby("process").size().to_dict() == {1: 5, 2: 5}
    assert steps.main == 1
    assert durations(steps)[1:5] == [20.0] * 4


def test_the_parent_of_spawned_ranks_does_not_stand_for_the_run(tmp_path: Path) -> None:
    parent, rank = Tape(process=0, role="main"), Tape(process=1, role="rank 0", rank=0, parent=0)
    parent.call("Model", 3)
    ordinary(rank)
    steps = steps_of(tmp_path, parent, rank)
    assert steps.main == 1


def test_the_program_of_a_shell_script_has_steps_and_a_helper_of_a_program_has_none(tmp_path: Path) -> None:
    shell, program = Tape(process=0), Tape(process=1, role="helper", parent=0)
    ordinary(program)
    assert len(steps_of(tmp_path / "a", shell, program).frame) == 10
    ordinary(shell)
    assert set(steps_of(tmp_path / "b", shell, program).frame["process"]) == {0}


def test_marks_with_nothing_around_them_count_from_the_start_of_the_process(tmp_path: Path) -> None:
    tape = Tape()
    for step in range(3):
        tape.gap(4)
        tape.mark(step)
    assert durations(steps_of(tmp_path, tape)) == [4.0] * 3


def test_a_run_without_evidence_has_no_steps(tmp_path: Path) -> None:
    steps = steps_of(tmp_path)
    assert steps.frame.empty
    assert steps.frame.columns.tolist() == ["process", "step", "start_ns", "duration_ns"]
    assert steps.main is None


def test_ten_times_the_rows_inside_change_nothing(tmp_path: Path) -> None:
    plain, deep = Tape(), Tape()
    for tape in (plain, deep):
        for _ in range(5):
            with tape.layer("Model"):
                for _ in range(10 if tape is deep else 0):
                    tape.call("inner", 0.5)
                if tape is plain:
                    tape.gap(5)
            tape.optimizer(1)
    pd.testing.assert_frame_equal(steps_of(tmp_path / "a", plain).frame, steps_of(tmp_path / "b", deep).frame)
