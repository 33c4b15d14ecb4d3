"""Data-parallel training in several ways, one after the other, started by torchrun; rank 0 prints the hash of the
weights of each. A barrier ends each.

    torchrun --nproc-per-node 3 ddp_kinds.py plain views …
"""

import hashlib
import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

STEPS, WIDTH = 12, 96
MORE = {
    "views": {"gradient_as_bucket_view": True},
    "unused": {"find_unused_parameters": True},
    "static": {"static_graph": True},
}


class Model(nn.Module):
    """Layers of which one is not always used, and a batch norm."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(6)])
        self.norm = nn.BatchNorm1d(WIDTH) if kind == "buffers" else nn.Identity()
        self.sometimes = nn.Linear(WIDTH, WIDTH)
        self.kind = kind

    def forward(self, batch: Tensor, all_of_it: bool) -> Tensor | list[Tensor]:
        if self.kind == "parts":
            parts = [batch, batch]
            for number, layer in enumerate(self.layers):
                parts[number % 2] = layer(parts[number % 2]).tanh()
            return [parts[0], self.sometimes(parts[1])]
        for layer in self.layers:
            batch = layer(batch).tanh()
        batch = self.norm(batch)
        return self.sometimes(batch) if all_of_it else batch


def train(kind: str) -> nn.Module:
    torch.manual_seed(0)
    shared = nn.parallel.DistributedDataParallel(Model(kind), bucket_cap_mb=0.08, **MORE.get(kind, {}))
    if kind == "hook":
        shared.register_comm_hook(None, default_hooks.allreduce_hook)
    if kind == "compressing hook":
        shared.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if kind == "builtin hook":
        shared._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    optimizer = torch.optim.SGD(shared.parameters(), lr=0.05, momentum=0.9)
    own = torch.Generator().manual_seed(dist.get_rank())
    for step in range(STEPS):
        accumulates = kind == "accumulating" and step % 2 == 0
        with shared.no_sync() if accumulates else nullcontext():
            output = shared(torch.randn(8, WIDTH, generator=own), kind != "unused" or step % 3 > 0)
            for part in output if kind == "parts" else [output]:  # each by a run of the engine of its own
                part.pow(2).mean().backward()
        if not accumulates:
            optimizer.step()
            optimizer.zero_grad(set_to_none=kind != "views" or step % 2 > 0)
    if kind == "calls":
        group = dist.new_group([0, 1])
        if dist.get_rank() < 2:
            dist.all_reduce(torch.ones(5), group=group)
        dist.all_reduce(torch.ones(1000), async_op=True).wait()
        with dist._coalescing_manager(async_ops=True) as together:
            for _ in range(2):
                dist.all_reduce(torch.ones(10), async_op=True)
        together.wait()
        dist.all_gather_object([None] * dist.get_world_size(), {"rank": dist.get_rank()})
    return shared


dist.init_process_group("gloo")
torch.set_num_threads(1)
for name in sys.argv[1:]:
    trained = train(name)
    if dist.get_rank() == 0:
        weights = b"".join(each.detach().numpy().tobytes() for each in trained.parameters())
        print(name, hashlib.sha256(weights).hexdigest())
    dist.barrier()
dist.destroy_process_group()
