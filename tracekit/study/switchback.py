"""Conditions compared in one process, block by block of its steps, each block some tens of milliseconds long.

Two processes that run the same program differ by some percent, for good: where their data lies, which CPU they began
on. Runs that are compared with each other need many pairs to average that out. What changes between two blocks of one
process is the condition alone, so a difference of some tenths of a percent is seen within a minute or two. What is the
same in all blocks is not seen: that every module call passes through our function, some 0.1 us.

    python -m tracekit.study.switchback CONDITIONS RUN COMMAND...

records a command under conditions in turn, which no command offers: CONDITIONS is a file with a JSON list of
{"name", "settings"} of threads.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracekit.analysis.exploration import condition_times
from tracekit.analysis.steps import find_steps
from tracekit.record.launch import words_to_run
from tracekit.record.supervisor import Options, record
from tracekit.run.reader import Run
from tracekit.settings.exploration import switchback
from tracekit.study.recording import Recording
from tracekit.study.statistics import RESOLUTION, Comparison, compare

# Successive rounds are averaged to so many pairs: more would say the same, and what they take grows with their square.
_MOST_PAIRS = 400


def in_turn(conditions: Sequence[dict[str, Any]], run: Path, output: Path, command: Sequence[str]) -> Recording:
    """A run that is to be recorded under these conditions in turn; what is told of them is a file beside its output."""
    file = Path(f"{output}.json")
    file.write_text(json.dumps(list(conditions)), encoding="utf-8")
    words = [*words_to_run("tracekit.study.switchback"), str(file), str(run), *command]
    return Recording("switchback", words, run, output)


def times_of(run: Run) -> dict[str, NDArray[np.float64]]:
    """The step times of each condition, ns, by round; rounds that lack one are left out."""
    table = condition_times(run, find_steps(run)).pivot(index="round", columns="name", values="step_ns").dropna()
    return {str(column): table[column].to_numpy(dtype=np.float64) for column in table}


def compare_within(a: str, b: str, runs: Sequence[Run]) -> Comparison:
    """Condition `b` against `a`, from the rounds of runs that were under both in turn: faster or slower by at least 1 %
    (`RESOLUTION`), or the same within that."""
    both = [found for run in runs if {a, b} <= (found := times_of(run)).keys()]
    old, new = (_averaged([ns for found in both for ns in found[name]]) for name in (a, b))
    comparison = compare(a, b, old, new, RESOLUTION)
    comparison.in_one_process = True
    return comparison


def _averaged(times: list[float]) -> list[float]:
    """As many at most as are compared: geometric means of successive rounds."""
    parts = np.array_split(np.log(times), min(len(times), _MOST_PAIRS) or 1)
    return [float(np.exp(part.mean())) for part in parts if len(part)]


def main() -> int:
    """Record; the exit code of the command."""
    conditions, run, *command = sys.argv[1:]
    options = Options(
        command,
        Path(run),
        condition="switchback",
        explore=switchback(json.loads(Path(conditions).read_text(encoding="utf-8"))),
        profile="off",
        overhead=1.0,
        collectors=["steps", "layers", "counters"],
    )
    return record(options).exit_code


if __name__ == "__main__":
    sys.exit(main())
