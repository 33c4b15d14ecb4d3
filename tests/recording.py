"""Running a program plainly and under `tracekit record`, for tests."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracekit.advice import analyze
from tracekit.analysis.report import report_json
from tracekit.run.reader import Run, open_run

PROGRAMS = Path(__file__).parent / "integration" / "programs"
TRACEKIT = [sys.executable, "-m", "tracekit"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
# One thread: two processes of two threads each on two cores would wait for each other's spinning.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


@dataclass
class Recorded:
    """A program's result under tracekit, and the run."""

    code: int
    out: str
    err: str
    path: Path

    @property
    def run(self) -> Run:
        return open_run(self.path)


def reported(run: Run) -> dict[str, Any]:
    """What `analyze --json` prints of a run, without the seconds that another Python takes to start."""
    found: dict[str, Any] = json.loads(report_json(analyze(run)))
    return found


# What torch says as it aborts a rank at its end, all work done: once in a hundred runs or so of a busy machine, also
# twice on end, and seen without tracekit only.
_TORCH_ABORTS = "terminate called without an active exception"
_MOST_TRIES = 4


def plain(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command without tracekit; ranks that torch aborts at their end again."""
    for _ in range(_MOST_TRIES):
        done = _run(command)
        if not done.returncode or _TORCH_ABORTS not in done.stderr:
            break
    return done


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=300)


def record(command: list[str], path: Path, *flags: str) -> Recorded:
    """Run a command under `tracekit record -q`, so that stderr is the program's."""
    done = _run([*TRACEKIT, "record", "-q", "-o", str(path), *flags, "--", *command])
    return Recorded(done.returncode, done.stdout, done.stderr, path)


def comparable(text: str) -> str:
    """Stderr less what differs between any two executions: times, process ids, ports and addresses; and whether the
    resource tracker of multiprocessing heard of everything that workers let go before it ended, which it need not."""
    text = re.sub(r".*resource_tracker.*\n  warnings\.warn\(.*\n", "", text)
    text = re.sub(r"0x[0-9a-f]+", "0x…", text)
    return re.sub(r"\d+", "#", text)


TWO_THREADS = ENVIRONMENT | {"OMP_NUM_THREADS": "2"}


def run(*words: str, environment: dict[str, str] = TWO_THREADS) -> subprocess.CompletedProcess[str]:
    """Run a command with two threads, without tracekit."""
    return subprocess.run(list(words), capture_output=True, text=True, env=environment, timeout=280)


def tracekit(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of tracekit with two threads."""
    return run(*TRACEKIT, *words)
