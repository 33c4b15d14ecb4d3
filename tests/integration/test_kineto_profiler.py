"""The reader and the operator analysis against torch.profiler's own tables of the same training."""

from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
import torch
from synthetic import Tape, make_run
from torch.autograd.profiler import profile

from tracekit.analysis.operators import operator_counts, operator_times, windows
from tracekit.run.reader import Run, open_run
from tracekit.run.writer import PartWriter
from tracekit.traces.kineto import load_kineto

STEPS = 4


def train(steps: int) -> None:
    torch.manual_seed(0)
    rnn = torch.nn.LSTM(16, 16, num_layers=2, batch_first=True)
    head = torch.nn.Linear(16, 4)
    optimizer = torch.optim.SGD([*rnn.parameters(), *head.parameters()], lr=0.1)
    inputs = torch.randn(4, 5, 16)
    for _ in range(steps):
        with torch.profiler.record_function("loss"):
            loss = head(rnn(inputs)[0]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "shapes"])
def profiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[profile, Run]:
    """Two windows of one training: the profiler of the second, and a run with the tables of both."""
    folder = tmp_path_factory.mktemp("profiled")
    run = make_run(folder / "run", [Tape()])
    writer = PartWriter(run, "node0")
    train(1)
    for window in range(2):
        with profile(use_kineto=True, use_cpu=True, record_shapes=request.param) as profiler:
            train(STEPS)
        path = folder / f"{window}.json"
        profiler.kineto_results.save(str(path))
        trace = load_kineto(path)
        assert trace.unreadable == 0
        for table in trace.tables(process=0, window=window):
            writer.write("operators", table)
    return profiler, open_run(run)


@pytest.fixture
def of_torch(profiled: tuple[profile, Run]) -> pd.DataFrame:
    """What torch.profiler says of the second window, ns."""
    averages = profiled[0].key_averages()
    return pd.DataFrame(
        {
            "calls": [average.count for average in averages],
            "total_ns": [average.cpu_time_total * 1000 for average in averages],
            "self_ns": [average.self_cpu_time_total * 1000 for average in averages],
        },
        index=[average.key for average in averages],
    ).sort_index()


@pytest.fixture
def second_window(profiled: tuple[profile, Run], tmp_path: Path) -> Run:
    """A run with only the window that torch's table is of."""
    path = make_run(tmp_path / "run", [Tape()])
    rows = profiled[1].arrow('SELECT * FROM operators WHERE "window" = 1')
    PartWriter(path, "node0").write("operators", rows)
    return open_run(path)


def test_calls_are_those_of_torch(profiled: tuple[profile, Run], second_window: Run) -> None:
    counts = operator_counts(second_window).set_index("name")["calls"]

    assert profiled[0].kineto_results is not None
    assert counts.to_dict() == Counter(event.name() for event in profiled[0].kineto_results.events())
    assert counts["aten::lstm"] == STEPS
    assert counts["loss"] == STEPS


def test_times_are_those_of_torch(second_window: Run, of_torch: pd.DataFrame) -> None:
    times = operator_times(second_window).set_index("name").sort_index()

    # torch adds microseconds as doubles, and its clock may let a call outlast its caller by a nanosecond.
    rounding = int(of_torch["calls"].sum())
    assert (times["self_ns"] - of_torch["self_ns"]).abs().max() <= rounding
    # Where an operator calls nothing but its own like (aten::sum does), torch's table counts both as one.
    merged = times["calls"] != of_torch["calls"]
    assert set(times.index[merged]) <= {"aten::sum"}
    assert (times["total_ns"] - of_torch["total_ns"])[~merged].abs().max() <= rounding


def test_shapes_are_there_when_recorded(profiled: tuple[profile, Run]) -> None:
    dims = profiled[1].sql("SELECT DISTINCT dims FROM operators WHERE name = 'aten::lstm'")["dims"].tolist()

    shapes = profiled[0].record_shapes
    assert len(dims) == 1
    assert dims[0].startswith("[[4,5,16],") if shapes else dims == [""]


def test_windows_follow_each_other_on_the_clock_of_the_machine(profiled: tuple[profile, Run]) -> None:
    frame = windows(profiled[1])

    assert frame["window"].tolist() == [0, 1]
    assert frame["start_ns"][0] + frame["duration_ns"][0] < frame["start_ns"][1]
    assert frame["events"].sum() == operator_counts(profiled[1])["calls"].sum()
