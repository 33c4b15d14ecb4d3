"""What it takes a program to take a batch that is there, by how busy the workers are that make the batches, and whether
the last batch of an epoch tells what it would take if they had nothing to do.

    python benchmarks/handover.py [--json] [--processes 6] [--rounds 3]

A loader with one worker, or two, is ahead of a program that computes between batches; its workers compute for a share
of that time, or sleep for it as if storage let them wait, or have nothing to do (`instant`). In each fresh process all
of these take turns in random order. `ms` is the median wait for a settled batch, `last_ms` that for the last one of an
epoch; `rested` and `just_made` are how many times as long as either it is where the workers have nothing to do. Of all
together the latter is `JUST_MADE`, with how unsure it is (95 %, by process): that of `tracekit/analysis/handover.py`.
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
from scipy.special import stdtrit
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


def taking_ms(way: str, gap_ms: float, workers: int, share: float, unit: int) -> tuple[float, float]:
    """What a batch that is there usually takes to take, and what the last one takes."""
    loader = DataLoader(Samples(way, gap_ms * share, unit), shuffle=True, num_workers=workers)
    waits, batches = [], iter(loader)
    for _ in range(BATCHES):
        asked = time.perf_counter()
        next(batches)
        waits.append((time.perf_counter() - asked) * 1e3)
        compute(gap_ms, unit)
    return statistics.median(waits[SETTLED:-ENDING]), waits[-1]


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
    found: dict[tuple[str, float, int, float], list[tuple[float, float]]] = {cell: [] for cell in cells}
    for _ in range(rounds):
        for cell in random.sample(cells, len(cells)):
            found[cell].append(taking_ms(*cell, unit))
    names = ("way", "gap_ms", "workers", "share")
    return [
        dict(zip((*names, "ms", "last_ms"), (*cell, *np.median(of, axis=0).tolist()), strict=True))
        for cell, of in found.items()
    ]


def measured(processes: int, rounds: int) -> dict[str, Any]:
    stolen, runs = Stolen(), []
    for number in range(processes):
        progress(f"process {number + 1} of {processes}")
        words = [sys.executable, __file__, "--one", "--rounds", str(rounds)]
        runs.append(json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout))
    each = []
    for at, cell in enumerate(runs[0]):
        if cell["way"] != "instant":
            rested = [_instant(run, cell)["ms"] for run in runs]
            taken = {name: [run[at][name] for run in runs] for name in ("ms", "last_ms")}
            ratios = {name: Ratio.of(rested, taken[of]) for name, of in (("rested", "ms"), ("just_made", "last_ms"))}
            times = {name: statistics.median(of) for name, of in taken.items()}
            each.append({**cell, **times, **{name: [of.low, of.median, of.high] for name, of in ratios.items()}})
    return {"JUST_MADE": just_made(runs), "stolen": stolen.share(), "each": each}


def just_made(runs: list[list[dict[str, Any]]]) -> list[float]:
    """How many times as long as the last batches those take whose workers have nothing to do, of all cells together;
    and by how much that is unsure (95 %)."""
    by_process = [
        statistics.median(_instant(run, cell)["ms"] / cell["last_ms"] for cell in run if cell["way"] != "instant")
        for run in runs
    ]
    unsure = stdtrit(len(runs) - 1, 0.975) * np.std(by_process, ddof=1) / len(runs) ** 0.5
    return [statistics.mean(by_process), float(unsure)]


def _instant(run: list[dict[str, Any]], cell: dict[str, Any]) -> dict[str, Any]:
    """The cell of a process that is like another one, but that its workers have nothing to do."""
    alike = ("gap_ms", "workers")
    return next(each for each in run if each["way"] == "instant" and all(each[name] == cell[name] for name in alike))


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
        rested, last = (f"{of[1]:.2f} times [{of[0]:.2f}, {of[2]:.2f}]" for of in (cell["rested"], cell["just_made"]))
        print(
            f"{cell['way']:8} {cell['share']:4.0%} of {cell['gap_ms']:3.0f} ms, {cell['workers']} workers:"
            f" {cell['ms']:.3f} ms, the last one {cell['last_ms']:.3f}; rested {rested} and {last} as long"
        )
    best, unsure = found["JUST_MADE"]
    print(f"JUST_MADE {best:.2f} +- {unsure:.2f}")
    print(f"{found['stolen']:.1%} of the CPU time was stolen")


if __name__ == "__main__":
    main()
