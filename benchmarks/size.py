"""What a run takes on disk: bytes per row of each table, and whether a full profile holds every operation.

    python benchmarks/size.py [--json] [--steps 2500]

Records an LSTM training with `--profile full`, then runs the same training under torch.profiler alone and compares how
often each operation occurs.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from _side_by_side import PROGRAM, TRACEKIT, progress

from tracekit.run.reader import Run, open_run

# Runs the program under torch's own profiler, window after window so that it fits in memory, and counts operations.
OWN_PROFILER = """
import collections, json, runpy, sys, torch
from torch.autograd.profiler import profile
counts = collections.Counter()
class Loop(torch.optim.SGD):
    steps = 0
def count(window):
    counts.update(event.name() for event in window.kineto_results.events()
                  if str(event.activity_type() if hasattr(event, "activity_type") else "cpu_op") == "cpu_op")
window = profile(use_kineto=True, use_cpu=True).__enter__()
def turn(*_):
    global window
    Loop.steps += 1
    if Loop.steps % 100 == 0:
        window.__exit__(None, None, None); count(window)
        window = profile(use_kineto=True, use_cpu=True).__enter__()
original = torch.optim.SGD.zero_grad
def zero_grad(self, *args, **kwargs):
    turn()
    return original(self, *args, **kwargs)
torch.optim.SGD.zero_grad = zero_grad
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
window.__exit__(None, None, None); count(window)
print(json.dumps(counts))
"""


def sizes(run: Run) -> dict[str, dict[str, float]]:
    """Rows, bytes and bytes per row of every table."""
    result = {}
    for folder in sorted((run.path / "tables").iterdir()):
        rows = int(run.sql(f'SELECT count(*) AS n FROM "{folder.name}"')["n"][0])
        size = sum(file.stat().st_size for file in folder.iterdir())
        result[folder.name] = {"rows": rows, "bytes": size, "bytes_per_row": round(size / max(rows, 1), 2)}
    return result


def recorded_operations(run: Run) -> dict[str, int]:
    """How often each operation occurs in the run."""
    frame = run.sql("SELECT name, count(*) AS n FROM operators WHERE category = 'cpu_op' GROUP BY name")
    return {str(name): int(n) for name, n in zip(frame["name"], frame["n"], strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--steps", type=int, default=2500)
    options = parser.parse_args()
    command = [*PROGRAM, "--steps", str(options.steps)]
    with tempfile.TemporaryDirectory() as folder:
        progress("recording with --profile full")
        path = Path(folder) / "run"
        subprocess.run(
            [*TRACEKIT, "record", "-o", str(path), "--profile", "full", "--", *command],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        run = open_run(path)
        tables, ours = sizes(run), recorded_operations(run)
    progress("the same under torch.profiler alone")
    done = subprocess.run(
        [sys.executable, "-c", OWN_PROFILER, *command[1:]], check=True, capture_output=True, text=True
    )
    theirs = json.loads(done.stdout.splitlines()[-1])
    differing = {
        name: [ours.get(name, 0), theirs.get(name, 0)]
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name, 0) != theirs.get(name, 0)
    }
    result = {
        "steps": options.steps,
        "tables": tables,
        "operations": {"recorded": sum(ours.values()), "torch_profiler": sum(theirs.values()), "differing": differing},
    }
    if options.json:
        print(json.dumps(result, indent=2))
        return
    for name, figures in tables.items():
        print(
            f"{name:<14} {figures['rows']:>12,} rows {figures['bytes']:>12,} bytes"
            f" {figures['bytes_per_row']:>8} bytes/row"
        )
    print(
        f"operations: {sum(ours.values()):,} recorded, {sum(theirs.values()):,} by torch.profiler;"
        f" differing: {differing or 'none'}"
    )


if __name__ == "__main__":
    main()
