"""Two ranks of which one never comes to the third all-reduce, or to a late bucket of a model (`--bucket`), started by
torchrun. Nothing of it ends by itself, unless the other one loses its patience (`--patience SECONDS`)."""

import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

patience_s = float(sys.argv[sys.argv.index("--patience") + 1]) if "--patience" in sys.argv else 300.0
dist.init_process_group("gloo", timeout=timedelta(seconds=patience_s))


def leave_the_other_alone() -> None:
    print("waiting", flush=True)
    time.sleep(300)


if "--bucket" in sys.argv:
    torch.set_num_threads(1)
    # So many layers that it would cost too much to record each step in detail.
    layers = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(12)))
    model = torch.nn.parallel.DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(1000):
        loss = model(torch.ones(2, 8)).sum()
        if number == 999 and dist.get_rank() == 1:
            leave_the_other_alone()
        loss.backward()
        optimizer.step()
for number in range(3):
    if number == 2 and dist.get_rank() == 1:
        leave_the_other_alone()
    dist.all_reduce(torch.ones(10))
