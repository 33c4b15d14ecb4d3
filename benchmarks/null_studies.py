"""Whether a study of nothing finds nothing: `tracekit verify` of the thread count that the program has anyway.

    python benchmarks/null_studies.py [--json] [--studies 10] [--budget 60]

`wrong` is how many called it faster or slower. At 95 % one in twenty may; each tells the gain that it saw, its
interval, the pairs of runs and the smallest gain that counted.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from _side_by_side import TRACEKIT, progress

PROGRAM = [sys.executable, str(Path(__file__).parents[1] / "samples" / "lstm_widths.py"), "--steps", "150"]


def study(folder: Path, budget_s: float) -> dict[str, Any]:
    """What one of them found: the comparison, as `tracekit verify --json` tells it."""
    settings = folder / "settings.toml"
    settings.write_text(f"[threads]\nintra_op = {torch.get_num_threads()}\n")
    verify = [*TRACEKIT, "verify", "--json", "--budget", f"{budget_s:g}s", "-o", str(folder / "study"), str(settings)]
    done = subprocess.run([*verify, "--", *PROGRAM], check=True, capture_output=True, text=True)
    comparison: dict[str, Any] = json.loads(done.stdout)["comparisons"][0]
    return comparison


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--studies", type=int, default=10)
    parser.add_argument("--budget", type=float, default=60.0, help="of each, seconds")
    options = parser.parse_args()
    found = []
    for _ in range(options.studies):
        with tempfile.TemporaryDirectory() as folder:
            found.append(study(Path(folder), options.budget))
        gain = found[-1]["gain"]
        progress(
            f"{found[-1]['verdict']}: {gain['expected']:.1%} [{gain['low']:.1%}, {gain['high']:.1%}],"
            f" {found[-1]['pairs']} pairs, floor {found[-1]['margin']:.1%}"
        )
    verdicts = Counter(each["verdict"] for each in found)
    total = {"studies": len(found), "wrong": verdicts["faster"] + verdicts["slower"], "verdicts": dict(verdicts)}
    print(json.dumps({**total, "each": found}, indent=2) if options.json else total)


if __name__ == "__main__":
    main()
