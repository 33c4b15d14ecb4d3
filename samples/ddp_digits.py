"""A small convolutional network learns scikit-learn's digits, on several processes that share the batches.

    torchrun --nproc-per-node 2 samples/ddp_digits.py
    torchrun --nproc-per-node 2 samples/ddp_digits.py --epochs 20 --bucket-cap-mb 1

An ordinary program of DistributedDataParallel over gloo, nothing in it knows of tracekit. The digits come with
scikit-learn (`pip install scikit-learn`), nothing is downloaded.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

TEST_SHARE = 5  # one image in so many is kept for the test


class Classifier(nn.Module):
    """Two convolutions and two linear layers, from 8 x 8 images to the scores of ten digits."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Sequential(nn.Linear(32 * width, 16 * width), nn.ReLU(), nn.Linear(16 * width, 10))

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.head(self.features(images))
        return scores


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Images (N, 1, 8, 8) with their digits: to learn from, and to test with."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(data.target)
    is_test = torch.arange(len(labels)) % TEST_SHARE == 0
    return TensorDataset(images[~is_test], labels[~is_test]), TensorDataset(images[is_test], labels[is_test])


def train(model: nn.Module, data: TensorDataset, options: argparse.Namespace) -> int:
    """Train for some epochs; how many steps that were."""
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(data, seed=options.seed)
    loader = DataLoader(data, batch_size=options.batch_size, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    steps = 0
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
    return steps


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset) -> float:
    images, labels = data.tensors
    return float((model(images).argmax(dim=1) == labels).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="of each process")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--bucket-cap-mb", type=float, default=None, help="of DistributedDataParallel")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("start it with torchrun, for example: torchrun --nproc-per-node 2 samples/ddp_digits.py")
    dist.init_process_group("gloo")
    torch.manual_seed(options.seed)
    learn, test = digits()
    model = Classifier(options.width)
    shared = DistributedDataParallel(model, bucket_cap_mb=options.bucket_cap_mb)
    began = time.perf_counter()
    steps = train(shared, learn, options)
    took = time.perf_counter() - began
    if dist.get_rank() == 0:
        print(f"{steps} steps on {dist.get_world_size()} processes, accuracy {accuracy(model, test):.3f}")
        print(f"{took / steps * 1e3:.2f} ms a step")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
