"""The time of a step in runs that took turns: what the machine did to all of them cancels.

A cycle gives each run one turn, within a second or so, and the same number of steps, as soon as it is known what a step
takes: all meet the same machine at the same steps. What turns tell of a step is averaged over the steps that all runs
have had, so that each is compared with itself, be the turns of one length or not: a program may take longer for some
steps than for others (sequences that grow, a phase with larger batches). On a virtual machine with neighbours averages
over turns scattered half to a fifth as much from round to round as the ratios of two runs' medians.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracekit.study.statistics import drop_warm_up

# What the others have left in the caches goes with the first steps of a turn: they are left out.
COLD_STEPS = 2
FEWEST_STEPS = 2  # in a turn
FEWEST_TURNS = 5  # of each run, over the steps that all have had

_NS_TO_MS = 1e-6
Times = NDArray[np.int64]


class StepTime(NamedTuple):
    """How long a step of a run takes, ms: the median step, which no outlier moves, and the mean step, of which the run
    is made. They tell different gains where steps are of several kinds that a setting makes more or less frequent."""

    median_ms: float
    mean_ms: float


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

    def turns(self) -> pd.DataFrame:
        """The turns in order: their `first` and `last` step, by its number, and the median and the mean step,
        `median_ms` and `mean_ms`. The last turn may be short, and what comes before the first stop is none."""
        kept = np.flatnonzero(self.undisturbed())
        turn = np.searchsorted([resumed for _, resumed in self.stops], self.starts_ns[kept], side="right") - 1
        steps = pd.DataFrame({"step": kept, "ms": self.durations_ns[kept] * _NS_TO_MS}).groupby(turn)
        turns = steps.agg(
            first=("step", "min"),
            last=("step", "max"),
            median_ms=("ms", "median"),
            mean_ms=("ms", "mean"),
            size=("ms", "size"),
        )
        good = (turns["size"] >= FEWEST_STEPS) & (turns.index >= 0) & (turns.index < len(self.stops) - 1)
        return turns[good]


def step_times(runs: Sequence[RunSteps]) -> list[StepTime]:
    """How long a step of each run takes, warm-up left out: over the steps that all have had in turns, the geometric
    mean of the turns' medians and the mean; or, where these are few or a run was alone, of its own."""
    turns = [run.turns() for run in runs]
    first, last = max(_edge(each, "first", 0) for each in turns), min(_edge(each, "last", -1) for each in turns)
    had = min(np.count_nonzero((each["first"] >= first) & (each["last"] <= last)) for each in turns)
    if len(runs) < 2 or had < FEWEST_TURNS:
        own = [drop_warm_up(run.durations_ns[run.undisturbed()]) * _NS_TO_MS for run in runs]
        return [StepTime(float(np.median(each)), float(np.mean(each))) for each in own]
    places = first + (np.arange(had) + 0.5) * (last + 1 - first) / had
    medians, means = (np.array([_at(each, name, places) for each in turns]) for name in StepTime._fields)
    logs = np.log(medians)
    settled = len(drop_warm_up(np.exp(logs.mean(axis=0)) / _NS_TO_MS))
    typical, mean = np.exp(logs[:, -settled:].mean(axis=1)), means[:, -settled:].mean(axis=1)
    return [StepTime(*both) for both in zip(typical.tolist(), mean.tolist(), strict=True)]


def _edge(turns: pd.DataFrame, name: str, at: int) -> int:
    """The first step of all turns, or the last; -1 without any."""
    return int(turns[name].iloc[at]) if len(turns) else -1


def _at(turns: pd.DataFrame, name: str, places: NDArray[np.float64]) -> NDArray[np.float64]:
    """What is told of the turn that a step belongs to, or else of the one before it."""
    at = np.searchsorted(turns["first"].to_numpy(), places, side="right") - 1
    return turns[name].to_numpy(dtype=np.float64)[np.maximum(at, 0)]


def whole_loop_ms(run: RunSteps) -> float:
    """The time per step of a whole loop, ms, in a run that was alone: workers deliver batches in bursts, and what a
    loader makes the program wait for may come with the first step of an epoch or with every tenth."""
    return (int(run.starts_ns[-1] + run.durations_ns[-1]) - run.began_ns) / len(run.starts_ns) * _NS_TO_MS
