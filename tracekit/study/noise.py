"""The study of noise: what may share the node, how much of it, and what it costs.

A switchback: in each run noises come one after the other in random order, with as much silence between them, in blocks
of some steps. Every block is set against the silence around it, so runs need not be alike. After half of the time what
is unsafe is tried of a guest that stands back (nice, ionice, on other CPUs), and after two thirds the largest doses
that seem safe are on together, in runs of which nothing was known when they were chosen.
"""

import math
import os
import random
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from tracekit.advice.entries import entries_of
from tracekit.advice.noise import harvest
from tracekit.analysis.noise import SILENCE
from tracekit.analysis.noise_effects import Blocks, NoiseEffect
from tracekit.analysis.noise_findings import noise_findings
from tracekit.analysis.noise_verdicts import Judged
from tracekit.analysis.report_schema import Gain
from tracekit.analysis.steps import find_steps
from tracekit.models.noise import gentler, largest_safe, predict
from tracekit.noise.generators import Generators
from tracekit.noise.spec import NoiseError, Spec
from tracekit.record.topology import affinity
from tracekit.study.recording import StudyError
from tracekit.study.result import STUDY_VERSION, Study
from tracekit.study.runs import StudyRuns
from tracekit.study.statistics import LEVEL, Comparison, Verdict, summarise

_LIGHTLY = ["--collectors", "steps,layers,loading,collectives,counters", "--profile", "off", "--overhead", "1"]
_SILENT = "silence"
# A block has so many steps, and lasts long beside the 20 ms in which a change settles and the 100 ms between two looks
# at the counters.
_STEPS, _SHORTEST_S = 12, 0.4
_FEWEST_BLOCKS = 4  # in a loop
# Of the time: until then noises come by themselves, as they are; then until there also those that stand back instead.
_AS_THEY_ARE, _BY_THEMSELVES = 1 / 2, 2 / 3
# Noise may make a loop so many times as long; a pattern is one word of a command line, and has at most 128 KiB.
_SLOWER, _MOST_BLOCKS, _LONGEST_PATTERN = 3, 1000, 120 << 10
_VERDICTS: dict[str, Verdict] = {"safe": "same", "unsafe": "slower", "undecided": "undecided"}


def study_noise(
    command: list[str],
    folder: Path,
    specs: Sequence[Spec],
    margin: float,
    budget_s: float,
    say: Callable[[str], None],
    try_gentler: bool = True,
) -> Study:
    """Try noises beside a command until the budget is spent, and judge each: safe, unsafe, undecided; those that are
    unsafe also of a guest that stands back, if `try_gentler`.

    Raises StudyError when the program fails or has too few steps; RunError when the folder is taken.
    """
    began = time.monotonic()
    study = NoiseStudy(StudyRuns.create(folder, command, say), specs, margin)
    study.look()
    singles = [spec.label for spec in specs]
    study.measure(singles, began + _AS_THEY_ARE * budget_s)
    gentle: list[str] = []
    try:
        gentle = study.stand_back() if try_gentler else []
    except KeyboardInterrupt:
        study.interrupted()
    study.measure(gentle or singles, began + _BY_THEMSELVES * budget_s)
    safe = study.safe()
    study.measure(["+".join(safe)] if len(safe) > 1 else [*singles, *gentle], began + budget_s)
    return study.save()


class NoiseStudy:
    """The runs of a study, and what their blocks say."""

    def __init__(self, runs: StudyRuns, specs: Sequence[Spec], margin: float) -> None:
        self._runs, self._specs, self._margin = runs, list(specs), margin
        self._blocks = Blocks()
        self._block_s = self._loop_s = 0.0
        self._drawer = random.Random(secrets.randbits(32))
        self._stopped = ""

    def look(self) -> None:
        """Find out how long a block is to be, from a run in silence. Raises StudyError where the loop is too short."""
        self._runs.say("recording one run in silence")
        run = self._runs.explore(_LIGHTLY)
        steps = find_steps(run)
        durations = steps.of(steps.main)["duration_ns"].to_numpy()
        if len(durations) < 2:
            raise StudyError(
                f"{run.path}: {len(durations)} steps were seen; a study needs a program with a loop of steps"
            )
        self._block_s = max(_STEPS * float(np.median(durations)) / 1e9, _SHORTEST_S)
        self._loop_s = float(durations.sum()) / 1e9
        if self._loop_s < _FEWEST_BLOCKS * self._block_s:
            raise StudyError(
                f"its loop takes {self._loop_s:.1f} s, too short for noise to go on and off in it: give it so many"
                f" steps that it takes {10 * self._block_s:.0f} s or more"
            )

    def interrupted(self) -> None:
        self._stopped = "interrupted"

    def measure(self, conditions: Sequence[str], deadline: float) -> None:
        """Run the command under these conditions in turn for as long as there is time (`time.monotonic`). What is found
        is saved after each run, as a study may be killed by a batch system.

        Raises StudyError when the first run fails.
        """
        queue: list[str] = []
        try:
            while time.monotonic() + self._runs.usual_seconds() <= deadline and not self._stopped:
                queue = self._run(self._filled(queue, conditions))
                self._stopped = f"it was not through: what it had found after {len(self._blocks.doses)} runs with noise"
                self.save()
                self._stopped = ""
        except KeyboardInterrupt:
            self.interrupted()
        except StudyError as error:
            if not self._blocks.doses:
                raise
            self._stopped = f"a run failed ({error})"

    def _filled(self, queue: list[str], conditions: Sequence[str]) -> list[str]:
        """The conditions to come, in random order, each as often as the others; enough for a run."""
        enough = min(math.ceil(_SLOWER * self._loop_s / (2 * self._block_s)), _MOST_BLOCKS)
        while len(queue) < enough:
            queue = [*queue, *self._drawer.sample(conditions, len(conditions))]
        return queue

    def _run(self, queue: list[str]) -> list[str]:
        """Run the command under the next conditions; those that it did not come to."""
        length = f"{self._block_s:.3f}s"
        pattern = ""
        for condition in queue:
            longer = f"{pattern} off:{length} {condition}:{length}".lstrip()
            if len(os.fsencode(longer)) > _LONGEST_PATTERN:
                break
            pattern = longer
        run = self._runs.beside([spec.label for spec in self._specs], pattern, _LIGHTLY)
        blocks = self._blocks.add(run, find_steps(run))
        noisy = sum(block.condition != SILENCE for block in blocks)
        self._runs.say(f"run {len(self._blocks.doses)}: {noisy} blocks with noise")
        return queue[noisy:]

    def stand_back(self) -> list[str]:
        """The noises to try instead of what is unsafe so far."""
        new = []
        for spec in gentler(self._specs, self._effects(), self._blocks.spare(affinity())):
            try:
                Generators([spec]).close()
                new.append(spec)
            except NoiseError as error:
                self._runs.say(f"not tried: noise {spec.label}: {error}")
        self._specs += new
        return [spec.label for spec in new]

    def safe(self) -> list[str]:
        """Those that may be on together, by what each does by itself."""
        return [spec.label for spec in largest_safe(self._specs, self._effects())]

    def _effects(self) -> dict[str, NoiseEffect]:
        return {effect.noise: effect for effect in self._blocks.effects(self._margin)}

    def save(self) -> Study:
        """Leave in the study's folder what came out. Raises StudyError when there was no time for any run."""
        if not self._blocks.doses:
            if self._stopped:
                raise StudyError(f"{self._stopped} before the first run with noise had ended")
            seconds = self._runs.usual_seconds()
            raise StudyError(f"a run takes {seconds:.0f} s: give a larger --budget, such as {20 * seconds:.0f}s")
        folder, effects = self._runs.folder, self._blocks.effects(self._margin)
        mixes = predict(effects)
        advice = harvest(self._specs, effects, mixes, self._margin)
        times = {
            condition or _SILENT: [math.exp(block.log_median) / 1e6 for block in self._blocks.of(condition)]
            for condition in [SILENCE, *(effect.noise for effect in effects)]
        }
        floor = self._blocks.floor(self._margin)
        study = Study(
            schema=STUDY_VERSION,
            study="noise",
            path=str(folder),
            command=self._runs.command,
            conditions=[summarise(name, found) for name, found in times.items()],
            comparisons=[*(self._comparison(each) for each in effects), self._floor(floor)],
            floor=max(abs(floor.slowdown.low), abs(floor.slowdown.high)),
            level=LEVEL,
            stopped=self._stopped or f"the time was up after {len(self._blocks.doses)} runs with noise",
            blocks_ms=times,
            interleaved="noise went on and off in blocks of the same run, in random order, with silence in between",
            settings=advice.settings,
            advice=advice.why,
            noise=effects,
            mixes=mixes,
            findings=noise_findings(effects, self._margin),
        )
        study.save(folder, entries_of(advice), advice.why)
        return study

    def _comparison(self, effect: NoiseEffect) -> Comparison:
        verdict, gain = _VERDICTS[effect.verdict], _gain(effect)
        return Comparison(_SILENT, effect.noise, gain, verdict, effect.blocks, self._margin, effect.why, True)

    def _floor(self, floor: Judged) -> Comparison:
        verdict = _VERDICTS[floor.verdict]
        return Comparison(
            _SILENT, f"{_SILENT} again", _gain(floor), verdict, floor.blocks, self._margin, floor.why, True
        )


def _gain(judged: NoiseEffect | Judged) -> Gain:
    """A slowdown as a saving of time, 1 - new/old."""
    slowdown = judged.slowdown
    return Gain(-slowdown.high, -slowdown.expected, -slowdown.low)
