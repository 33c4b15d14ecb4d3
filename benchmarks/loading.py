"""Whether what is predicted of loaders from one run is right: against every number of workers and batches ahead.

    python benchmarks/loading.py [--json] [--rounds 3] [--only NAME]

Per workload: `tracekit record` and `analyze` of one run, and then `analyze --probe` where that has left open how
storage answers, predict the time per batch over a grid and recommend settings. Then one process, without tracekit, runs
the workload at every point of the grid, in random order: the truth. Where a value was told, `errors` are those of it,
and `errors_of_gains` those of its ratio to the settings that the run had: recording and truth are a minute apart, and
the machine's speed wanders. Where only a range was told (no such number of readers was seen), `covered` says whether
the truth lies in it. `split_errors` compare the storage's share of the waiting with that of three runs: as it is, with
instant storage, with instant samples. Storage is emulated: an HTTP server in a process of its own, with latency and
bandwidth.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from _loading_workloads import WORKLOADS, Workload, compute
from _side_by_side import TRACEKIT, progress

from tracekit.models.loading import MODEL_ERROR

HERE = Path(__file__).parent
PROGRAM = [sys.executable, str(HERE / "_loading_workloads.py")]
STORE = [sys.executable, str(HERE.parent / "tests" / "slow_storage.py")]
WORKERS, PREFETCH = (0, 1, 2, 4, 8), (1, 2, 8)
# A range that is no wider than the error of the model, or little, is a value.
NARROW = 1.02 * (1 + MODEL_ERROR) ** 2
# A program that waits less than this share of its time has no wait worth splitting: three runs would not tell it.
STALLED = 0.1


def bytes_per_ms() -> int:
    """How much hashing takes 1 ms here: the median of several tries."""
    probe = 1 << 20
    times = []
    for _ in range(9):
        began = time.perf_counter()
        compute(1.0, probe)
        times.append(time.perf_counter() - began)
    return int(probe / (float(np.median(times)) * 1e3))


@contextmanager
def store(workload: Workload) -> Iterator[str]:
    """The URL of emulated storage with the workload's files."""
    samples = range(workload.batch * workload.batches)
    if not workload.size(0):
        yield ""
        return
    with tempfile.TemporaryDirectory() as folder:
        for index in samples:
            (Path(folder) / str(index)).write_bytes(bytes(workload.size(index)))
        words = [*STORE, folder, "--latency", str(workload.latency), "--bandwidth", str(workload.bandwidth)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            yield server.stdout.readline().strip()
            server.terminate()


@dataclass(frozen=True)
class Told:
    """What a report says of the loader with the most batches: its summary, and the settings to have."""

    loader: dict[str, Any]
    grid: dict[str, dict[str, float]]
    chosen: str

    @classmethod
    def by(cls, report: dict[str, Any], workload: Workload) -> "Told":
        loader = max(report["loaders"], key=lambda each: each["batches"])
        own = f"loader.{loader['loader']}."
        advised = {each["name"]: each["recommended"] for each in report["settings"]}
        workers = advised.get(own + "num_workers", workload.workers)
        grid = {_cell(each["num_workers"], each["prefetch_factor"]): each for each in loader["forecasts"]}
        return cls(loader, grid, _cell(workers, advised.get(own + "prefetch_factor", workload.prefetch)))

    @property
    def ranges(self) -> list[str]:
        """The cells of which no value is told, but a range."""
        return [cell for cell, each in self.grid.items() if each["high_ms"] > each["low_ms"] * NARROW]

    def against(self, true_ms: dict[str, float], now: str) -> dict[str, Any]:
        """How it compares with what is true."""
        both, ranges = sorted(true_ms.keys() & self.grid.keys()), self.ranges
        known = [cell for cell in both if cell not in ranges]
        expected = {cell: self.grid[cell]["expected_ms"] for cell in both}
        return {
            "recommended": self.chosen,
            "of_the_best": min(true_ms.values()) / true_ms[self.chosen],
            "of_the_current": true_ms[now] / true_ms[self.chosen],
            "errors": {cell: expected[cell] / true_ms[cell] - 1 for cell in known},
            "errors_of_gains": {
                cell: (expected[cell] / self.loader["batch_ms"]) / (true_ms[cell] / true_ms[now]) - 1
                for cell in known
                if cell != now
            },
            "covered": {
                cell: self.grid[cell]["low_ms"] <= true_ms[cell] <= self.grid[cell]["high_ms"]
                for cell in both
                if cell in ranges
            },
            "predicted_ms": {
                cell: [self.grid[cell][f"{end}_ms"] for end in ("low", "expected", "high")] for cell in both
            },
            "error_now": self.loader["error"],
        }


def measure(name: str, unit: int, rounds: int) -> dict[str, Any]:
    """What was predicted and recommended for a workload, by one run and by a probe too, and what is true."""
    workload = WORKLOADS[name]
    with store(workload) as url, tempfile.TemporaryDirectory() as folder:
        program, run = [*PROGRAM, name, "--unit", str(unit), "--store", url], f"{folder}/run"
        subprocess.run([*TRACEKIT, "record", "-q", "-o", run, "--", *program], check=True, capture_output=True)
        told = Told.by(_json([*TRACEKIT, "analyze", "--json", run]), workload)
        probed = Told.by(_json([*TRACEKIT, "analyze", "--probe", "--json", run]), workload) if told.ranges else told
        now = _cell(workload.workers, workload.prefetch)
        cells = told.grid.keys() & {_cell(workers, prefetch) for workers in WORKERS for prefetch in PREFETCH}
        words = [*sorted(cells | {now, told.chosen, probed.chosen}), f"{now}:cached", f"{now}:synthetic"]
        times = _json([*program, "--grid", ",".join(words), "--rounds", str(rounds)])
    true_ms = {word: float(np.median(seconds)) * 1e3 for word, seconds in times.items()}
    cached, synthetic = (true_ms.pop(word) for word in words[-2:])
    return {
        "name": name,
        "now": now,
        "one_run": told.against(true_ms, now),
        "probed": probed.against(true_ms, now),
        "split": told.loader["split"],
        "split_error": split_error(told.loader["split"], true_ms[now], cached, synthetic),
        "recorded_ms": told.loader["batch_ms"],
        "true_ms": true_ms,
    }


def _json(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def split_error(split: dict[str, float], cold: float, cached: float, synthetic: float) -> float | None:
    """By how much the storage's share of the loading wait differs from that of three runs: as it is, with instant
    storage, with instant samples. None where the program hardly waits. What delivery in order adds to waiting is laid
    to storage and computing in proportion."""
    waited = cold - synthetic
    if not split or waited < STALLED * cold:
        return None
    causes = split["storage"] + split["cpu"]
    storage = split["storage"] + split["order"] * (split["storage"] / causes if causes else 0.0)
    return storage - float(np.clip((cold - cached) / waited, 0.0, 1.0))


def _cell(workers: int, prefetch: int) -> str:
    return f"{workers}:{prefetch if workers else 0}"


def summary(found: list[dict[str, Any]], told: str) -> dict[str, Any]:
    """Over all workloads, of what was `told` by one run or by a probe too."""
    results = [each[told] for each in found]
    errors, of_gains = (
        np.abs([error for each in results for error in each[name].values()]) for name in ("errors", "errors_of_gains")
    )
    covered = [hit for each in results for hit in each["covered"].values()]
    return {
        "points": len(errors),
        "error_median": float(np.median(errors)) if len(errors) else None,
        "error_p95": float(np.percentile(errors, 95)) if len(errors) else None,
        "error_of_gains_median": float(np.median(of_gains)) if len(of_gains) else None,
        "error_of_gains_p95": float(np.percentile(of_gains, 95)) if len(of_gains) else None,
        "ranges": len(covered),
        "covered": float(np.mean(covered)) if covered else None,
        "within_3_percent_of_the_best": sum(each["of_the_best"] >= 0.97 for each in results),
        "worse_than_the_current": [each["name"] for each in found if each[told]["of_the_current"] < 0.97],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=list(WORKLOADS))
    options = parser.parse_args()
    unit = bytes_per_ms()
    found = []
    for name in [options.only] if options.only else WORKLOADS:
        each = measure(name, unit, options.rounds)
        found.append(each)
        for told in ("one_run", "probed"):
            one = each[told]
            errors = np.abs(list(one["errors"].values()) or [0.0])
            progress(
                f"{name}, {told}: {each['now']} -> {one['recommended']}, {one['of_the_best']:.0%} of the best,"
                f" {one['of_the_current']:.2f}x now; errors {np.median(errors):.0%} median, {errors.max():.0%} at most"
                f" of {len(one['errors'])}; {sum(one['covered'].values())} of {len(one['covered'])} ranges right"
            )
    total = {"workloads": len(found)} | {told: summary(found, told) for told in ("one_run", "probed")}
    total["split_errors"] = {each["name"]: each["split_error"] for each in found if each["split_error"] is not None}
    print(json.dumps({**total, "each": found}, indent=2) if options.json else total)


if __name__ == "__main__":
    main()
