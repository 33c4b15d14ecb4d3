"""What recording costs: the same training with and without it, interleaved in fresh processes.

    python benchmarks/overhead.py [--json] [--rounds 8] [--seconds 6] [--threads 1]

Per size of step: the slowdown of the median step (`median`) and of all steps (`mean`) under `tracekit record`, the
manifest's own estimate of the latter, and, for comparison, torch.profiler on every step. An A/A pair (`floor`) shows
what the machine's noise alone gives. The training has one thread: with one on every core, each neighbour on the machine
stalls all of them, and the neighbours are what would be measured. Before that the start: what the bootstrap adds to a
Python without torch, and `tracekit --help`.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from _side_by_side import PROGRAM, TRACEKIT, Ratio, progress, run_json

from tracekit.record.launch import program_environment
from tracekit.run.reader import open_run

# Chosen for steps of at least 10 ms and of 1.5 to 2.5 ms on a core of about 2.5 GHz; the step time is in the output.
SIZES = {
    "steps of 10 ms and more": ["--width", "160", "--length", "24", "--batch", "8", "--words", "1000"],
    "steps of about 2 ms": ["--width", "48", "--length", "8", "--batch", "4", "--words", "100"],
}
BOOTSTRAP_ROUNDS = 15


def measure_size(flags: list[str], rounds: int, seconds: float) -> dict[str, object]:
    """The slowdowns at one size of step."""
    plain = [*PROGRAM, *flags, "--seconds", str(seconds)]
    seen: dict[str, list[dict[str, float]]] = {"plain": [], "again": [], "tracekit": [], "profiler": []}
    estimates = []
    with tempfile.TemporaryDirectory() as folder:
        for round_ in range(rounds):
            order = list(seen) if round_ % 2 == 0 else list(reversed(seen))
            for condition in order:
                run = Path(folder) / "run"
                command = {
                    "plain": plain,
                    "again": plain,
                    "tracekit": [*TRACEKIT, "record", "-q", "-o", str(run), "--", *plain],
                    "profiler": [*plain, "--profiler"],
                }[condition]
                seen[condition].append(run_json(command))
                if condition == "tracekit":
                    estimates.append(open_run(run).manifest.overhead.total)
                    shutil.rmtree(run)
            progress(f"round {round_ + 1} of {rounds}")
    of = {
        name: {key: [result[key] for result in results] for key in ("median_ms", "mean_ms")}
        for name, results in seen.items()
    }
    return {
        "median_step_ms": statistics.median(of["plain"]["median_ms"]),
        **{
            f"{name}_{key}": Ratio.of(of[condition][f"{key}_ms"], of["plain"][f"{key}_ms"])
            for name, condition in (("floor", "again"), ("tracekit", "tracekit"), ("profiler", "profiler"))
            for key in ("median", "mean")
        },
        "estimate": statistics.median(estimates),
    }


def measure_start() -> dict[str, float]:
    """Milliseconds that the bootstrap adds to a Python without torch, and that `tracekit --help` takes."""

    def wall_ms(command: list[str], environment: dict[str, str]) -> float:
        began = time.perf_counter()
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
        return 1e3 * (time.perf_counter() - began)

    empty = [sys.executable, "-c", "pass"]
    helps = [*TRACEKIT, "--help"]
    with tempfile.TemporaryDirectory() as spool:
        with_bootstrap = program_environment(Path(spool))
        rounds = [
            (wall_ms(empty, dict(os.environ)), wall_ms(empty, with_bootstrap), wall_ms(helps, dict(os.environ)))
            for _ in range(BOOTSTRAP_ROUNDS)
        ]
    return {
        "bootstrap_ms": statistics.median(recorded - plain for plain, recorded, _ in rounds),
        "help_ms": statistics.median(helped for _, _, helped in rounds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--threads", default="1", help="OpenMP threads of the training (default 1, see above)")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = options.threads
    result: dict[str, object] = {"start": measure_start()}
    for name, flags in SIZES.items():
        progress(name)
        result[name] = measure_size(flags, options.rounds, options.seconds)
    if options.json:
        print(json.dumps(result, default=lambda value: asdict(value), indent=2))
        return
    for name, figures in result.items():
        print(name)
        for key, value in dict(figures).items():  # type: ignore[call-overload]
            print(f"  {key:<18} {value if isinstance(value, Ratio) else f'{value:.4g}'}")


if __name__ == "__main__":
    main()
