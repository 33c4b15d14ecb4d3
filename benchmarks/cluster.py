"""How the analysis of many ranks grows, and what a Dask cluster makes of it.

    python benchmarks/cluster.py [--json] [--ranks 8 64 512] [--events 200000] [--rounds 5]

Runs of so many ranks are made, of so many events each. Each is analysed once by one process, `alone`: `seconds`, and
the most memory it took, MB. Then one worker and two of a Dask cluster on this machine take turns at one of them, that
of `shared_ranks`: `speedup` is how many times as fast two are, with its 95 % interval, and `worker_mb` the most that a
worker took; for the largest too, once. Last, one of two workers is killed in the midst. `same` is whether all of them
made the same report, bit for bit, and `cause` whether it names the rank that is late by design.
"""

import argparse
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from _rank_runs import LATE_RANK, make_run
from _side_by_side import Ratio, progress
from distributed import Client, LocalCluster

from tracekit.advice import analyze
from tracekit.analysis.accounts import Each, in_turn
from tracekit.analysis.report import report_json
from tracekit.cluster import cluster
from tracekit.run.reader import open_run

MB = 1024.0
SHARED_RANKS = 64


def analysed(path: Path, each: Each = in_turn) -> dict[str, Any]:
    """How long it took, and what came of it."""
    began = time.perf_counter()
    report = analyze(open_run(path), each)
    seconds = time.perf_counter() - began
    causes = [(cause.rank, cause.phase) for group in report.ranks for cause in group.delays]
    digest = hashlib.sha256(report_json(report)).hexdigest()
    return {"seconds": seconds, "cause": causes == [(LATE_RANK, "backward")], "report": digest}


def most_memory() -> float:
    """The most that this process has taken, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MB


def alone(path: Path) -> dict[str, Any]:
    """In a fresh process."""
    done = subprocess.run([sys.executable, __file__, "--alone", str(path)], check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout))


class Workers:
    """A Dask cluster on this machine."""

    def __init__(self, count: int) -> None:
        self._cluster = LocalCluster(n_workers=count, threads_per_worker=1, dashboard_address=":0")
        self._client = Client(self._cluster)

    def analysed(self, path: Path, then: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """`then` is done when the first part is there."""
        with cluster(self._cluster.scheduler_address) as each:
            return analysed(path, _with(each, then))

    def most_memory(self) -> float:
        return float(max(self._client.run(most_memory).values()))

    def kill_one(self) -> None:
        os.kill(next(iter(self._client.run(os.getpid).values())), signal.SIGKILL)

    def close(self) -> None:
        self._client.close()
        self._cluster.close()


def _with(each: Each, then: Callable[[], None]) -> Each:
    waiting = [then]

    def doing(function: Callable[..., Any], *items: Iterable[Any]) -> Iterator[Any]:
        for found in each(function, *items):
            while waiting:
                waiting.pop()()
            yield found

    return doing


def shared(path: Path, rounds: int) -> dict[str, Any]:
    """One worker and two in turn, after a round that is not counted."""
    crews = {count: Workers(count) for count in (1, 2)}
    seconds: dict[int, list[float]] = {count: [] for count in crews}
    reports = []
    for number in range(rounds + 1):
        for count in sorted(crews, reverse=bool(number % 2)):
            found = crews[count].analysed(path)
            reports.append(found["report"])
            if number:
                seconds[count].append(found["seconds"])
        progress(f"round {number}: {[round(each[-1], 1) for each in seconds.values() if each]} s")
    memory = max(crew.most_memory() for crew in crews.values())
    for crew in crews.values():
        crew.close()
    speedup = Ratio.of(seconds[1], seconds[2])
    return {
        "seconds": seconds,
        "speedup": [speedup.low, speedup.median, speedup.high],
        "worker_mb": memory,
        "reports": reports,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64, 512])
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--alone", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        print(json.dumps(analysed(options.alone) | {"mb": most_memory()}))
        return
    with tempfile.TemporaryDirectory(prefix="tracekit-ranks-") as folder:
        found = measured(Path(folder), options.ranks, options.events, options.rounds)
    print(json.dumps(found, indent=2) if options.json else found)


def measured(folder: Path, sizes: list[int], events: int, rounds: int) -> dict[str, Any]:
    each: dict[int, dict[str, Any]] = {}
    for ranks in sizes:
        path = folder / str(ranks)
        make_run(path, ranks, events)
        size = sum(file.stat().st_size for file in path.rglob("*.parquet"))
        each[ranks] = {"size_mb": size / 1e6, "alone": alone(path)}
        progress(f"{ranks} ranks, {size / 1e6:.0f} MB: {each[ranks]['alone']}")
    middle = SHARED_RANKS if SHARED_RANKS in each else sizes[0]
    each[middle]["shared"] = shared(folder / str(middle), rounds)
    crew = Workers(2)
    each[middle]["killed"] = crew.analysed(folder / str(middle), crew.kill_one)
    crew.close()
    crew, largest = Workers(2), max(sizes)
    each[largest]["two_workers"] = crew.analysed(folder / str(largest)) | {"worker_mb": crew.most_memory()}
    crew.close()
    reports = {
        ranks: {one["alone"]["report"], *one.get("shared", {}).get("reports", [])}
        | {one[name]["report"] for name in ("killed", "two_workers") if name in one}
        for ranks, one in each.items()
    }
    small, large = min(sizes), max(sizes)
    per_rank = {ranks: one["alone"]["seconds"] / ranks for ranks, one in each.items()}
    return {
        "ranks": sizes,
        "events_each": events,
        "speedup": each[middle]["shared"]["speedup"],
        "shared_ranks": middle,
        "worker_mb": {middle: each[middle]["shared"]["worker_mb"], large: each[large]["two_workers"]["worker_mb"]},
        "alone_mb": {ranks: one["alone"]["mb"] for ranks, one in each.items()},
        "seconds_per_rank": per_rank,
        "growth": per_rank[large] / per_rank[small],
        "same": all(len(found) == 1 for found in reports.values()),
        "cause": all(one["alone"]["cause"] for one in each.values()),
        "each": each,
    }


if __name__ == "__main__":
    main()
