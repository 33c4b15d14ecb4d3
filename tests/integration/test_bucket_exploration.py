"""Gradient buckets of real ranks, tried in turn."""

import subprocess
from pathlib import Path

import pytest
from recording import ENVIRONMENT, TORCHRUN, TRACEKIT

from tracekit.advice import analyze
from tracekit.analysis.explored_caps import explored_caps
from tracekit.analysis.steps import find_steps
from tracekit.run.reader import Run, open_run

# Beside the wrapped model another one learns the same, whose gradients the program averages itself: no bit may differ.
PROGRAM = """
import copy, os, sys
if "one" in sys.argv[1] and os.environ["RANK"] == "1":  # as a rank would be whose agent did not start
    sys.meta_path[:] = [each for each in sys.meta_path if type(each).__name__ != "_TorchWatch"]
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

how, steps = sys.argv[1].split(), int(sys.argv[2])
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
torch.set_num_threads(1)

class Net(nn.Sequential):
    def forward(self, inputs, model=None):  # a word of ours, too
        if "parts" not in how:
            return super().forward(inputs)
        halves = [inputs, inputs]
        for number, layer in enumerate(self):
            halves[number % 2] = layer(halves[number % 2])
        return halves

class Summed(torch.autograd.Function):  # over all ranks, as its gradient is
    @staticmethod
    def forward(context, values):
        values = values.clone()
        dist.all_reduce(values)
        return values

    backward = forward

def backward(outputs):
    outputs = outputs if "parts" in how else [outputs]  # each by a run of the engine of its own
    if "summed" not in how:
        for each in outputs:
            each.pow(2).mean().backward()
        return
    cut = [each.detach().requires_grad_() for each in outputs]
    for each in cut:  # a loss over what all ranks have found: these runs communicate, and have no gradient of the model
        Summed.apply(each).pow(2).mean().backward()
    for each, features in zip(cut, outputs):
        features.backward(each.grad)

model = Net(*[nn.Linear(256, 256) for _ in range(6)])
alone = copy.deepcopy(model)
shared = DistributedDataParallel(model, find_unused_parameters="look" in how)
if "hook" in how:
    shared.register_comm_hook(None, allreduce_hook)
if "static" in how:
    shared._set_static_graph()
models, first_cap = (shared, alone), shared.bucket_bytes_cap
aside = nn.Linear(4, 4)
optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in models]
inputs = torch.randn(8, 256) + rank
handled = "handled" in how and rank == 1

def train(step):
    if "toggle" in how:
        for each in (model, alone):
            each[0].requires_grad_(not 15 < step < 25)
    for each, optimizer in zip(models, optimizers):
        if "accumulate" in how:
            with shared.no_sync():
                (each(inputs.flip(0)).pow(2).mean() / 2).backward()
        if "aside" in how and rank == 0 and step % 7 == 3:
            outputs = each(inputs.requires_grad_())
            torch.autograd.grad(outputs.sum(), inputs)
            inputs.requires_grad_(False)
            aside(torch.ones(1, 4)).sum().backward()
            with torch.no_grad():
                each(inputs)
        for _ in range(2 if "several" in how else 1):
            backward(each(inputs, model=None))
            if "compiles" in how and rank == 1 and shared.bucket_bytes_cap != first_cap:
                from torch._dynamo.utils import counters
                counters["frames"]["total"] = 1
            if each is alone:
                gradients = [parameter.grad for parameter in alone.parameters() if parameter.grad is not None]
                sums = torch.cat([gradient.flatten() / 2 for gradient in gradients])
                dist.all_reduce(sums)
                for gradient, part in zip(gradients, sums.split([gradient.numel() for gradient in gradients])):
                    gradient.copy_(part.view_as(gradient))
        optimizer.step()
        optimizer.zero_grad()

for step in range(steps):
    try:
        assert not handled
        train(step)
    except AssertionError:
        train(step)
    if "logged" in how and step > 1:
        assert shared._get_ddp_logging_data()["rebuilt_bucket_sizes"]
assert all(torch.equal(a, b) for a, b in zip(model.parameters(), alone.parameters()))
if rank == 0:
    print(shared.bucket_bytes_cap)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ddp") / "program.py"
    path.write_text(PROGRAM)
    return path


def explored(program: Path, folder: Path, how: str, steps: int) -> tuple[Run, str]:
    """The recorded run, and what the ranks printed."""
    words = [*TORCHRUN, str(program), how, str(steps)]
    command = [*TRACEKIT, "record", "-q", "--explore", "buckets", "-o", str(folder), "--", *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, env=ENVIRONMENT)
    assert ended.returncode == 0, ended.stderr
    return open_run(folder), ended.stdout


@pytest.mark.parametrize(
    "how",
    [
        pytest.param("several", marks=pytest.mark.long),
        "parts handled logged summed",
        pytest.param("accumulate aside look", marks=pytest.mark.long),
    ],
)
def test_ranks_change_their_buckets_together_and_learn_the_same(how: str, program: Path, tmp_path: Path) -> None:
    """GIVEN 1.5 MB of gradients THEN each cap that makes other buckets is tried, round by round, and what is learnt is
    the same, bit by bit: whatever a rank calculates aside. What torch logs of the model never lacks its buckets."""
    run, _ = explored(program, tmp_path / "run", how, 190)
    found = explored_caps(run, find_steps(run))
    assert found is not None and found.problem is None and found.rounds == 4
    assert sorted(each.cap_mb for each in found.others) == [0.25, 0.5, 2.0]
    both = run.sql("SELECT process, name, step FROM spans WHERE kind = 'block' ORDER BY process, layer")
    orders = [list(zip(part["name"], part["step"], strict=True)) for _, part in both.groupby("process")]
    assert len(orders) == 2 and orders[0] == orders[1] and len(orders[0]) == 16
    report = analyze(run)
    assert report.buckets is not None and report.buckets.rounds == 4 and report.buckets.ranks == 2
    assert not [note for note in run.missing if note.what.startswith("an exploration")]


@pytest.mark.long
def test_a_rank_that_stops_right_behind_a_change_goes_on_with_the_others(program: Path, tmp_path: Path) -> None:
    """GIVEN ranks that communicate between their backward pass and the next forward one THEN one that stops alone has
    formed its buckets where the others did, and nobody waits for ever."""
    run, _ = explored(program, tmp_path / "run", "compiles", 60)
    notes = [note for note in run.missing if note.what == "an exploration of gradient buckets"]
    assert sorted(note.why.partition(";")[0] for note in notes) == [
        "not all ranks explore, or they are not at the same pass",
        "the program uses torch.compile",
    ]
    assert all(len(note.processes) == 1 for note in notes)


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("hook", "calls DistributedDataParallel.register_comm_hook"),
        ("static", "its graph is static"),
        ("look toggle", "other parameters are trained"),
        ("one explores", "not all ranks explore"),
    ],
)
def test_where_buckets_cannot_be_others_the_exploration_ends(how: str, why: str, program: Path, tmp_path: Path) -> None:
    run, printed = explored(program, tmp_path / "run", how, 40)
    (note,) = [note for note in run.missing if note.what == "an exploration of gradient buckets"]
    why_ended, _, kept = note.why.partition("; the model keeps buckets of ddp.bucket_cap_mb=")
    assert why in why_ended and bool(kept) == ("toggle" in how)  # that one ends it within a block
    assert printed == f"{round(float(kept or 25) * (1 << 20))}\n"
    assert "tracekit record --explore buckets" not in analyze(run).advice
