"""Fresh processes, interleaved, and the ratio of what they print: how the recording benchmarks measure."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

PROGRAM = [sys.executable, str(Path(__file__).parent / "_lstm_training.py")]
TRACEKIT = [sys.executable, "-m", "tracekit"]


@dataclass(frozen=True)
class Ratio:
    """The median of paired ratios, and its 95 % bootstrap interval."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, numerators: Sequence[float], denominators: Sequence[float]) -> "Ratio":
        ratios = np.asarray(numerators) / np.asarray(denominators)
        resampled = np.random.default_rng(0).choice(ratios, (4000, len(ratios)))
        low, high = np.percentile(np.median(resampled, axis=1), [2.5, 97.5])
        return cls(float(np.median(ratios)), float(low), float(high))

    def __str__(self) -> str:
        return f"{self.median - 1:+.2%} [{self.low - 1:+.2%}, {self.high - 1:+.2%}]"


class Stolen:
    """Which share of the CPU time that was asked for went to other virtual machines, since this was made."""

    def __init__(self) -> None:
        self._began = psutil.cpu_times()

    def share(self) -> float:
        then, now = self._began, psutil.cpu_times()
        stolen = getattr(now, "steal", 0.0) - getattr(then, "steal", 0.0)  # only Linux tells
        asked = sum(now) - sum(then) - (now.idle - then.idle) - (getattr(now, "iowait", 0) - getattr(then, "iowait", 0))
        return float(stolen / asked) if asked > 0 else 0.0


def run_json(command: list[str], environment: dict[str, str] | None = None) -> dict[str, Any]:
    """Run a command and read the JSON object it prints last."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, **(environment or {})}
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def progress(text: str) -> None:
    """A line on stderr, for whoever waits."""
    print(text, file=sys.stderr, flush=True)
