"""What exploring thread counts costs: the wall time of a command that is explored against the same one alone.

    python benchmarks/exploring.py [--json] [--pairs 5] [--steps 2000]

Whole commands, start and end included, in pairs one after the other, in random order.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from _side_by_side import TRACEKIT, Ratio, progress

SAMPLE = Path(__file__).parents[1] / "samples" / "lstm_widths.py"


def wall_s(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    program = [sys.executable, str(SAMPLE), "--steps", str(options.steps)]
    plain: list[float] = []
    explored: list[float] = []
    for number in range(options.pairs):
        with tempfile.TemporaryDirectory() as folder:
            record = [*TRACEKIT, "record", "-q", "--explore", "threads", "-o", f"{folder}/run", "--", *program]
            for command, times in random.sample([(program, plain), (record, explored)], 2):
                times.append(wall_s(command))
        progress(f"pair {number + 1} of {options.pairs}: {plain[-1]:.1f} s alone, {explored[-1]:.1f} s explored")
    ratio = Ratio.of(explored, plain)
    print(json.dumps({"explored": asdict(ratio), "alone_s": plain}, indent=2) if options.json else ratio)


if __name__ == "__main__":
    main()
