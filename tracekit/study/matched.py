"""The time of a step in runs that took turns: what the machine did to all of them cancels.

A cycle gives each run one turn, within a second or so. The logarithms of the turns' median steps, averaged over the
cycles that all runs have had, differ between two runs by the mean of their log-ratios: each turn is compared with its
neighbours in time. On a virtual machine with neighbours these scattered half to a fifth as much from round to round as
the ratios of two runs' medians.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracekit.study.statistics import drop_warm_up

# What the others have left in the caches goes with the first steps of a turn: they are left out.
COLD_STEPS = 2
FEWEST_STEPS = 2  # in a turn
FEWEST_CYCLES = 5  # that all runs have had

Times = NDArray[np.int64]


@dataclass(frozen=True)
class RunSteps:
    """The steps of one run, in order, the stops between its turns, each from and to, and when its loop began, with the
    wait for its first batch; ns, on one clock."""

    starts_ns: Times
    durations_ns: Times
    stops: Sequence[tuple[int, int]]
    began_ns: int = 0

    def undisturbed(self) -> NDArray[np.bool_]:
        """Which steps no stop falls into, and are not the first after one."""
        kept = np.ones(len(self.starts_ns), dtype=bool)
        ends = self.starts_ns + self.durations_ns
        for stopped, resumed in self.stops:
            first = int(np.searchsorted(ends, stopped, side="right"))
            after = int(np.searchsorted(self.starts_ns, resumed, side="left"))
            kept[first : after + COLD_STEPS] = False
        return kept

    def turns_ns(self) -> pd.Series:
        """The median step of each turn, by its number. The last turn may be short, and what comes before the first
        stop is none."""
        kept = self.undisturbed()
        turns = np.searchsorted([resumed for _, resumed in self.stops], self.starts_ns[kept], side="right") - 1
        steps = pd.Series(self.durations_ns[kept]).groupby(turns).agg(["median", "size"])
        good = (steps["size"] >= FEWEST_STEPS) & (steps.index >= 0) & (steps.index < len(self.stops) - 1)
        return steps["median"][good]


def typical_steps_ns(runs: Sequence[RunSteps]) -> list[float]:
    """One step time for each run, warm-up left out: over the cycles that all have had, or, where these are few or a run
    was alone, the median of its own."""
    common = pd.concat([run.turns_ns() for run in runs], axis=1, join="inner").sort_index() if len(runs) > 1 else None
    if common is None or len(common) < FEWEST_CYCLES:
        return [float(np.median(drop_warm_up(run.durations_ns[run.undisturbed()]))) for run in runs]
    logs = np.log(common.to_numpy())
    settled = len(drop_warm_up(np.exp(logs.mean(axis=1))))
    return [float(mean) for mean in np.exp(logs[-settled:].mean(axis=0))]


def mean_step_ns(run: RunSteps) -> float:
    """The time per step of a whole loop, in a run that was alone: workers deliver batches in bursts, and what a loader
    makes the program wait for may come with the first step of an epoch or with every tenth."""
    return (int(run.starts_ns[-1] + run.durations_ns[-1]) - run.began_ns) / len(run.starts_ns)
