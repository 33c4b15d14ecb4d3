"""Two ranks of which one never comes to the third all-reduce, started by torchrun. Nothing of it ends by itself."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=300))
for number in range(3):
    if number == 2 and dist.get_rank() == 1:
        print("waiting", flush=True)
        time.sleep(300)
    dist.all_reduce(torch.ones(10))
