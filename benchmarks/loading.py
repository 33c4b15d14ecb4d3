"""Whether what is predicted of loaders from one run is right: against every number of workers and batches ahead.

    python benchmarks/loading.py [--json] [--rounds 3] [--only NAME]

Per workload: `tracekit record` and `analyze` of one run predict the time per batch over a grid and recommend settings.
Then one process, without tracekit, runs the workload at every point of the grid, in random order: the truth. Where the
run could tell (the predicted range is narrow), `errors` are those of the expected value; where it could not (it saw no
such number of readers), `covered` says whether the truth lies in the range. `split_errors` compare the storage's share
of the waiting with that of three runs: as it is, with instant storage, with instant samples. Storage is emulated: an
HTTP server in a process of its own, with latency and bandwidth.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
NARROW = 1.02 * (1 + MODEL_ERROR) / (1 - MODEL_ERROR)
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


def measure(name: str, unit: int, rounds: int) -> dict[str, Any]:
    """What was predicted and recommended for a workload, and what is true."""
    workload = WORKLOADS[name]
    with store(workload) as url, tempfile.TemporaryDirectory() as folder:
        program = [*PROGRAM, name, "--unit", str(unit), "--store", url]
        report = recorded(program, Path(folder) / "run")
        loader = max(report["loaders"], key=lambda each: each["batches"])
        own = f"loader.{loader['loader']}."
        advised = {
            each["name"].removeprefix(own): each["recommended"]
            for each in report["settings"]
            if each["name"].startswith(own)
        }
        workers = advised.get("num_workers", workload.workers)
        now = _cell(workload.workers, workload.prefetch)
        chosen = _cell(workers, advised.get("prefetch_factor", workload.prefetch))
        grid = {_cell(each["num_workers"], each["prefetch_factor"]): each for each in loader["forecasts"]}
        cells = grid.keys() & {_cell(workers, prefetch) for workers in WORKERS for prefetch in PREFETCH} | {now, chosen}
        words = [*sorted(cells), f"{now}:cached", f"{now}:synthetic"]
        done = subprocess.run(
            [*program, "--grid", ",".join(words), "--rounds", str(rounds)], capture_output=True, text=True, check=True
        )
    true_ms = {word: float(np.median(times)) * 1e3 for word, times in json.loads(done.stdout).items()}
    cached, synthetic = (true_ms.pop(word) for word in words[-2:])
    both = sorted(true_ms.keys() & grid.keys())
    known = [cell for cell in both if grid[cell]["high_ms"] <= grid[cell]["low_ms"] * NARROW]
    covered = {cell: grid[cell]["low_ms"] <= true_ms[cell] <= grid[cell]["high_ms"] for cell in both}
    return {
        "name": name,
        "now": now,
        "recommended": chosen,
        "of_the_best": min(true_ms.values()) / true_ms[chosen],
        "of_the_current": true_ms[now] / true_ms[chosen],
        "errors": {cell: grid[cell]["expected_ms"] / true_ms[cell] - 1 for cell in known},
        "covered": {cell: covered[cell] for cell in both if cell not in known},
        "split": loader["split"],
        "split_error": split_error(loader["split"], true_ms[now], cached, synthetic),
        "advice": report["advice"],
        "predicted_ms": {cell: [grid[cell][key] for key in ("low_ms", "expected_ms", "high_ms")] for cell in both},
        "true_ms": true_ms,
        "error_now": loader["error"],
        "recorded_ms": loader["batch_ms"],
    }


def recorded(program: list[str], run: Path) -> dict[str, Any]:
    subprocess.run([*TRACEKIT, "record", "-q", "-o", str(run), "--", *program], check=True, stdout=subprocess.DEVNULL)
    done = subprocess.run([*TRACEKIT, "analyze", "--json", str(run)], check=True, capture_output=True, text=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


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


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    errors = np.abs([error for each in found for error in each["errors"].values()])
    covered = [hit for each in found for hit in each["covered"].values()]
    return {
        "workloads": len(found),
        "error_median": float(np.median(errors)) if len(errors) else None,
        "error_p95": float(np.percentile(errors, 95)) if len(errors) else None,
        "points": len(errors),
        "covered": float(np.mean(covered)) if covered else None,
        "ranges": len(covered),
        "split_errors": {each["name"]: each["split_error"] for each in found if each["split_error"] is not None},
        "within_3_percent_of_the_best": sum(each["of_the_best"] >= 0.97 for each in found),
        "worse_than_the_current": [each["name"] for each in found if each["of_the_current"] < 0.97],
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
        errors = np.abs(list(each["errors"].values()))
        progress(
            f"{name}: {each['now']} -> {each['recommended']}, {each['of_the_best']:.0%} of the best,"
            f" {each['of_the_current']:.2f}x now; errors {np.median(errors) if len(errors) else 0:.0%} median,"
            f" {errors.max(initial=0):.0%} at most of {len(errors)};"
            f" {sum(each['covered'].values())} of {len(each['covered'])} ranges right; {each['advice']}"
        )
        found.append(each)
    total = summary(found)
    print(json.dumps({**total, "each": found}, indent=2) if options.json else total)


if __name__ == "__main__":
    main()
