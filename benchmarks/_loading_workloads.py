"""The programs that the loading benchmark measures: loaders whose samples have known costs.

    python benchmarks/_loading_workloads.py NAME --unit BYTES [--store URL] [--rounds 4] [--grid 0:2,1:2,4:8]

Each round runs the workload once, or at each setting of the grid, in random order, and prints a line of JSON: for each
setting the seconds per batch, and those of them that it waited, as it is, and behind a setting (`2:2:cached`,
`2:2:synthetic`) without its storage, or without its computing too. Computing is hashing: `--unit` bytes take 1 ms.
With `--warmed` the first setting comes once more before each round, and does not count: who has slept takes longer at
first.
With `--in-turn` it prints an empty line once it is ready, and each line of input asks for a round, so that several such
processes can take turns (while it waits for its own it stands still for its recorder, too); where none comes, as in a
probe, it has as many `--rounds` as it has otherwise.
"""

import argparse
import hashlib
import http.client
import json
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from typing import Any
from urllib.parse import urlsplit

import torch
from _switchback import Recorder
from torch import Tensor
from torch.utils.data import DataLoader, Dataset


@dataclass(frozen=True)
class Workload:
    """A loop over a loader. Per sample `cpu_ms` of computing and `size` bytes from the store (both by index), and
    `moved` bytes copied in memory and `fresh` ones of new memory; per batch `consume_ms` of computing in the program,
    or of waiting for a `device`.

    The store answers after `latency` s and sends `bandwidth` bytes per s. `workers` and `prefetch` are what the program
    has before anybody advises it.
    """

    cpu_ms: Callable[[int], float] = lambda index: 0.0
    size: Callable[[int], int] = lambda index: 0
    latency: float = 0.0
    bandwidth: float = 1e9
    moved: int = 0
    fresh: int = 0
    consume_ms: float = 0.0
    device: bool = False
    batch: int = 4
    batches: int = 50
    elements: int = 16  # numbers in a sample
    workers: int = 1
    prefetch: int = 2
    epochs: int = 2
    persistent: bool = False
    in_order: bool = True
    others: int = 0  # batches of a second loader after each epoch
    instant: bool = False  # samples are there before anybody asks


def same(value: float) -> Callable[[int], float]:
    return lambda index: value


def lognormal(mean: float, sigma: float) -> Callable[[int], float]:
    return lambda index: mean * random.Random(index).lognormvariate(-sigma * sigma / 2, sigma)


def bimodal(usual: float, rare: float, share: float) -> Callable[[int], float]:
    return lambda index: rare if random.Random(index).random() < share else usual


def whole(of: Callable[[int], float]) -> Callable[[int], int]:
    return lambda index: int(of(index))


WORKLOADS = {
    "computing, light": Workload(cpu_ms=same(0.5), consume_ms=6),
    "computing, as much as the program": Workload(cpu_ms=same(1.2), consume_ms=5, workers=0),
    "computing, heavy": Workload(cpu_ms=same(3), consume_ms=2, workers=2),
    "computing, log-normal": Workload(cpu_ms=lognormal(1.5, 1), consume_ms=4, workers=2),
    "computing, bimodal": Workload(cpu_ms=bimodal(0.3, 12, 0.1), consume_ms=4),
    "latency": Workload(size=whole(same(2000)), latency=0.005, consume_ms=5),
    "latency, no workers": Workload(size=whole(same(2000)), latency=0.005, consume_ms=5, workers=0),
    "latency, slow program": Workload(size=whole(same(2000)), latency=0.003, consume_ms=20, workers=2),
    "latency, fast program": Workload(size=whole(same(2000)), latency=0.01, batch=2, consume_ms=0, workers=4),
    "bandwidth": Workload(size=whole(same(60_000)), bandwidth=20e6, consume_ms=2, workers=2),
    "bandwidth, slow program": Workload(size=whole(same(60_000)), bandwidth=20e6, consume_ms=20),
    "bandwidth, no workers": Workload(size=whole(same(40_000)), bandwidth=20e6, consume_ms=5, workers=0),
    "latency and computing": Workload(
        size=whole(same(5000)), latency=0.004, cpu_ms=same(1), consume_ms=4, workers=2
    ),
    "sizes log-normal": Workload(size=whole(lognormal(40_000, 1)), bandwidth=20e6, consume_ms=6, workers=2),
    "sizes bimodal": Workload(
        size=whole(bimodal(5000, 400_000, 0.08)), latency=0.002, bandwidth=20e6, consume_ms=6, workers=2
    ),
    "sizes bimodal, in any order": Workload(
        size=whole(bimodal(5000, 400_000, 0.08)), latency=0.002, bandwidth=20e6, consume_ms=6, workers=2,
        in_order=False,
    ),
    "memory-limited": Workload(moved=12 << 20, consume_ms=4),
    "memory got anew": Workload(fresh=40 << 20, batch=1, consume_ms=4),
    "tiny samples": Workload(batch=256, consume_ms=1),
    "tiny samples, no workers": Workload(batch=32, consume_ms=0.2, batches=200, workers=0),
    "huge samples": Workload(cpu_ms=same(4), batch=1, elements=1 << 20, consume_ms=4),
    "a device computes": Workload(cpu_ms=same(1.5), consume_ms=6, device=True),
    "a device computes, latency": Workload(size=whole(same(2000)), latency=0.004, consume_ms=8, device=True),
    "workers that persist": Workload(cpu_ms=same(1), consume_ms=4, epochs=4, batches=25, persistent=True),
    "long epochs": Workload(cpu_ms=same(1), consume_ms=4, epochs=1, batches=400, workers=2),
    "two loaders": Workload(cpu_ms=same(1), consume_ms=5, others=15, workers=2),
}  # fmt: skip


def compute(ms: float, unit: int) -> None:
    """Keep a CPU busy for about so long: the same work each time."""
    left = int(ms * unit)
    while left > 0:
        hashlib.sha256(_block(min(left, 1 << 16)))
        left -= 1 << 16


@cache
def _block(size: int) -> bytes:
    return bytes(size)


@cache
def _memory(size: int) -> tuple[Tensor, Tensor]:
    """From where to where as many bytes are copied, in this process. Kept, as what is got for each copy depends on what
    the heap of a process looks like: the same copies took 7 ms in one and 15 in another, most of it page faults, and
    40 where the memory was new to the machine too, as a virtual one's is after a while."""
    return torch.ones(size, dtype=torch.uint8), torch.ones(size, dtype=torch.uint8)


class Samples(Dataset[Tensor]):
    """Samples that cost what the workload says."""

    def __init__(self, workload: Workload, unit: int, store: str) -> None:
        self.workload, self.unit, self.store = workload, unit, store
        self._connection: http.client.HTTPConnection | None = None
        self._made = torch.zeros(workload.elements)

    def __len__(self) -> int:
        return self.workload.batch * self.workload.batches

    def __getitem__(self, index: int) -> Tensor:
        if self.workload.instant:
            return self._made
        if self.workload.size(index):
            self.read(index)
        compute(self.workload.cpu_ms(index), self.unit)
        if self.workload.moved:
            here, there = _memory(self.workload.moved)
            there.copy_(here)
        if self.workload.fresh:
            torch.ones(self.workload.fresh, dtype=torch.uint8)
        return torch.full((self.workload.elements,), float(index))

    def read(self, index: int) -> bytes:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(urlsplit(self.store).netloc)
        self._connection.request("GET", f"/{index}")
        return self._connection.getresponse().read()


def run(workload: Workload, workers: int, prefetch: int, unit: int, store: str) -> tuple[float, float]:
    """Seconds per batch of the whole loop, the start of workers included; and of waiting for batches."""

    def loader(samples: Samples) -> DataLoader[Tensor]:
        return DataLoader(
            samples, workload.batch, shuffle=True, num_workers=workers, prefetch_factor=prefetch if workers else None,
            persistent_workers=workload.persistent and workers > 0, in_order=workload.in_order,
        )  # fmt: skip

    main, other = loader(Samples(workload, unit, store)), loader(Samples(workload, unit, store))
    spent = used = 0.0
    for _ in range(workload.epochs):
        began = time.perf_counter()
        for _ in main:
            received = time.perf_counter()
            consume(workload, unit)
            used += time.perf_counter() - received
        spent += time.perf_counter() - began
        if workload.others:
            for _, _ in zip(range(workload.others), other, strict=False):
                consume(workload, unit)
    batches = workload.epochs * workload.batches
    return spent / batches, (spent - used) / batches


def consume(workload: Workload, unit: int) -> None:
    if workload.device:
        time.sleep(workload.consume_ms / 1e3)
    else:
        compute(workload.consume_ms, unit)


def variant(workload: Workload, names: list[str]) -> Workload:
    """The workload with instant storage (`cached`), with instant samples (`synthetic`), with workers that persist, with
    batches taken as they get ready (`unordered`), or as it is."""
    changes: dict[str, dict[str, Any]] = {
        "cached": {"size": whole(same(0))},
        "synthetic": {"size": whole(same(0)), "instant": True},
        "persistent": {"persistent": True},
        "unordered": {"in_order": False},
    }
    for name in names:
        workload = replace(workload, **changes[name])
    return workload


def one_round(
    workload: Workload, cells: list[str], unit: int, store: str, warmed: bool
) -> dict[str, tuple[float, float]]:
    """What `run` has found of each cell, at last."""
    found = {}
    first = cells[:1] if warmed else []
    for cell in [*first, *random.sample(cells, len(cells))]:  # from one place, or it would be another loader
        workers, prefetch, *names = cell.split(":")
        found[cell] = run(variant(workload, names), int(workers), int(prefetch), unit, store)
    return found


def turns_of(rounds: int) -> Iterable[object]:
    """One for each line of input, or so many where there is none."""
    asked = sys.stdin.readline()
    return chain([asked], _lines()) if asked else range(rounds)


def _lines() -> Iterator[str]:
    """Those of the input."""
    recorder = Recorder() if Recorder.is_here() else None
    while True:
        began = time.perf_counter_ns()
        line = sys.stdin.readline()
        if recorder is not None:
            recorder.was_away(time.perf_counter_ns() - began)
        if not line:
            return
        yield line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=list(WORKLOADS))
    parser.add_argument("--unit", type=int, required=True)
    parser.add_argument("--store", default="")
    parser.add_argument("--grid")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--in-turn", action="store_true")
    parser.add_argument("--warmed", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    workload = WORKLOADS[options.name]
    cells = options.grid.split(",") if options.grid else [f"{workload.workers}:{workload.prefetch}"]
    if options.in_turn:
        print(flush=True)
    for _ in turns_of(options.rounds) if options.in_turn else range(options.rounds):
        print(json.dumps(one_round(workload, cells, options.unit, options.store, options.warmed)), flush=True)


if __name__ == "__main__":
    main()
