"""Training beside noise: computes in a cache, in memory (`--streams`), or reads its samples from a disk (`--read`).

Prints a hash of the weights. Under torchrun it trains on all ranks.
"""

import argparse
import hashlib
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

READ_BYTES = 1 << 20


class Samples(Dataset[Tensor]):
    """Vectors; with files of their own, which are read from the disk and not from the cache."""

    def __init__(self, folder: Path | None, count: int, width: int) -> None:
        self.vectors = torch.randn(64, width, generator=torch.Generator().manual_seed(1))
        self.count = count
        self.files = [folder / f"{number}.bin" for number in range(64)] if folder else []
        for file in self.files:
            file.write_bytes(os.urandom(READ_BYTES))
            forget(file)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        if self.files:
            file = self.files[index % len(self.files)]
            with open(file, "rb") as opened:
                opened.read()
            forget(file)
        return self.vectors[index % len(self.vectors)]


def forget(file: Path) -> None:
    """Take a file out of the page cache."""
    descriptor = os.open(file, os.O_RDONLY)
    os.fdatasync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


class Model(nn.Module):
    """Linear layers, behind what goes through memory."""

    def __init__(self, width: int, streams: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)])
        self.memory = torch.ones(streams << 18)  # MiB of float32

    def forward(self, inputs: Tensor) -> Tensor:
        if len(self.memory):
            self.memory = self.memory + 1.0
        return self.layers(inputs)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--streams", type=int, default=0, help="MiB of memory that a step reads and writes")
    parser.add_argument("--read", type=Path, help="folder for files that are read, one for each sample")
    parser.add_argument("--batch", type=int, default=16)
    options = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    ranks = "RANK" in os.environ
    if ranks:
        dist.init_process_group("gloo")
    model = Model(options.width, options.streams, options.layers)
    wrapped = nn.parallel.DistributedDataParallel(model) if ranks else model
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.001)
    samples = Samples(options.read, options.steps * options.batch, options.width)
    for inputs in DataLoader(samples, options.batch):
        optimizer.zero_grad()
        wrapped(inputs).square().mean().backward()
        optimizer.step()
    weights = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
    print(hashlib.sha256(weights).hexdigest(), flush=True)
    if ranks:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
