"""Running one command again and again under conditions: fresh processes, recorded as lightly as steps allow."""

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracekit.analysis.steps import find_steps
from tracekit.record.launch import words_to_run
from tracekit.record.machine import describe_memory
from tracekit.run.folder import create_study
from tracekit.run.reader import Run
from tracekit.settings.file import Entry, write_settings
from tracekit.settings.inside import ENDED_EXPLORATION, is_refusal
from tracekit.study.matched import RunSteps, StepTime, step_times, whole_loop_ms
from tracekit.study.recording import Recording, StudyError
from tracekit.study.statistics import tell_another_gain
from tracekit.study.switchback import in_turn
from tracekit.study.turns import Turns, alone, patience, refuse_foreign_numbers, take_turns

_LIGHTLY = ["--collectors", "steps,layers,loading", "--profile", "off", "--overhead", "1"]
# A turn must hold several steps, as three are lost at its end, and last long beside the change of turns (some ms). Else
# the shorter the better: on a virtual machine with neighbours the speed went up and down by a third within a second.
_SHORTEST_TURN_S, _LONGEST_TURN_S = 0.05, 5.0
_STEPS_PER_TURN = 8
# Of the memory that is free, for all runs that take turns.
_SHARE_OF_MEMORY = 0.5


@dataclass(frozen=True)
class Condition:
    """A name, and the settings that are in force under it."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass
class StudyRuns:
    """The runs of one study. Each is a recorded run below `folder`/runs; the program's output goes to `folder`/output.

    `blocks` has the step of each block, by condition, warm-up left out; of whole loops the mean step alone. `turn_s` is
    how long each run of a round has the machine in its turn, None where they come one after the other, for the reason
    that `alone` gives.
    """

    folder: Path
    command: list[str]
    say: Callable[[str], None]
    blocks: dict[str, list[StepTime]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    turn_s: float | None = None
    alone: str = "no run has told yet how long a step is"
    by_loop: bool = False
    began: float = field(default_factory=time.monotonic)
    _number: int = 0
    _bytes: int = 0

    @classmethod
    def create(cls, folder: Path, command: list[str], say: Callable[[str], None]) -> "StudyRuns":
        """Make the folder. Raises TracekitError when it is taken or cannot be made, or runs cannot be stopped here."""
        refuse_foreign_numbers()
        create_study(folder)
        for name in ("runs", "output", "conditions"):
            (folder / name).mkdir()
        return cls(folder, command, say)

    def compare_loops(self) -> None:
        """From here on, compare the mean step of whole loops, and let no run be stopped: workers and storage that have
        been asked would go on for it."""
        self.by_loop = True
        self._one_by_one("what loaders have asked storage for would go on while a run is stopped")

    @property
    def by_mean(self) -> bool:
        """Whether the median step of any condition tells another gain than the mean step does."""
        return tell_another_gain(list(self.blocks.values()))

    @property
    def blocks_ms(self) -> dict[str, list[float]]:
        """How long a step takes, by condition and block: the median step, or, where these tell another gain than all
        steps together, the mean step."""
        which = StepTime._fields.index("mean_ms" if self.by_mean else "median_ms")
        return {name: [each[which] for each in times] for name, times in self.blocks.items()}

    def explore(self, flags: Sequence[str] = ("--explore", "threads")) -> Run:
        """Record the command once, to learn from it. Raises StudyError when it fails."""
        launch = self._launch("explore", list(flags))
        began = time.monotonic()
        ended = alone(launch)
        self.seconds.append(time.monotonic() - began)
        run = launch.opened(ended.process.returncode)
        steps = find_steps(run)
        self._learn(run, steps.of(steps.main)["duration_ns"].to_numpy())
        return run

    def beside(self, noises: Sequence[str], pattern: str, flags: Sequence[str]) -> Run:
        """Record the command once with noises beside it, by a pattern. Raises StudyError when it fails."""
        given = [word for noise in noises for word in ("--noise", noise)]
        launch = self._launch("noisy", [*given, "--pattern", pattern, *flags])
        began = time.monotonic()
        run = launch.opened(alone(launch).process.returncode)
        self.seconds.append(time.monotonic() - began)
        return run

    def in_one_process(self, conditions: Sequence[Condition]) -> Run:
        """Record the command once, under these conditions in turn. Raises StudyError when it fails, or was not under
        them to its end."""
        stem = self._stem("in-one-process")
        each = [{"name": condition.name, "settings": condition.settings} for condition in conditions]
        launch = in_turn(each, self.folder / "runs" / stem, self.folder / "output" / stem, self.command)
        began = time.monotonic()
        run = launch.opened(alone(launch).process.returncode)
        self.seconds.append(time.monotonic() - began)
        broken = next((note for note in run.missing if note.what.startswith(ENDED_EXPLORATION)), None)
        if broken is not None:
            raise StudyError(f"{broken.what}: {broken.why}")
        return run

    def try_alone(self, condition: Condition) -> None:
        """Run the command once, if no run has told yet how long it and a step take: it counts for nothing else.

        Raises StudyError as `measure_round` does.
        """
        if not self.seconds or (self.alone == StudyRuns.alone and self.turn_s is None):
            began = time.monotonic()
            launch = self._launch(condition.name, _LIGHTLY, condition.settings)
            self._steps(launch, alone(launch))
            self.seconds.append(time.monotonic() - began)

    def measure_round(self, conditions: Sequence[Condition]) -> None:
        """Run the command once under each condition, in turns where that is possible.

        Raises StudyError when the program fails, has no steps, or does not take a condition's settings.
        """
        free = describe_memory().free  # what a batch system grants may be less than the machine has
        needed = len(conditions) * self._bytes
        if self.turn_s is not None and free is not None and needed > _SHARE_OF_MEMORY * free:
            self._one_by_one(f"{len(conditions)} of them would take {needed >> 20} MiB of memory")
        before = self.turn_s, self.alone
        if self.turn_s is not None:
            try:
                self._measure(conditions, self.turn_s)
                return
            except (StudyError, TimeoutError) as error:  # what fails alone too will fail again
                self._one_by_one(f"in turns {error}")
        try:
            self._measure(conditions, None)
        except StudyError as error:
            if error.condition is not None:  # that was it, and not the turns
                self.turn_s, self.alone = before
            raise

    def usual_seconds(self) -> float:
        """What one run takes."""
        return float(np.median(self.seconds)) if self.seconds else 0.0

    def how(self) -> str:
        """How the runs of a round were set against each other, in words."""
        if self.turn_s is None:
            return f"runs came one after the other: {self.alone}"
        return f"runs of a round took turns of {self.turn_s:.2g} s, all others stopped meanwhile"

    def _measure(self, conditions: Sequence[Condition], turn_s: float | None) -> None:
        launches = [self._launch(each.name, _LIGHTLY, each.settings) for each in conditions]
        began = time.monotonic()
        if turn_s is None:  # what fails ends the study at once
            steps = [self._steps(launch, alone(launch)) for launch in launches]
        else:
            turns = take_turns(launches, self._turns(conditions, turn_s), patience(self.usual_seconds()))
            steps = [self._steps(*both) for both in zip(launches, turns, strict=True)]
        each_s = (time.monotonic() - began) / len(launches)
        times = [StepTime(*[whole_loop_ms(each)] * 2) for each in steps] if self.by_loop else step_times(steps)
        for condition, step in zip(conditions, times, strict=True):
            self.seconds.append(each_s)
            self.blocks.setdefault(condition.name, []).append(step)
            self.say(f"{condition.name}: {step.median_ms:.4g} ms a step")

    def _turns(self, conditions: Sequence[Condition], turn_s: float) -> list[float]:
        """How long the turns of these conditions are, s: after their first round, right for equally many steps."""
        if any(each.name not in self.blocks for each in conditions):
            return [turn_s] * len(conditions)
        known = self.blocks_ms
        paces = np.array([np.median(known[each.name]) for each in conditions])
        return [float(each) for each in turn_s * paces / paces.mean()]

    def _steps(self, launch: Recording, turns: Turns) -> RunSteps:
        """The steps of a run that has ended."""
        run = launch.opened(turns.process.returncode)
        refused = dict.fromkeys(f"{note.what}: {note.why}" for note in run.missing if is_refusal(note.what))
        if refused:
            raise StudyError(f"{launch.condition}: not applied: {'; '.join(refused)}", launch.condition)
        found = find_steps(run)
        table = found.of(found.main)
        offset = run.manifest.clock_offset_ns
        steps = RunSteps(
            table["start_ns"].to_numpy(),
            table["duration_ns"].to_numpy(),
            [(stopped + offset, resumed + offset) for stopped, resumed in turns.stops],
            _loop_began(run, table, found.main),
        )
        if len(table) < 2:
            raise StudyError(f"{run.path}: {len(table)} steps were seen; a study needs a program with a loop of steps")
        if np.count_nonzero(steps.undisturbed()) < 2:
            raise StudyError("its loop is so short that no step was left whole")
        if not steps.stops:
            self._learn(run, steps.durations_ns)
        return steps

    def _learn(self, run: Run, durations_ns: NDArray[np.int64]) -> None:
        """Decide, from a run that was alone, whether the next ones can take turns."""
        if self.alone != StudyRuns.alone or not len(durations_ns):
            return
        largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        self._bytes = largest * int(run.sql("SELECT count(*) AS processes FROM processes")["processes"].iloc[0])
        turn_s = max(_SHORTEST_TURN_S, _STEPS_PER_TURN * float(np.median(durations_ns)) * 1e-9)
        if turn_s > _LONGEST_TURN_S:
            self._one_by_one("its steps are too long for turns")
        elif run.manifest.may_use_gpu:
            self._one_by_one("what is stopped leaves its work to the GPU")
        else:
            self.turn_s = turn_s

    def _one_by_one(self, why: str) -> None:
        self.turn_s, self.alone = None, why
        self.say(self.how())

    def _launch(self, name: str, flags: list[str], settings: dict[str, Any] | None = None) -> Recording:
        stem = self._stem(name)
        path = self.folder / "runs" / stem
        words = [*words_to_run("tracekit"), "record", "-q", "-o", str(path), "--condition", name, *flags]
        if settings:
            file = self.folder / "conditions" / f"{_file_name(name)}.toml"
            entries = [Entry(key, value) for key, value in settings.items()]
            write_settings(file, entries, f"The condition {name} of a study.")
            words += ["--settings", str(file)]
        return Recording(name, [*words, "--", *self.command], path, self.folder / "output" / stem)

    def _stem(self, name: str) -> str:
        """What the files of the next run are called."""
        self._number += 1
        return f"{self._number:03d}-{_file_name(name)}"


def _loop_began(run: Run, steps: pd.DataFrame, process: int | None) -> int:
    """When a process first wanted a batch, and started workers for it or asked; else its first step."""
    rows = run.sql(
        "SELECT min(start_ns) AS began FROM (SELECT process, start_ns FROM batches UNION ALL "
        "SELECT process, start_ns FROM workers) WHERE process = ?",
        [process],
    )
    began = rows["began"].dropna()
    return int(min([*began, *steps["start_ns"][:1]], default=0))


def _file_name(text: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in text)
