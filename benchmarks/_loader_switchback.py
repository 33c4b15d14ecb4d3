"""A loop over a DataLoader, recorded in some epochs and not in others: run under `tracekit record`.

As `_switchback.py` does it for training: epochs with the hooks taken out (`off`, `again`) and with them in place (`on`)
come in random order. Without `--workers` what is done in workers otherwise is part of what is measured.
Prints one JSON object: per state and round the median and the mean time of a batch, and tracekit's own estimate.
"""

import argparse
import json
import os
import random
import resource
import statistics
import time

import torch
from _loading_workloads import compute
from _switchback import STATES, Recorder
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

CALIBRATION_BYTES = 1 << 20


class Samples(Dataset[Tensor]):
    """Samples that take some bytes of hashing each."""

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, size

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        compute(1.0, self.size)
        return torch.tensor(float(index))


def epoch(loader: DataLoader[Tensor]) -> dict[str, float]:
    """The median and the mean time of a batch, the epoch's beginning and end included in the latter, and the CPU time
    of the program and of its workers, ms per batch."""
    times: list[float] = []
    itself, children = _cpu_s()
    began = start = time.perf_counter()
    for _ in loader:
        now = time.perf_counter()
        times.append(now - start)
        start = now
    whole = time.perf_counter() - began
    now_itself, now_children = _cpu_s()
    return {
        "median_ms": 1e3 * statistics.median(times),
        "mean_ms": 1e3 * whole / len(times),
        "cpu_ms": 1e3 * (now_itself - itself) / len(times),
        "workers_cpu_ms": 1e3 * (now_children - children) / len(times),
    }


def _cpu_s() -> tuple[float, float]:
    """CPU time of this process, and of its children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time(), used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=32, help="of a batch")
    parser.add_argument("--batch", type=float, default=1.0, help="ms; samples are made as large as that takes here")
    parser.add_argument("--batches", type=int, default=100, help="of an epoch")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)

    def loader(size: int) -> DataLoader[Tensor]:
        samples = Samples(options.samples * options.batches, size)
        return DataLoader(samples, options.samples, shuffle=True, num_workers=options.workers)

    recorder = Recorder()
    with recorder.taken_out():
        began = time.perf_counter()
        compute(1.0, CALIBRATION_BYTES)
        bytes_per_ms = CALIBRATION_BYTES / (time.perf_counter() - began) / 1e3
        itself = min(epoch(loader(1))["median_ms"] for _ in range(5))
    batches = loader(max(int((options.batch - itself) * bytes_per_ms / options.samples), 1))
    seen: dict[str, list[dict[str, float]]] = {state: [] for state in STATES}
    order = random.Random(os.getpid())
    for number in range(options.rounds + 1):
        for state in order.sample(STATES, len(STATES)):
            if state == "on":
                found = epoch(batches)
            else:
                with recorder.taken_out():
                    found = epoch(batches)
            if number:  # the first round warms up
                seen[state].append(found)
    print(json.dumps({"estimate": recorder.estimate(), "seen": seen}))


if __name__ == "__main__":
    main()
