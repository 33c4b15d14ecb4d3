"""What recording costs: the same training with and without it, in interleaved blocks of fresh processes.

    python benchmarks/overhead.py [--json] [--processes 3] [--rounds 200] [--threads 1]

Per size of step: the slowdown of the median step (`median`) and of all steps (`mean`) while tracekit records, its own
estimate of the latter, and, for comparison, torch.profiler on every step; of batches likewise, and what recording takes
per sample. An A/A pair (`floor`) shows what the
machine's noise alone gives. Whole processes differ by more than recording costs, so the hooks are taken out of each
process and put back (`_switchback.py`). `supervisor` is the share of the machine's CPU time that the supervisor took
beside the program. The training has one thread: with one on every core, each neighbour on the machine stalls all of
them, and the neighbours are what would be measured. Before that the start: what the bootstrap adds to a Python without
torch, and `tracekit --help`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from _side_by_side import TRACEKIT, Ratio, progress, run_json

from tracekit.record.launch import program_environment
from tracekit.run.reader import open_run

SIZES = {
    "steps of 12 ms": ["--width", "256", "--words", "1000", "--step", "12", "--block", "0.15"],
    "steps of 2 ms": ["--width", "64", "--words", "500", "--step", "2", "--block", "0.05"],
}
# Of batches: how many samples they have.
BATCHES = {"batches of 1 ms, 32 samples": 32, "batches of 1 ms, 4 samples": 4}
BATCH_MS = 1.0
SWITCHBACK = [sys.executable, str(Path(__file__).parent / "_switchback.py")]
# Of data-parallel training on two ranks: how long a step takes, ms.
RANKS = {"two ranks, steps of 10 ms": 10.0, "two ranks, steps of 1.5 ms": 1.5}
DDP_SWITCHBACK = [
    sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
    str(Path(__file__).parent / "_ddp_switchback.py"),
]  # fmt: skip
LOADER_SWITCHBACK = [sys.executable, str(Path(__file__).parent / "_loader_switchback.py")]
BOOTSTRAP_ROUNDS = 15


def measure_size(flags: list[str], processes: int, rounds: int) -> dict[str, object]:
    """The slowdowns at one size of step."""
    seen: dict[str, list[dict[str, float]]] = {
        name: [] for name in ("off", "again", "both", "on", "profiler", "beside")
    }
    estimates, supervisors = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(processes):
            run = Path(folder) / f"run{number}"
            program = [*SWITCHBACK, *flags, "--rounds", str(rounds)]
            done = subprocess.run(
                [*TRACEKIT, "record", "-q", "-o", str(run), "--", *program], capture_output=True, text=True, check=True
            )
            found = json.loads(done.stdout.splitlines()[-1])
            for state, blocks in found["seen"].items():
                seen[state] += blocks
            seen["both"] += [
                {key: (first[key] + second[key]) / 2 for key in first}
                for first, second in zip(found["seen"]["off"], found["seen"]["again"], strict=True)
            ]
            seen["beside"] += found["seen"]["off"][:: found["rounds_per_profiler"]]
            estimates.append(found["estimate"])
            supervisors.append(open_run(run).manifest.overhead.supervisor)
            progress(f"process {number + 1} of {processes}")
    return {
        "median_step_ms": statistics.median(block["median_ms"] for block in seen["off"]),
        **{
            f"{name}_{key}": Ratio.of(
                [block[f"{key}_ms"] for block in seen[a]], [block[f"{key}_ms"] for block in seen[b]]
            )
            for name, a, b in (
                ("floor", "again", "off"),
                ("tracekit", "on", "both"),
                ("profiler", "profiler", "beside"),
            )
            for key in ("median", "mean")
        },
        "estimate": statistics.median(estimates),
        "supervisor": statistics.median(supervisors),
    }


def measure_batches(samples: int, processes: int, rounds: int) -> dict[str, object]:
    """The slowdowns of a loader's batches, and what recording takes per sample, µs."""
    seen: dict[str, list[dict[str, float]]] = {"off": [], "again": [], "on": []}
    estimates = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(processes):
            program = [*LOADER_SWITCHBACK, "--samples", str(samples), "--batch", str(BATCH_MS), "--rounds", str(rounds)]
            found = run_json([*TRACEKIT, "record", "-q", "-o", f"{folder}/run{number}", "--", *program])
            for state, epochs in found["seen"].items():
                seen[state] += epochs
            estimates.append(found["estimate"])
            progress(f"process {number + 1} of {processes}")
    plain = [
        (first["mean_ms"] + second["mean_ms"]) / 2 for first, second in zip(seen["off"], seen["again"], strict=True)
    ]
    recorded = [each["mean_ms"] for each in seen["on"]]
    slowdown = Ratio.of(recorded, plain)
    return {
        "median_batch_ms": statistics.median(plain),
        "floor_mean": Ratio.of([each["mean_ms"] for each in seen["again"]], [each["mean_ms"] for each in seen["off"]]),
        "tracekit_mean": slowdown,
        "us_per_sample": (slowdown.median - 1) * statistics.median(plain) * 1e3 / samples,
        "estimate": statistics.median(estimates),
    }


def measure_ranks(step_ms: float, processes: int, rounds: int) -> dict[str, object]:
    """The slowdowns of a step of two ranks, and what recording takes of one, µs."""
    seen: dict[str, list[dict[str, float]]] = {"off": [], "again": [], "on": []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(processes):
            program = [*DDP_SWITCHBACK, "--step", str(step_ms), "--rounds", str(rounds)]
            found = run_json([*TRACEKIT, "record", "-q", "-o", f"{folder}/run{number}", "--", *program])
            for state, blocks in found["seen"].items():
                seen[state] += blocks
            progress(f"process {number + 1} of {processes}")
    figures: dict[str, object] = {}
    for key in ("median_ms", "mean_ms", "cpu_ms"):
        plain = [(first[key] + second[key]) / 2 for first, second in zip(seen["off"], seen["again"], strict=True)]
        slowdown = Ratio.of([each[key] for each in seen["on"]], plain)
        name = key.removesuffix("_ms")
        figures |= {
            f"{name}_step_ms": statistics.median(plain),
            f"floor_{name}": Ratio.of([each[key] for each in seen["again"]], [each[key] for each in seen["off"]]),
            f"tracekit_{name}": slowdown,
            f"us_per_step_{name}": (slowdown.median - 1) * statistics.median(plain) * 1e3,
        }
    return figures


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
    parser.add_argument("--processes", type=int, default=3, help="fresh processes per size of step")
    parser.add_argument("--rounds", type=int, default=200, help="of blocks in each process")
    parser.add_argument("--threads", default="1", help="OpenMP threads of the training (default 1, see above)")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = options.threads
    result: dict[str, object] = {"start": measure_start()}
    for name, flags in SIZES.items():
        progress(name)
        result[name] = measure_size(flags, options.processes, options.rounds)
    for name, samples in BATCHES.items():
        progress(name)
        result[name] = measure_batches(samples, options.processes, options.rounds)
    for name, step_ms in RANKS.items():
        progress(name)
        result[name] = measure_ranks(step_ms, options.processes, options.rounds)
    if options.json:
        print(json.dumps(result, default=lambda value: asdict(value), indent=2))
        return
    for name, figures in result.items():
        print(name)
        for key, value in dict(figures).items():  # type: ignore[call-overload]
            print(f"  {key:<18} {value if isinstance(value, Ratio) else f'{value:.4g}'}")


if __name__ == "__main__":
    main()
