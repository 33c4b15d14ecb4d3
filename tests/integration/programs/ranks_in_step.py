"""One of two ranks that train together, by the first argument; rank 0 says with which counts both ran a step."""

import os
import re
import sys
from collections import Counter
from ctypes import CDLL
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

store = f"file://{os.environ['RENDEZVOUS']}"
dist.init_process_group("gloo", store, rank=int(sys.argv[1]), world_size=2)
openmp = CDLL(re.search(r"\S+/libgomp\S*", Path("/proc/self/maps").read_text())[0])
model = nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
counts = []
for _ in range(250):
    optimizer.zero_grad()
    model(torch.ones(8, 64)).sum().backward()
    counts.append(openmp.omp_get_max_threads())
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
both = [None, None]
dist.all_gather_object(both, counts)
if dist.get_rank() == 0:
    print(sorted(Counter(zip(*both, strict=True)).items()))
dist.barrier()
dist.destroy_process_group()
