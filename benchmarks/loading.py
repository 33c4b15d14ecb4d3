"""Whether what is predicted of loaders from one run is right: against every number of workers and batches ahead.

    python benchmarks/loading.py [--json] [--rounds 4] [--only NAME]

Per workload: `tracekit record` and `analyze` of one run, and then `analyze --probe` where that has left open how
storage answers, predict the time per batch over a grid and recommend settings. Then one process, without tracekit, runs
the workload at every point of the grid, in random order: the truth. Where a value was told, `errors` are those of it,
and `errors_of_gains` those of its ratio to the settings that the run had: recording and truth are a minute apart, and
the machine's speed wanders. Where only a range was told (no such number of readers was seen), `covered` says whether
the truth lies in it. The best point of the grid is found in one half of the rounds and its time taken from the other:
the best of many in the same rounds is the luckiest. `split_errors` compare the shares of storage and of computing in
the waiting with those of three runs: as it is, with instant storage, with instant samples. Storage is emulated: an HTTP
server in a process of its own, with latency and bandwidth.
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
from numpy.typing import NDArray

from tracekit.models.loading import MODEL_ERROR

Times = NDArray[np.float64]

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

    def against(self, rounds_ms: dict[str, Times], now: str) -> dict[str, Any]:
        """How it compares with what is true: the time per batch of each cell, by round."""
        true_ms = {cell: float(np.median(times)) for cell, times in rounds_ms.items()}
        both, ranges = sorted(true_ms.keys() & self.grid.keys()), self.ranges
        known = [cell for cell in both if cell not in ranges]
        expected = {cell: self.grid[cell]["expected_ms"] for cell in both}
        return {
            "recommended": self.chosen,
            "of_the_best": of_the_best(rounds_ms, self.chosen),
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
    rounds_ms = {word: np.array(seconds)[:, 0] * 1e3 for word, seconds in times.items()}
    waits_ms = np.array(times[now])[:, 1] * 1e3
    three_runs = [rounds_ms[now], *(rounds_ms.pop(word) for word in words[-2:])]
    return {
        "name": name,
        "now": now,
        "one_run": told.against(rounds_ms, now),
        "probed": probed.against(rounds_ms, now),
        "split": told.loader["split"],
        "split_errors": split_errors(told.loader["split"], three_runs, waits_ms),
        "recorded_ms": told.loader["batch_ms"],
        "rounds_ms": {cell: list(each) for cell, each in rounds_ms.items()},
    }


def _json(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def of_the_best(rounds_ms: dict[str, Times], chosen: str) -> float:
    """How fast the chosen cell is, as a share of the best: each half of the rounds finds a best one for the other."""
    shares = []
    for half in (0, 1):
        found = min(rounds_ms, key=lambda cell: float(np.mean(rounds_ms[cell][half::2])))
        shares.append(np.mean(rounds_ms[found][1 - half :: 2]) / np.mean(rounds_ms[chosen][1 - half :: 2]))
    return float(np.mean(shares))


def split_errors(split: dict[str, float], runs_ms: list[Times], waits_ms: Times) -> dict[str, float]:
    """By how much the shares of storage and computing differ from those of three runs: as it is, with instant storage,
    with instant samples; and `unsure`, by how much the latter differ between two halves of the rounds. Empty where the
    program hardly waits."""
    if not split or np.median(waits_ms) < STALLED * np.median(runs_ms[0]):
        return {}

    def shares(rounds: slice) -> Times:
        as_it_is, cached, synthetic = (np.median(each[rounds]) for each in runs_ms)
        return np.array([as_it_is - cached, cached - synthetic]) / np.median(waits_ms[rounds])

    storage, computing = np.array([split["storage"], split["cpu"]]) - shares(slice(None))
    unsure = np.abs(shares(slice(0, None, 2)) - shares(slice(1, None, 2))).max() / 2
    return {"storage": float(storage), "cpu": float(computing), "unsure": float(unsure)}


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
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--only", choices=list(WORKLOADS))
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds: 2 at least, one to find the best point and one to time it")
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
    total["split_errors"] = {each["name"]: each["split_errors"] for each in found if each["split_errors"]}
    print(json.dumps({**total, "each": found}, indent=2) if options.json else total)


if __name__ == "__main__":
    main()
