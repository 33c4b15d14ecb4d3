"""Two ranks that share a model; under a recording, what looks at its buckets begins to fail. Started by torchrun.
Rank 0 prints the sum of the weights."""

import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
recording = sys.modules.get("tracekit.collectors.agent")


def fail(*what: object) -> None:
    raise RuntimeError("planted")


for step in range(40):
    if step == 20 and recording is not None:
        recording._agent.collectors["collectives"]._buckets._sort = fail
    model(torch.ones(2, 64) * step).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
if dist.get_rank() == 0:
    print(sum(float(each.sum()) for each in model.parameters()))
