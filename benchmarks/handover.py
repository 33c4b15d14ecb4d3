"""What it takes a program to take a batch that is there, by how busy the workers are that make the batches.

    python benchmarks/handover.py [--json] [--processes 6] [--rounds 3]

A loader with one worker, or two, is ahead of a program that computes between batches; its workers compute for a share
of that time, or sleep for it as if storage let them wait, or have nothing to do (`instant`). In each fresh process all
of these take turns in random order. `ms` is the median wait for a settled batch, `rested` how many times as long it is
where the workers have nothing to do. What is `fitted` to all of them are `RESTED` and `COOLING` of
`tracekit/models/loader_split.py`.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np
import torch
from _loading_workloads import compute
from _side_by_side import Ratio, Stolen, progress
from loading import bytes_per_ms
from scipy.optimize import curve_fit
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

GAPS_MS = (4.0, 20.0)
WORKERS = (1, 2)
# Of the time between two batches all workers together are busy for so much: less than a worker can do.
SHARES = (0.3, 0.55, 0.8)
WAYS = ("compute", "sleep")
BATCHES, SETTLED, ENDING = 80, 5, 4


class Samples(Dataset[Tensor]):
    """One sample per batch, for which its worker is busy in some way for so long."""

    def __init__(self, way: str, ms: float, unit: int) -> None:
        self.way, self.ms, self.unit = way, ms, unit

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> Tensor:
        if self.way == "compute":
            compute(self.ms, self.unit)
        elif self.way == "sleep":
            time.sleep(self.ms / 1e3)
        return torch.full((16,), float(index))


def taking_ms(way: str, gap_ms: float, workers: int, share: float, unit: int) -> float:
    """What a batch that is there usually takes to take."""
    loader = DataLoader(Samples(way, gap_ms * share, unit), shuffle=True, num_workers=workers)
    waits, batches = [], iter(loader)
    for _ in range(BATCHES):
        asked = time.perf_counter()
        next(batches)
        waits.append((time.perf_counter() - asked) * 1e3)
        compute(gap_ms, unit)
    return statistics.median(waits[SETTLED:-ENDING])


def one_process(rounds: int) -> list[dict[str, Any]]:
    """The cells, each with its median over rounds in random order."""
    torch.set_num_threads(1)
    unit = bytes_per_ms()
    cells = [
        (way, gap, workers, share)
        for gap in GAPS_MS
        for workers in WORKERS
        for way, share in [("instant", 0.0), *((way, share) for way in WAYS for share in SHARES)]
    ]
    found: dict[tuple[str, float, int, float], list[float]] = {cell: [] for cell in cells}
    for _ in range(rounds):
        for cell in random.sample(cells, len(cells)):
            found[cell].append(taking_ms(*cell, unit))
    names = ("way", "gap_ms", "workers", "share")
    return [{**dict(zip(names, cell, strict=True)), "ms": statistics.median(of)} for cell, of in found.items()]


def measured(processes: int, rounds: int) -> dict[str, Any]:
    stolen, runs = Stolen(), []
    for number in range(processes):
        progress(f"process {number + 1} of {processes}")
        words = [sys.executable, __file__, "--one", "--rounds", str(rounds)]
        runs.append(json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout))
    each = []
    rested: list[float] = []
    for at, cell in enumerate(runs[0]):
        taking = [run[at]["ms"] for run in runs]
        if cell["way"] == "instant":
            rested = taking
            continue
        ratio = Ratio.of(rested, taking)
        each.append({**cell, "ms": statistics.median(taking), "rested": [ratio.low, ratio.median, ratio.high]})
    return {"fitted": fitted(each), "stolen": stolen.share(), "each": each}


def fitted(each: list[dict[str, Any]]) -> dict[str, list[float]]:
    """What `rested` tells of both constants, and by how much each is unsure (95 %)."""
    computing = np.array([cell["share"] * (cell["way"] == "compute") for cell in each])
    resting_s = np.array([cell["share"] * cell["gap_ms"] / 1e3 for cell in each])

    def law(_: Any, rested: float, cooling: float) -> Any:
        return np.log((1 + rested * computing) * (1 + cooling * resting_s))

    best, covariance = curve_fit(law, None, np.log([cell["rested"][1] for cell in each]), [0.3, 10.0])
    unsure = 1.96 * np.sqrt(np.diag(covariance))
    return {name: [float(best[at]), float(unsure[at])] for at, name in enumerate(("RESTED", "COOLING"))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one_process(options.rounds)))
        return
    found = measured(options.processes, options.rounds)
    if options.json:
        print(json.dumps(found, indent=1))
        return
    for cell in found["each"]:
        low, median, high = cell["rested"]
        print(
            f"{cell['way']:8} {cell['share']:4.0%} of {cell['gap_ms']:3.0f} ms, {cell['workers']} workers:"
            f" {cell['ms']:.3f} ms; rested {median:.2f} times [{low:.2f}, {high:.2f}]"
        )
    for name, (best, unsure) in found["fitted"].items():
        print(f"{name} {best:.2f} +- {unsure:.2f}")
    print(f"{found['stolen']:.1%} of the CPU time was stolen")


if __name__ == "__main__":
    main()
