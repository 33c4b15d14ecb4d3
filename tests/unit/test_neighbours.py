"""Neighbours: found where steps got longer with what others took, and not where both only drift."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter
from synthetic import Tape, make_run

from tracekit.analysis.neighbours import neighbours
from tracekit.analysis.report import analyze
from tracekit.analysis.steps import find_steps
from tracekit.run.reader import Run, open_run

STEPS, STEP_MS, WINDOW = 4000, 20.0, 5


def wandering(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    """What remembers itself for some seconds, between 0 and 1 or so."""
    series = lfilter([1.0], [1.0, -0.95], rng.normal(0, 1, count))
    return np.clip((series - series.min()) / np.ptp(series), 0, 1)


def recorded(path: Path, seed: int, effect: float) -> Run:
    """A run in which others take up to a CPU, and steps get longer by `effect` then; they wander by themselves too."""
    rng = np.random.default_rng(seed)
    others, own = wandering(rng, STEPS // WINDOW), wandering(rng, STEPS // WINDOW)
    tape = Tape()
    tape.gap(200)
    for at in range(STEPS):
        start, place = tape.now / 1e6, at // WINDOW
        length = STEP_MS * (1 + effect * others[place] + 0.1 * own[place]) * rng.normal(1, 0.02)
        tape.batch(1.0)
        tape.call("Model", length - 2.0)
        tape.optimizer(1.0)
        tape.counter("process.cpu_ns", round(1e6 * length), start, length)
        busy = round(1e6 * length * (1 + others[place]))
        tape.counter("host.cpu_busy_ns", busy, start, length, machine=True)
    make_run(path, [tape])
    return open_run(path)


def test_steps_that_get_longer_with_the_cpu_time_of_others_are_found(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", 1, 0.3)
    (found,) = neighbours(run, find_steps(run))
    assert found.signal == "CPU time of others"
    assert 0.05 < found.slowdown.low < found.slowdown.expected < found.slowdown.high < 0.3
    assert found.most > found.least
    assert found.intervals and all(begin < end for begin, end in found.intervals)
    assert any("CPU time of others" in each.title for each in analyze(run).findings if each.id == "noise.neighbours")


def test_what_only_wanders_alike_is_not_found(tmp_path: Path) -> None:
    told = []
    for seed in range(8):
        run = recorded(tmp_path / str(seed), seed, 0.0)
        told += neighbours(run, find_steps(run))
    assert len(told) <= 1


def test_a_short_run_tells_nothing(tmp_path: Path) -> None:
    tape = Tape()
    for _ in range(20):
        tape.batch(1.0)
        tape.call("Model", 10.0)
        tape.optimizer(1.0)
    make_run(tmp_path / "run", [tape])
    run = open_run(tmp_path / "run")
    assert neighbours(run, find_steps(run)) == []
