"""Ranks of programs that use torch.distributed in ways that nobody foresaw."""

from pathlib import Path

import pytest
from recording import TORCHRUN, plain, record

from tracekit.analysis.people import ranks_of
from tracekit.analysis.report import analyze
from tracekit.analysis.steps import find_steps
from tracekit.analysis.unused_parameters import unused_parameters

PROGRAM = """
import hashlib, os
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))
    def forward(self, values):
        for block in self.blocks:
            values = checkpoint(block, values, use_reentrant=True)
        return values

torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
for round in range(4000):  # before there is any step
    dist.all_reduce(torch.ones(1))
model = DistributedDataParallel(Blocks(), bucket_cap_mb=0.02)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    inputs = (torch.ones(8, 64) * (dist.get_rank() + 1)).requires_grad_()
    model(inputs).pow(2).mean().backward()
    optimizer.step()
first, second = torch.ones(2), torch.ones(3)
with dist._coalescing_manager():
    dist.all_reduce(first)
    dist.all_reduce(second)
weights = torch.cat([each.detach().flatten() for each in model.parameters()])
if dist.get_rank() == 0:
    print(float(first.sum() + second.sum()), hashlib.sha256(weights.numpy().tobytes()).hexdigest())
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.long
def test_what_ranks_do_within_a_pass_before_all_steps_and_put_off_is_told_as_it_was(tmp_path: Path) -> None:
    """GIVEN backward passes inside a backward pass, thousands of collectives before the first step, and some that are
    gathered to be sent at once THEN the program does as without us; each pass has each of its buckets once; what is put
    off is not seen to end; and none of the many is lost."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    alone = plain([*TORCHRUN, str(program)])
    done = record([*TORCHRUN, str(program)], tmp_path / "run")
    assert (done.out, done.code) == (alone.stdout, 0), done.err
    found = done.run.sql("SELECT process, bucket, op, bytes, unsure_ns, start_ns FROM collectives ORDER BY start_ns")
    buckets = found[found["bucket"] >= 0]
    for _, own in buckets.groupby("process"):
        several = [*range(int(own["bucket"].max()) + 1)]
        assert len(several) > 2 and own["bucket"].tolist() == [0, *several * 19]  # torch forms them in the first pass
    calls = found[found["op"] == "all_reduce"]
    assert (calls[calls["bytes"].isin([8, 12])]["unsure_ns"] == -1).all()
    assert (calls["bytes"] == 4).sum() == 2 * 4000


FUNCTIONAL = """
import time
import torch, torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.nn.parallel import DistributedDataParallel

class Split(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)
    def forward(self, values):
        time.sleep(0.01 * dist.get_rank())
        found = functional.all_reduce(values.detach(), "sum", dist.group.WORLD)
        return self.layer(found + 0)

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(Split())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(60):
    optimizer.zero_grad()
    model(torch.ones(8, 64)).pow(2).mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.long
def test_who_waits_for_a_functional_collective_is_not_late(tmp_path: Path) -> None:
    """GIVEN a rank that sleeps before what tensor parallelism would send in the forward pass THEN it is named, and not
    the other one, which waits for it there."""
    program = tmp_path / "program.py"
    program.write_text(FUNCTIONAL)
    done = record([*TORCHRUN, str(program)], tmp_path / "run")
    assert done.code == 0, done.err
    waits = done.run.sql("SELECT rank FROM collectives JOIN processes USING (process) WHERE op = 'wait'")["rank"]
    assert (waits == 0).sum() >= 60
    named = {(each.rank, each.phase) for group in analyze(done.run).ranks for each in group.delays}
    assert named == {(1, "forward")}


UNEVEN = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(64, 64), find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def learn(steps):
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.ones(8, 64)).pow(2).mean().backward()
        optimizer.step()

with Join([model]):
    learn(10 + 6 * dist.get_rank())
learn(10)
dist.destroy_process_group()
"""


@pytest.mark.long
def test_ranks_of_uneven_inputs_go_on_with_the_same_numbers(tmp_path: Path) -> None:
    """GIVEN a rank whose inputs end before those of the other one, which look for unused parameters THEN behind that
    all they do together has the same number on both."""
    program = tmp_path / "program.py"
    program.write_text(UNEVEN)
    done = record([*TORCHRUN, str(program)], tmp_path / "run")
    assert done.code == 0, done.err
    found = done.run.sql(
        "SELECT sequence, count(DISTINCT process) AS ranks, count(DISTINCT bucket >= 0) AS kinds FROM collectives"
        " WHERE \"group\" = 'world' AND sequence >= 0 GROUP BY sequence ORDER BY sequence DESC LIMIT 20"
    )
    assert (found["ranks"] == 2).all() and (found["kinds"] == 1).all()
    looks = unused_parameters(done.run, ranks_of(done.run, find_steps(done.run).main))
    assert looks is not None and (looks.ranks, looks.passes, looks.with_some) == (2, 2 * 10 + 2 * 10 + 6, 0)


ODD_ENDS = """
import os, signal, sys
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

def learn(batches):
    for number, batch in enumerate(batches):
        if sys.argv[1] == "killed" and dist.get_rank() == 1 and number == 40:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()

torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.ones(8 * 60, 64)
if sys.argv[1] == "no data":
    with Join([model]):
        learn(DataLoader(data[: len(data) * (1 - dist.get_rank())], 8))
else:
    learn(DataLoader(data, 8))
if sys.argv[1] == "alone for a while":
    with model.no_sync():
        learn(DataLoader(data[: 8 * (7 + 20 * dist.get_rank())], 8))
    learn(DataLoader(data, 8))
if dist.get_rank() == 0:
    print([each.detach().double().sum().item() for each in model.parameters()])
dist.destroy_process_group()
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "steps", "meetings"),
    [("killed", [40, 40], 40), ("no data", [60], 60), ("alone for a while", [127, 147], 120)],
)
def test_ranks_that_do_not_do_as_much_are_recorded_and_told(
    how: str, steps: list[int], meetings: int, tmp_path: Path
) -> None:
    """GIVEN a rank that is killed on its way, has no data, or takes more steps than the other one by itself THEN the
    program ends as without us, what each did is there, they are the same meetings on both, and nobody is named."""
    program = tmp_path / "program.py"
    program.write_text(ODD_ENDS)
    alone = plain([*TORCHRUN, str(program), how])
    done = record([*TORCHRUN, str(program), how], tmp_path / "run")
    assert (done.code, done.out) == (alone.returncode, alone.stdout), done.err
    took = done.run.sql(
        "SELECT rank, count(*) AS steps FROM spans JOIN processes USING (process)"
        " WHERE kind = 'phase' AND name = 'optimizer' GROUP BY rank ORDER BY rank"
    )["steps"]
    assert took.tolist() == steps
    met = done.run.sql(
        "SELECT count(*) AS ranks FROM collectives WHERE bucket >= 0 GROUP BY sequence HAVING count(*) = 2"
    )
    assert len(met) == meetings
    report = analyze(done.run)
    assert [group.ranks for group in report.ranks] == [[0, 1]] and not report.ranks[0].delays
    never = [each for each in report.findings if each.id == "distributed.never_ended"]
    assert ["rank 1 never came to it" in each.title for each in never] == [True] * (how == "killed")
