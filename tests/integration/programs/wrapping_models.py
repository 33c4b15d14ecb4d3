"""Wraps one model after the other: each forms its buckets anew after its first pass, which asks the group for more."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.set_num_threads(1)
for _ in range(400):
    shared = DistributedDataParallel(nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)]), bucket_cap_mb=0.01)
    for _step in range(2):
        shared(torch.ones(4, 64)).sum().backward()
print("done")
dist.barrier()
dist.destroy_process_group()
