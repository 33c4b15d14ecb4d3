"""Layer times against tapes whose times are known."""

from pathlib import Path

import pandas as pd
import pytest
from synthetic import MS, Tape, make_run, training_run

from tracekit.analysis import layers
from tracekit.analysis.layers import layer_times
from tracekit.analysis.steps import find_steps
from tracekit.run.reader import open_run


def layers_of(path: Path, *tapes: Tape) -> pd.DataFrame:
    run = open_run(make_run(path / "run", tapes))
    return layer_times(run, find_steps(run))


def row(table: pd.DataFrame, layer: str, direction: str = "forward") -> pd.Series:
    return table.set_index(["layer", "direction"]).loc[(layer, direction)]


def test_an_ordinary_loop(tmp_path: Path) -> None:
    run = open_run(training_run(tmp_path / "run", steps=10))
    table = layer_times(run, find_steps(run))
    assert table["layer"].drop_duplicates().tolist() == ["encoder.rnn", "LSTMModel", "head"]
    rnn = row(table, "encoder.rnn")
    assert rnn[["calls", "steps", "total_ns", "mean_ns", "ns_per_step", "self_ns"]].tolist() == [
        10, 10, 40 * MS, 4 * MS, 4 * MS, 4 * MS,
    ]  # fmt: skip
    assert rnn["share"] == pytest.approx(4 / 20)
    assert rnn["layer_ns_per_step"] == 9 * MS
    assert row(table, "LSTMModel")["self_ns"] == 0.5 * MS
    assert row(table, "head", "backward")["ns_per_step"] == 2 * MS


def test_layers_recorded_on_some_steps_only_count_per_step(tmp_path: Path) -> None:
    tape = Tape()
    for step in range(10):
        with tape.layer("Model"):
            for _ in range(3):
                if step % 5 == 0:
                    tape.call("cell", 2)
                else:
                    tape.gap(2)
        tape.optimizer(4)
    table = layers_of(tmp_path, tape)
    assert row(table, "Model")["self_ns"] == 0
    cell = row(table, "cell")
    assert (cell["calls"], cell["steps"], cell["calls_per_step"]) == (6, 2, 3)
    assert (cell["mean_ns"], cell["ns_per_step"]) == (2 * MS, 6 * MS)
    assert cell["share"] == pytest.approx(0.6)


def test_a_layer_that_calls_itself_takes_its_time_once(tmp_path: Path) -> None:
    """GIVEN a model whose forward calls it once more for a part, as where a training step is part of its forward, and a
    layer in each of them THEN the model's time is that of the outermost call, its own part what no layer in it took."""
    tape = Tape()
    for _ in range(5):
        with tape.layer("Model"):
            tape.gap(1)
            with tape.layer("Model"):
                tape.call("head", 3)
                tape.gap(2)
            tape.call("head", 1)
        tape.call("Model", 2)
        tape.optimizer(11)
    table = layers_of(tmp_path, tape)
    model = row(table, "Model")
    assert model[["calls_per_step", "ns_per_step", "self_ns", "depth"]].tolist() == [3, 9 * MS, 5 * MS, 0]
    assert model["share"] == pytest.approx(9 / 20)
    assert row(table, "head")[["calls_per_step", "ns_per_step"]].tolist() == [2, 4 * MS]


def lstm(tape: Tape, told_apart: bool, start_up: float = 0) -> None:
    slower = 2 if told_apart else 1
    with tape.layer("Model"), tape.layer("rnn", watched=told_apart):
        if told_apart:
            tape.call("rnn.layer0", 6 * slower + start_up, watched=True)
            tape.call("rnn.layer1.reverse", 3 * slower, watched=True)
        else:
            tape.gap(9)
        tape.gap(1 * slower)


def test_inner_layers_give_shares_and_do_not_inflate_their_module(tmp_path: Path) -> None:
    """The first watched call has the start-up of a library in it, at the expense of one layer: it decides nothing."""
    tape = Tape()
    for step in range(10):
        lstm(tape, told_apart=step < 3, start_up=100 if step == 0 else 0)
        tape.optimizer(5)
    table = layers_of(tmp_path, tape)
    assert row(table, "rnn")[["mean_ns", "ns_per_step", "self_ns"]].tolist() == [10 * MS, 10 * MS, 1 * MS]
    assert row(table, "Model")["ns_per_step"] == 10 * MS
    assert row(table, "rnn.layer0")[["mean_ns", "ns_per_step", "calls_per_step"]].tolist() == [6 * MS, 6 * MS, 1]
    assert row(table, "rnn.layer1.reverse")["share"] == pytest.approx(3 / 15)
    assert row(table, "rnn.layer0")["steps"] == 2


def test_inner_layers_among_many_calls_in_every_step(tmp_path: Path) -> None:
    tape = Tape()
    for _ in range(4):
        for call in range(5):
            lstm(tape, told_apart=call == 0)
        tape.optimizer(10)
    table = layers_of(tmp_path, tape)
    assert row(table, "rnn")[["mean_ns", "ns_per_step"]].tolist() == [10 * MS, 50 * MS]
    assert row(table, "rnn.layer0")["ns_per_step"] == 30 * MS


def test_inner_layers_seen_in_every_call(tmp_path: Path) -> None:
    tape = Tape()
    for _ in range(2):
        lstm(tape, told_apart=True)
        tape.optimizer(10)
    assert row(layers_of(tmp_path, tape), "rnn")["mean_ns"] == 20 * MS


def test_a_layer_too_short_to_record_leaves_its_children_with_the_next_one_up(tmp_path: Path) -> None:
    tape = Tape()
    for _ in range(3):
        with tape.layer("Model"):
            tape._depth += 1
            tape.call("block.0", 3)
            tape._depth -= 1
            tape.gap(1)
        tape.optimizer(1)
    assert row(layers_of(tmp_path, tape), "Model")["self_ns"] == 1 * MS


def backward_of(tape: Tape, *layers: tuple[str, int, int, int]) -> None:
    """Three steps with a backward pass of 10 ms, in which layers have begun and ended, ns: name, depth, begin, end."""
    for _ in range(3):
        with tape.backward():
            start = tape.now
            tape.gap(10)
            for name, depth, begin, end in layers:
                times = start + begin, start + end
                tape.add("spans", *times, kind="layer", name=name, depth=depth, direction="backward")
        tape.optimizer(1)


def test_a_backward_that_begins_a_moment_before_the_layer_around_it_is_part_of_it(tmp_path: Path) -> None:
    tape = Tape()
    backward_of(tape, ("decoder", 1, 0, 6 * MS), ("Model", 0, 900, 10 * MS))
    assert row(layers_of(tmp_path, tape), "Model", "backward")["self_ns"] == 4 * MS - 900


@pytest.mark.parametrize("later_ns", [0, 900])
def test_what_is_inside_is_of_the_innermost_layer_around_it(tmp_path: Path, later_ns: int) -> None:
    """GIVEN a wrapper whose backward begins a moment after that of the model inside, as DistributedDataParallel's does
    THEN the layers of the model are the model's."""
    tape = Tape()
    inside = ("wrapper.model.a", 2, 1 * MS, 4 * MS), ("wrapper.model.b", 2, 4 * MS, 9 * MS)
    backward_of(tape, ("wrapper.model", 1, 0, 10 * MS), ("wrapper", 0, later_ns, 10 * MS), *inside)
    table = layers_of(tmp_path, tape)
    assert row(table, "wrapper.model", "backward")["self_ns"] == 2 * MS
    assert row(table, "wrapper", "backward")["self_ns"] == 0


def test_without_steps_there_are_totals_and_nothing_per_step(tmp_path: Path) -> None:
    tape = Tape()
    tape.call("Model", 3, direction="backward")
    table = layers_of(tmp_path, tape)
    assert row(table, "Model", "backward")["total_ns"] == 3 * MS
    assert table["ns_per_step"].isna().all()
    assert layers_of(tmp_path / "empty").empty


def test_a_run_with_too_many_rows_is_read_at_some_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = open_run(training_run(tmp_path / "run", steps=40))
    everything = layer_times(run, find_steps(run))
    monkeypatch.setattr(layers, "_ROWS", 50)
    monkeypatch.setattr(layers, "_STRETCHES", 2)
    some = layer_times(run, find_steps(run))
    assert some["steps"].max() == 10
    columns = ["layer", "direction", "calls", "total_ns", "mean_ns", "ns_per_step", "self_ns"]
    pd.testing.assert_frame_equal(some[columns], everything[columns])
