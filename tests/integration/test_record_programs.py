"""Unmodified programs, plainly and recorded: same output, same exit code, same bits; exact steps, layers and roles."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from recording import PROGRAMS, TORCHRUN, comparable, plain, record

from tracekit.analysis.report import analyze
from tracekit.analysis.steps import find_steps

PYTHON = [sys.executable]
INNER = [f"rnn.layer{layer}{direction}" for layer in (0, 1) for direction in ("", ".reverse")]


@dataclass
class Program:
    """A script and what must be found of it."""

    script: str
    steps: int
    layers: list[str]
    arguments: list[str] = field(default_factory=list)
    launcher: list[str] = field(default_factory=lambda: PYTHON)
    roles: list[str] = field(default_factory=lambda: ["main"])
    loops: int = 1  # processes that run the main loop
    missing: str = ""  # what is said not to be captured

    def __str__(self) -> str:
        return "-".join([self.script, *self.arguments])


WORKERS = ["loader worker 0", "loader worker 1"]
TABLE = [
    Program("optimizer_loop", 12, ["Sequential", "0", "1", "2", "3"]),
    Program("manual_update", 9, ["Linear"]),
    Program("lbfgs", 7, ["Linear"]),
    Program("accumulation", 8, ["Sequential", "0", "1", "2"]),
    Program("lstmcell_float64", 10, ["Tagger", "cell", "head"]),
    Program("inference", 15, ["Sequential", "0", "1", "2", "3"]),
    Program("gru", 8, ["Classifier", "rnn", "rnn.layer0", "rnn.layer1", "head"]),
    Program("bilstm", 20, ["Encoder", "rnn", *INNER, "head"]),
    Program("loader", 24, ["Linear"], ["none"]),
    Program("loader", 24, ["Linear"], ["fork"], roles=["main", *WORKERS * 2]),
    Program("loader", 12, ["Linear"], ["spawn", "1"], roles=["main", *WORKERS]),
    Program("loader", 24, ["Linear"], ["forkserver"], roles=["main", *WORKERS * 2]),
    Program(
        "ddp", 11, ["DistributedDataParallel", "module"], launcher=TORCHRUN, roles=["main", "rank 0", "rank 1"], loops=2
    ),
    Program("remote", 30, ["Linear"], launcher=TORCHRUN, roles=["main", "rank 0", "rank 1"]),
    Program("checkpointed", 60, ["Net", "blocks.0", "blocks.1.0"]),
    Program("compiled", 6, ["Net", "first", "second", "OptimizedModule"]),
    Program("profiles_itself", 30, ["Linear"], missing="torch.profiler"),
    Program("without_torch", 0, [], ["a", "b c"], loops=0),
]


# Of these hardly anything happens that another one, or a quicker test, does not show: ranks that share a model and
# forked workers have many tests of their own, `odd_training.py` has checkpoints, explorations have inference, unit
# tests have optimizers that call closures.
LIKE_ANOTHER = (
    "optimizer_loop", "accumulation", "remote", "gru", "lstmcell_float64", "bilstm", "loader-none", "loader-forkserver",
    "loader-fork", "ddp", "checkpointed", "lbfgs", "inference",
)  # fmt: skip


@pytest.mark.parametrize(
    "program",
    [pytest.param(each, id=str(each), marks=[pytest.mark.long] * (str(each) in LIKE_ANOTHER)) for each in TABLE],
)
def test_recording_changes_nothing_and_sees_everything(program: Program, tmp_path: Path) -> None:
    command = [*program.launcher, str(PROGRAMS / f"{program.script}.py"), *program.arguments]

    without = plain(command)
    recorded = record(command, tmp_path / "run")

    assert recorded.out == without.stdout
    assert recorded.code == without.returncode
    assert comparable(recorded.err) == comparable(without.stderr)
    run = recorded.run
    steps = find_steps(run)
    counts = [len(steps.of(process)) for process in steps.rule if len(steps.of(process))]
    assert counts == [program.steps] * program.loops
    layers = run.sql("SELECT DISTINCT name FROM spans WHERE kind = 'layer'")["name"]
    assert set(program.layers) <= set(layers)
    roles = run.sql("SELECT role FROM processes WHERE role <> 'helper'")["role"]
    assert sorted(roles) == sorted(program.roles)
    assert run.manifest.exit_code == without.returncode
    assert not [note for note in run.missing if "failed" in note.why]
    assert not program.missing or any(program.missing in note.why for note in run.missing)


def test_inner_layers_add_up_to_their_module(tmp_path: Path) -> None:
    """GIVEN a bidirectional LSTM of two layers WHEN they are told apart THEN they lie in order inside its call."""
    run = record([*PYTHON, str(PROGRAMS / "bilstm.py")], tmp_path / "run").run

    spans = run.sql(
        "SELECT name, start_ns, start_ns + duration_ns AS end_ns FROM spans "
        "WHERE kind = 'layer' AND watched AND direction = 'forward' ORDER BY start_ns, end_ns DESC"
    )
    for _, call in spans.groupby((spans["name"] == "rnn").cumsum()):
        module, inner = call.iloc[0], call.iloc[1:]
        assert list(inner["name"]) == INNER
        assert (inner["start_ns"].to_numpy()[1:] >= inner["end_ns"].to_numpy()[:-1]).all()
        assert inner["start_ns"].min() >= module["start_ns"] and inner["end_ns"].max() <= module["end_ns"]


@pytest.mark.alone
def test_calls_are_left_out_of_short_steps_and_nothing_untrue_is_said(tmp_path: Path) -> None:
    """GIVEN steps so short that noticing module calls costs too much THEN every step is counted, evaluation is recorded
    in full, and phases come from the steps whose calls were. At 1 % the layers would be given up on a slow machine."""
    command = [*PYTHON, str(PROGRAMS / "short_steps.py")]

    without, recorded = plain(command), record(command, tmp_path / "run", "--profile", "off", "--overhead", "5")

    assert recorded.out == without.stdout
    run = recorded.run
    steps = find_steps(run)
    optimizer = run.sql("SELECT process, count(*) AS steps FROM spans WHERE name = 'optimizer' GROUP BY ALL")
    assert sorted(optimizer["steps"]) == [100, 1300]
    calls = run.sql(
        "SELECT process, name, count(*) AS calls FROM spans WHERE kind = 'layer' AND depth = 0 GROUP BY ALL"
    )
    of = calls[calls["process"] == steps.main].set_index("name")["calls"]
    assert of["Probe"] == of["MSELoss"] == 200
    assert 300 < of["Sequential"] < 1100
    report = analyze(run)
    assert 50 < report.steps.phase_steps < 900
    shares = {phase.name: phase.share for phase in report.steps.phases}
    assert shares["forward"] > 0.05
    assert sum(shares.values()) == pytest.approx(1)


IN_RANGES = """
import torch
from torch.profiler import record_function

torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(6)))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for epoch in range(20):
    with record_function("epoch"):
        for _ in range(40):
            optimizer.zero_grad()
            loss = model(torch.randn(16, 64)).pow(2).mean()
            loss.backward()
            optimizer.step()
print(loss.item())
"""


@pytest.mark.long
def test_a_range_that_goes_on_past_a_window_ends_in_no_other(tmp_path: Path) -> None:
    """GIVEN ranges that a program names around many steps WHEN window follows window THEN the first one that ends
    within a range is the last, as the end of a range would be written to memory that went with its window."""
    command = [*PYTHON, "-c", IN_RANGES]

    without, recorded = plain(command), record(command, tmp_path / "run", "--profile", "full")

    assert (recorded.code, recorded.out, recorded.err) == (0, without.stdout, "")
    assert [note.what for note in recorded.run.missing if "a range" in note.why] == ["operators from then on"]


COMPILED = """
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(*(layer for _ in range(6) for layer in (torch.nn.Linear(64, 64), torch.nn.Tanh())))
compiled = torch.compile(model, backend="aot_eager")
function = torch.compile(lambda values: values.sin().sum(), backend="eager")
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(120):
    loss = compiled(torch.randn(16 if step < 60 else 24, 64)).pow(2).mean() + function(torch.ones(3)) * 0
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
"""


@pytest.mark.long
def test_no_window_begins_or_ends_while_torch_compiles(tmp_path: Path) -> None:
    """Torch runs backward passes of its own then, within ranges."""
    command = [*PYTHON, "-c", COMPILED]
    without = plain(command)
    for number in range(3):
        recorded = record(command, tmp_path / str(number), "--profile", "full")
        assert (recorded.code, recorded.out, recorded.err) == (0, without.stdout, without.stderr)


@pytest.mark.long
def test_garbage_is_collected_when_it_would_be(tmp_path: Path) -> None:
    """GIVEN a program that imports torch THEN recording it hardly moves its collections: a full one that comes just
    after workers were forked, and not before, is paid for by each."""
    collected = "import gc, torch; print(*(each['collections'] for each in gc.get_stats()))"
    command = [sys.executable, "-c", collected]

    without, ours = plain(command).stdout, record(command, tmp_path / "run").out

    counts = ([int(count) for count in each.split()] for each in (without, ours))
    youngest, *older = (abs(plainly - recorded) for plainly, recorded in zip(*counts, strict=True))
    assert youngest <= 3
    assert max(older) <= 1


@pytest.mark.long
def test_collections_of_garbage_are_seen_in_the_loop_and_in_workers(tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAMS / "collecting.py")]
    recorded = record(command, tmp_path / "run")
    assert (recorded.code, recorded.out, recorded.err) == (0, plain(command).stdout, "")

    (found,) = analyze(recorded.run).garbage
    assert 3 <= found.collections <= 5  # of four the last one ends the loop; Python may do one more by itself
    assert (found.collected, found.workers) == (2, 2) and found.worker_ms > 0
    assert 0.1 < found.share < 1


INTERRUPTED = """
import gc, signal, time, torch

class Enough(Exception):
    pass

def enough(*_):
    raise Enough

kept = [[index] for index in range(300_000)]
signal.signal(signal.SIGALRM, enough)
came = 0
for _ in range(30):
    signal.setitimer(signal.ITIMER_REAL, 0.002)
    until = time.monotonic() + 1
    try:
        gc.collect()
        while time.monotonic() < until:
            pass
    except Enough:
        came += 1
print(came)
"""


def test_what_a_signal_handler_raises_while_garbage_is_collected_comes_out(tmp_path: Path) -> None:
    """GIVEN signals that come in the midst of collections, each of 10 ms and more, THEN none is lost for our sake."""
    recorded = record([sys.executable, "-c", INTERRUPTED], tmp_path / "run")
    assert (recorded.code, recorded.out, recorded.err) == (0, "30\n", "")
    collections = recorded.run.sql("SELECT count(*) AS n FROM spans WHERE kind = 'garbage'")["n"].iloc[0]
    assert 30 <= collections <= 40
