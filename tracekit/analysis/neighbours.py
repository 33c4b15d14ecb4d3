"""Neighbours: whether the program was slower while others used the machine, in a run of which nothing else is known.

What others took (CPU time that was spent and is not the program's, CPU time that the hypervisor gave away, bytes of
disks that are not the program's) is set against the steps, in windows of time. Both hang together from one
window to the next, and so would by chance: the correlation of ranks has to stand out from those of the same series
shifted against each other. Found is what goes together; that one causes the other is not shown.
"""

import math
from typing import Literal

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import ndtr

from tracekit.analysis.counters import MACHINE, Increases
from tracekit.analysis.intervals import Times
from tracekit.analysis.log_ratios import Floats
from tracekit.analysis.noise_verdicts import Slowdown
from tracekit.analysis.people import find_people
from tracekit.analysis.steps import Steps
from tracekit.run.reader import Run

Signal = Literal["CPU time of others", "CPU time taken by the hypervisor", "disk of others"]

# A window holds several readings of the counters, which are 100 ms apart, and of the steps.
_SHORTEST_NS, _STEPS = 500_000_000, 10
_FEWEST_WINDOWS, _MOST_WINDOWS = 60, 2000
_ERROR = 0.01  # for all signals together
_BLOCK, _RESAMPLES = 5, 500
_THIRD = 1 / 3
_MOST_INTERVALS = 20
_TOUCHING_S = 0.001


class Neighbour(msgspec.Struct):
    """A signal of others with which the steps got longer: in the third of the windows with most of it they took so much
    longer than in the third with least. `most` and `least` are the signal there, in CPUs or bytes/s. `intervals`: when
    it was high, s since the first step; the first of them. `probability` of such a correlation by chance."""

    signal: Signal
    slowdown: Slowdown
    most: float
    least: float
    probability: float
    intervals: list[tuple[float, float]]


def neighbours(run: Run, steps: Steps) -> list[Neighbour]:
    """The signals with which the steps of the process that stands for the run got longer; [] also where a run is too
    short to tell."""
    mine = steps.of(steps.main)
    window = None if steps.main is None else steps.window(steps.main)
    if window is None:
        return []
    durations = mine["duration_ns"].to_numpy(dtype=np.float64)
    length = max(_SHORTEST_NS, _STEPS * float(np.median(durations)), (window[1] - window[0]) / _MOST_WINDOWS)
    count = int((window[1] - window[0]) / length)
    if count < _FEWEST_WINDOWS:
        return []
    edges = np.linspace(*window, count + 1).astype(np.int64)
    middles = mine["start_ns"].to_numpy(dtype=np.int64) + (durations / 2).astype(np.int64)
    place = np.clip(np.searchsorted(edges, middles, side="right") - 1, 0, count - 1)
    paces = np.array([np.median(durations[place == at]) if (place == at).any() else np.nan for at in range(count)])
    signals = _signals(run, edges)
    found = []
    for signal, values in signals.items():
        known = ~np.isnan(paces) & ~np.isnan(values)
        if known.sum() >= _FEWEST_WINDOWS and np.ptp(values[known]) > 0:
            at = np.flatnonzero(known)
            each = _told(signal, np.log(paces[at]), values[at], (edges[at] - window[0], edges[at + 1] - window[0]))
            if each.probability <= _ERROR / len(signals) and each.slowdown.low > 0:
                found.append(each)
    return found


def _signals(run: Run, edges: NDArray[np.int64]) -> dict[Signal, Floats]:
    """What others took in each window between edges, in CPUs or bytes/s, by signal; NaN where that is not known. The
    network is left out: whose bytes an interface carries is not known."""
    everyone = [person.process for person in find_people(run)]
    names = run.sql("SELECT DISTINCT counter FROM counters WHERE process = ?", [MACHINE])["counter"].tolist()
    disks = [name for name in names if name.startswith("disk.") and name.endswith("_bytes")]
    own = ["process.cpu_ns", "process.read_bytes", "process.written_bytes"]
    increases = Increases(run, [*disks, *own, "host.cpu_busy_ns", "host.steal_ns"])

    def rate(counters: list[str], processes: list[int]) -> Floats:
        grown = [increases.within(who, name, edges[:-1], edges[1:]) for who in processes for name in counters]
        table = np.array(grown) if grown else np.full((1, len(edges) - 1), np.nan)
        return np.where(np.isnan(table).all(axis=0), np.nan, np.nansum(table, axis=0)) / np.diff(edges)

    def others(counters: list[str], mine: list[str]) -> Floats:
        return np.maximum(rate(counters, [MACHINE]) - np.nan_to_num(rate(mine, everyone)), 0.0)

    return {
        "CPU time of others": others(["host.cpu_busy_ns"], ["process.cpu_ns"]),
        "CPU time taken by the hypervisor": rate(["host.steal_ns"], [MACHINE]),
        "disk of others": 1e9 * others(disks, ["process.read_bytes", "process.written_bytes"]),
    }


def _told(signal: Signal, logs: Floats, values: Floats, windows: tuple[Times, Times]) -> Neighbour:
    """What goes together, and how surely. `logs`: of the steps' medians, by window."""
    third = max(round(len(values) * _THIRD), 1)
    order = np.argsort(values, kind="stable")
    least, most = np.zeros(len(values), dtype=bool), np.zeros(len(values), dtype=bool)
    least[order[:third]], most[order[-third:]] = True, True
    low, expected, high = _difference(logs, most, least)
    begins, ends = (each[most] / 1e9 for each in windows)
    return Neighbour(
        signal,
        Slowdown(math.expm1(low), math.expm1(expected), math.expm1(high)),
        float(values[most].mean()),
        float(values[least].mean()),
        _by_chance(logs, values),
        _joined(begins.tolist(), ends.tolist())[:_MOST_INTERVALS],
    )


def _by_chance(logs: Floats, values: Floats) -> float:
    """How probable a correlation (of ranks, Spearman's) as high as theirs is among those of one series shifted against
    the other, which are as good as normal; small shifts, which what is real outlasts, are left out."""
    a, b = (pd.Series(each).rank().to_numpy() - (len(each) + 1) / 2 for each in (logs, values))
    shifted = np.fft.irfft(np.fft.rfft(a) * np.conj(np.fft.rfft(b)), len(a))
    others = shifted[_BLOCK + 1 : -_BLOCK]
    spread = others.std(ddof=1)
    return float(ndtr((others.mean() - shifted[0]) / spread)) if spread > 0 else 1.0


def _difference(logs: Floats, most: NDArray[np.bool_], least: NDArray[np.bool_]) -> tuple[float, float, float]:
    """By how much the medians differ, with a 95 % interval by resampling blocks of neighbouring windows."""
    drawer = np.random.default_rng(0)
    expected = float(np.median(logs[most]) - np.median(logs[least]))
    starts = np.arange(0, len(logs), _BLOCK)
    drawn = []
    for _ in range(_RESAMPLES):
        at = (drawer.choice(starts, len(starts))[:, None] + np.arange(_BLOCK)).ravel()
        at = at[at < len(logs)]
        if most[at].any() and least[at].any():
            drawn.append(np.median(logs[at][most[at]]) - np.median(logs[at][least[at]]))
    low, high = map(float, np.percentile(drawn, [2.5, 97.5]))
    return min(low, expected), expected, max(high, expected)


def _joined(begins: list[float], ends: list[float]) -> list[tuple[float, float]]:
    """Windows that touch as one."""
    found: list[tuple[float, float]] = []
    for begin, end in zip(begins, ends, strict=True):
        if found and begin - found[-1][1] < _TOUCHING_S:
            found[-1] = (found[-1][0], end)
        else:
            found.append((begin, end))
    return found
