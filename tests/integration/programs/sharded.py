"""Training with sharded parameters (FSDP2), started by torchrun; each rank prints the hash of the whole weights. Of the
ranks the last one may be late in each forward pass by so many ms.

    torchrun --nproc-per-node 2 sharded.py [--steps 12] [--ms 0]
"""

import argparse
import hashlib
import sys
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

WIDTH = 96


class Late(nn.Module):
    """Passes on what it gets, after a while."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, batch: Tensor) -> Tensor:
        time.sleep(self.seconds)
        return batch


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=12)
    options.add_argument("--ms", type=float, default=0.0)
    given = options.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    late = Late(given.ms / 1e3 if dist.get_rank() == dist.get_world_size() - 1 else 0.0)
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(3)]
    model = nn.Sequential(layers[0], nn.Tanh(), late, layers[1], nn.Tanh(), layers[2])
    for layer in layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    own = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(given.steps):
        model(torch.randn(16, WIDTH, generator=own)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    weights = hashlib.sha256(b"".join(each.full_tensor().detach().numpy().tobytes() for each in model.parameters()))
    # One write: the ranks share a pipe.
    sys.stdout.write(f"{weights.hexdigest()[:16]}\n")
    sys.stdout.flush()
    dist.barrier()  # gloo aborts a rank whose peer has gone before it
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
