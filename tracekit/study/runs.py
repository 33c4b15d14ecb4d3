"""Running one command again and again under conditions: fresh processes, recorded as lightly as steps allow."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tracekit.analysis.steps import find_steps
from tracekit.errors import TracekitError
from tracekit.run.folder import create_study
from tracekit.run.reader import Run, open_run
from tracekit.settings.file import Entry, write_settings
from tracekit.settings.inside import REFUSED_PLAN
from tracekit.study.statistics import drop_warm_up

_NS_TO_MS = 1e-6
# Conditions differ in what is in memory before the program, and where its data then lies is worth some percent either
# way, the same in each run. An environment of random size makes that a noise that rounds average out (Mytkowicz et al.,
# Producing wrong data without doing anything obviously wrong, ASPLOS 2009).
_PADDING, _MOST_PADDING = "TRACEKIT_STUDY_PADDING", 4096


class StudyError(TracekitError):
    """A study that cannot be made of this command."""


@dataclass(frozen=True)
class Condition:
    """A name, and the settings that are in force under it."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass
class StudyRuns:
    """The runs of one study. Each is a recorded run below `folder`/runs; the program's output goes to `folder`/output.

    `median_ms` has one number per block and condition: the median step, warm-up left out.
    """

    folder: Path
    command: list[str]
    say: Callable[[str], None]
    median_ms: dict[str, list[float]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    _number: int = 0

    @classmethod
    def create(cls, folder: Path, command: list[str], say: Callable[[str], None]) -> "StudyRuns":
        """Make the folder. Raises RunError when it is taken, OSError when it cannot be made."""
        create_study(folder)
        for name in ("runs", "output", "conditions"):
            (folder / name).mkdir()
        return cls(folder, command, say)

    def measure(self, condition: Condition) -> float:
        """Run the command once under a condition: its median step, ms.

        Raises StudyError when the program fails, has no steps, or does not take the condition's settings.
        """
        run = self.record(
            condition.name, ["--collectors", "steps,layers,loading", "--profile", "off", "--overhead", "1"],
            condition.settings,
        )  # fmt: skip
        refused = [note for note in run.missing if note.what.startswith(REFUSED_PLAN)]
        if refused:
            raise StudyError(f"{condition.name}: {refused[0].what} was not applied: {refused[0].why}")
        steps = find_steps(run)
        durations = steps.of(steps.main)["duration_ns"].to_numpy()
        if len(durations) < 2:
            raise StudyError(
                f"{run.path}: {len(durations)} steps were seen; a study needs a program with a loop of steps"
            )
        median = float(np.median(drop_warm_up(durations))) * _NS_TO_MS
        self.median_ms.setdefault(condition.name, []).append(median)
        self.say(f"{condition.name}: {median:.4g} ms a step")
        return median

    def record(self, name: str, flags: list[str], settings: dict[str, Any] | None = None) -> Run:
        """Record the command once. Raises StudyError when it fails."""
        self._number += 1
        stem = f"{self._number:03d}-{_file_name(name)}"
        path = self.folder / "runs" / stem
        words = [sys.executable, "-m", "tracekit", "record", "-q", "-o", str(path), "--condition", name, *flags]
        if settings:
            file = self.folder / "conditions" / f"{_file_name(name)}.toml"
            entries = [Entry(key, value) for key, value in settings.items()]
            write_settings(file, entries, f"The condition {name} of a study.")
            words += ["--settings", str(file)]
        began = time.monotonic()
        with open(self.folder / "output" / f"{stem}.txt", "wb") as output:
            done = subprocess.run(
                [*words, "--", *self.command], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE,
                env=os.environ | {_PADDING: "x" * random.randrange(_MOST_PADDING)},
            )  # fmt: skip
        self.seconds.append(time.monotonic() - began)
        if done.returncode:
            last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["nothing on stderr"]
            raise StudyError(
                f"the command ended with exit code {done.returncode} under {name}: {last[0]};"
                f" its output is in {self.folder / 'output' / f'{stem}.txt'}"
            )
        return open_run(path)

    def usual_seconds(self) -> float:
        """What one run takes."""
        return float(np.median(self.seconds)) if self.seconds else 0.0


def _file_name(text: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in text)
