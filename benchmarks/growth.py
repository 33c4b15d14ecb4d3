"""How the analysis of one long run grows with its batches, samples and reads.

    python benchmarks/growth.py [--json] [--batches 3000 30000 300000]

A program reads a small file for each sample and makes no steps longer than it has to, so that a minute of recording has
as many rows as hours of training have. Each run is recorded, then analysed by a fresh process: `rows` that it has,
the `seconds` the analysis took and the `mb` of memory. `power`: the seconds grow as the rows to this power, from each
run to the next (1: in proportion).
"""

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from _side_by_side import TRACEKIT, progress
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from tracekit.advice import analyze
from tracekit.run.reader import open_run
from tracekit.run.schema import TABLES

MB = 1024.0
SAMPLES = 4  # of a batch
EPOCHS = 10
SELF = [sys.executable, __file__]


class Files(Dataset[Tensor]):
    """Each sample reads the same small file."""

    def __init__(self, path: str, count: int) -> None:
        self.path, self.count = path, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        with open(self.path, "rb") as file:
            return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)


def read_batches(path: str, batches: int) -> None:
    """The program that is recorded."""
    loader = DataLoader(Files(path, batches // EPOCHS * SAMPLES), SAMPLES, shuffle=True)
    weights = torch.zeros(64, requires_grad=True)
    optimizer = torch.optim.SGD([weights], 0.01)
    for _ in range(EPOCHS):
        for batch in loader:
            optimizer.zero_grad()
            (batch.float() @ weights).sum().backward()
            optimizer.step()


def analysed(path: str) -> dict[str, Any]:
    """What one process finds, and what that costs it."""
    run = open_run(path)
    rows = sum(int(run.sql(f"SELECT count(*) AS rows FROM {table}")["rows"].iloc[0]) for table in TABLES)
    began = time.perf_counter()
    analyze(run)
    seconds = time.perf_counter() - began
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MB
    return {"rows": rows, "seconds": seconds, "mb": most}


def measured(batches: int, folder: str) -> dict[str, Any]:
    file = Path(folder) / "sample"
    file.write_bytes(bytes(64))
    run = f"{folder}/run{batches}"
    recording = [*TRACEKIT, "record", "-q", "-o", run, "--", *SELF, "--read", str(file), "--batches", str(batches)]
    subprocess.run(recording, check=True)
    done = subprocess.run([*SELF, "--analyse", run], check=True, capture_output=True, text=True)
    return {"batches": batches, **json.loads(done.stdout)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--batches", type=int, nargs="+", default=[3000, 30_000, 300_000])
    parser.add_argument("--read", help=argparse.SUPPRESS)
    parser.add_argument("--analyse", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        read_batches(options.read, options.batches[0])
        return
    if options.analyse:
        print(json.dumps(analysed(options.analyse)))
        return
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for batches in sorted(options.batches):
            found.append(measured(batches, folder))
            progress(f"{batches} batches: {found[-1]['seconds']:.1f} s, {found[-1]['mb']:.0f} MB")
    for before, after in pairwise(found):
        more = math.log(after["rows"] / before["rows"])
        after["power"] = math.log(after["seconds"] / before["seconds"]) / more
    if options.json:
        print(json.dumps(found, indent=1))
        return
    for each in found:
        power = f", as the rows to the power of {each['power']:.2f}" if "power" in each else ""
        print(f"{each['batches']} batches, {each['rows']} rows: {each['seconds']:.2f} s, {each['mb']:.0f} MB{power}")


if __name__ == "__main__":
    main()
