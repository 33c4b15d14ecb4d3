"""The programs that the benchmark of gradient buckets measures: a rank of a model under DistributedDataParallel, whose
caps take turns in one process. Knows nothing of tracekit.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=… MASTER_PORT=… python benchmarks/_ddp_models.py linear --caps default,1,4

Each cap has a model of its own; all ranks change at the same steps. Rank 0 prints one JSON object: `step_ms`, by cap
the mean step of each block, and `buckets`, by cap the sizes of those that torch has made.
"""

import argparse
import itertools
import json
import random
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

SECONDS = 0.3  # of a block, at least
TRANSITION = 3  # steps after a change: the first pass of a model forms its buckets


class Recurrent(nn.Module):
    """Words, three LSTMs and a wide last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(2000, 256)
        self.layers = nn.ModuleList(nn.LSTM(256, 256, batch_first=True) for _ in range(3))
        self.scores = nn.Linear(256, 2000)

    def forward(self, words: Tensor) -> Tensor:
        seen: Tensor = self.words(words)
        for layer in self.layers:
            seen, _ = layer(seen)
        return self.scores(seen[:, -1])


def linear() -> tuple[nn.Module, Tensor]:
    layers = [nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(12)]
    return nn.Sequential(*layers), torch.randn(64, 512)


def convolutional() -> tuple[nn.Module, Tensor]:
    widths = [3, 32, 64, 128, 256]
    convolutions = [
        nn.Sequential(nn.Conv2d(a, b, 3, stride=2, padding=1), nn.BatchNorm2d(b), nn.ReLU())
        for a, b in itertools.pairwise(widths)
    ]
    head = nn.Sequential(nn.Flatten(), nn.Linear(4 * 256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.Linear(1024, 10))
    return nn.Sequential(*convolutions, head), torch.randn(32, 3, 32, 32)


def small() -> tuple[nn.Module, Tensor]:
    features = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
    )
    head = nn.Sequential(nn.Flatten(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))
    return nn.Sequential(features, head), torch.randn(32, 1, 8, 8)


def recurrent() -> tuple[nn.Module, Tensor]:
    return Recurrent(), torch.randint(0, 2000, (16, 12))


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "linear": linear,
    "convolutional": convolutional,
    "recurrent": recurrent,
    "small": small,
}


def training(name: str, cap: str) -> tuple[Callable[[], float], DistributedDataParallel]:
    """A step of a new model: how long it took, s; and the model."""
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    shared = DistributedDataParallel(model, bucket_cap_mb=None if cap == "default" else float(cap))
    optimizer = torch.optim.SGD(shared.parameters(), lr=1e-3)

    def step() -> float:
        began = time.perf_counter()
        loss = shared(inputs).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return time.perf_counter() - began

    return step, shared


def first_steps(step: Callable[[], float]) -> float:
    """How long a step takes, s: what rank 0 finds, for all of them."""
    times = [step() for _ in range(2 * TRANSITION)][TRANSITION:]
    found = torch.tensor(statistics.median(times))
    dist.broadcast(found, 0)
    return float(found)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=list(MODELS))
    parser.add_argument("--caps", default="default")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5, help="of a block, at least")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    trained = {cap: training(options.model, cap) for cap in options.caps.split(",")}
    steps = {cap: step for cap, (step, _) in trained.items()}
    count = max(options.steps, round(SECONDS / first_steps(next(iter(steps.values())))))
    order = random.Random(0)
    found: dict[str, list[float]] = {cap: [] for cap in steps}
    for number in range(options.rounds + 1):
        for cap in order.sample(sorted(steps), len(steps)):
            times = [steps[cap]() for _ in range(TRANSITION + count)][TRANSITION:]
            if number:
                found[cap].append(1e3 * statistics.mean(times))
    if dist.get_rank() == 0:
        made = {cap: model._get_ddp_logging_data()["rebuilt_bucket_sizes"] for cap, (_, model) in trained.items()}
        print(json.dumps({"step_ms": found, "buckets": made}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
