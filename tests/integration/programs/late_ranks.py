"""Data-parallel training in which a rank is late in a phase: `phase` of `late` (a rank, or "turns"), for `ms`; or by
"noise": each rank has a CPU of its own, and that of the late one is wanted by another process too.

Run by torchrun. Rank 0 prints the hash of the weights and the usual step, ms.
"""

import argparse
import hashlib
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset[Tensor]):
    """Random vectors; one of them takes long to get."""

    def __init__(self, count: int, width: int) -> None:
        self.data = torch.randn(count, width)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Tensor:
        if index % options.batch == 0:
            late("loading")
        return self.data[index]


class Model(nn.Module):
    """Linear layers; in the middle there is a place for delays."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Sequential(*[nn.Linear(width, width) for _ in range(2)])
        self.second = nn.Sequential(*[nn.Linear(width, width) for _ in range(2)])
        if options.norm:
            self.second.append(nn.BatchNorm1d(width))

    def forward(self, batch: Tensor) -> Tensor:
        between = self.first(batch).tanh()
        late("forward")
        between.register_hook(lambda gradient: late("backward"))
        result: Tensor = self.second(between)
        return result


def late(phase: str) -> None:
    turn = state["step"] % dist.get_world_size() if options.late == "turns" else int(options.late)
    if phase == options.phase and dist.get_rank() == turn and state["step"] >= 0:
        if options.busy:
            end = time.perf_counter() + options.ms / 1e3
            while time.perf_counter() < end:
                pass
        else:
            time.sleep(options.ms / 1e3)


def hook(nothing: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    if bucket.index() == 0:
        late("communication")
    return default_hooks.allreduce_hook(dist.group.WORLD, bucket)


@contextmanager
def noise() -> Iterator[None]:
    rank, cpus = int(os.environ["RANK"]), sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[rank % len(cpus)]})
    if rank != int(options.late):
        yield
        return
    with subprocess.Popen(["timeout", "100", "sh", "-c", "while :; do :; done"]) as other:
        try:
            yield
        finally:
            other.terminate()


def batches(loader: DataLoader[Tensor]) -> Iterator[Tensor]:
    while True:
        yield from loader


parser = argparse.ArgumentParser()
parser.add_argument("--phase", default="none")
parser.add_argument("--late", default="1")
parser.add_argument("--ms", type=float, default=2.0)
parser.add_argument("--busy", action="store_true")
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--width", type=int, default=512)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--norm", action="store_true", help="rank 0 gives the others the buffers of a batch norm")
parser.add_argument("--by-hand", action="store_true", help="gradients are averaged by the program itself")
parser.add_argument("--numbers", type=int, default=0, help="after each step the ranks average so many")
options = parser.parse_args()
state = {"step": -1}
beside = ExitStack()
if options.phase == "noise":
    beside.enter_context(noise())
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
torch.set_num_threads(1)
model: nn.Module = Model(options.width)
if not options.by_hand:
    model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
if options.phase == "communication":
    model.register_comm_hook(None, hook)  # type: ignore[operator]
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer.register_step_pre_hook(lambda *_: late("optimizer"))
took = []
stream = batches(DataLoader(Samples(32 * options.batch, options.width), options.batch, num_workers=options.workers))
for number in range(options.steps):
    began = time.perf_counter()
    state["step"] = number
    loss = model(next(stream)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    if options.by_hand:
        gradients = [each.grad for each in model.parameters() if each.grad is not None]
        for work in [dist.all_reduce(each, async_op=True) for each in gradients]:
            assert work is not None
            work.wait()
    optimizer.step()
    if options.numbers:
        dist.all_reduce(loss.detach().repeat(options.numbers))
    took.append(time.perf_counter() - began)
if dist.get_rank() == 0:
    weights = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
    print(hashlib.sha256(weights).hexdigest(), f"{sorted(took)[len(took) // 2] * 1e3:.3f}")
dist.barrier()
beside.close()
dist.destroy_process_group()
