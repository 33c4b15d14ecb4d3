"""The time of a step in runs that took turns: what the machine did to all of them cancels.

A cycle gives each run one turn, within a second or so, and the same number of steps, as soon as it is known what a step
takes: all meet the same machine at the same steps. The logarithms of the turns' median steps are averaged over the
steps that all runs have had, so that each is compared with itself, be the turns of one length or not: a program may
take longer for some steps than for others (sequences that grow, a phase with larger batches). On a virtual machine with
neighbours averages over turns scattered half to a fifth as much from round to round as the ratios of two runs' medians.
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
FEWEST_TURNS = 5  # of each run, over the steps that all have had

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

    def turns(self) -> pd.DataFrame:
        """The turns in order: their `first` and `last` step, by its number, and the median step, `median_ns`. The last
        turn may be short, and what comes before the first stop is none."""
        kept = np.flatnonzero(self.undisturbed())
        turn = np.searchsorted([resumed for _, resumed in self.stops], self.starts_ns[kept], side="right") - 1
        steps = pd.DataFrame({"step": kept, "ns": self.durations_ns[kept]}).groupby(turn)
        turns = steps.agg(first=("step", "min"), last=("step", "max"), median_ns=("ns", "median"), size=("ns", "size"))
        good = (turns["size"] >= FEWEST_STEPS) & (turns.index >= 0) & (turns.index < len(self.stops) - 1)
        return turns[good]


def typical_steps_ns(runs: Sequence[RunSteps]) -> list[float]:
    """One step time for each run, warm-up left out: over the steps that all have had in turns, or, where these are few
    or a run was alone, the median of its own."""
    turns = [run.turns() for run in runs]
    first, last = max(_edge(each, "first", 0) for each in turns), min(_edge(each, "last", -1) for each in turns)
    had = min(np.count_nonzero((each["first"] >= first) & (each["last"] <= last)) for each in turns)
    if len(runs) < 2 or had < FEWEST_TURNS:
        return [float(np.median(drop_warm_up(run.durations_ns[run.undisturbed()]))) for run in runs]
    places = first + (np.arange(had) + 0.5) * (last + 1 - first) / had
    logs = np.log([_at(each, places) for each in turns])
    settled = len(drop_warm_up(np.exp(logs.mean(axis=0))))
    return [float(mean) for mean in np.exp(logs[:, -settled:].mean(axis=1))]


def _edge(turns: pd.DataFrame, name: str, at: int) -> int:
    """The first step of all turns, or the last; -1 without any."""
    return int(turns[name].iloc[at]) if len(turns) else -1


def _at(turns: pd.DataFrame, places: NDArray[np.float64]) -> NDArray[np.float64]:
    """The median step of the turn that a step belongs to, or else of the one before it."""
    at = np.searchsorted(turns["first"].to_numpy(), places, side="right") - 1
    return turns["median_ns"].to_numpy(dtype=np.float64)[np.maximum(at, 0)]


def mean_step_ns(run: RunSteps) -> float:
    """The time per step of a whole loop, in a run that was alone: workers deliver batches in bursts, and what a loader
    makes the program wait for may come with the first step of an epoch or with every tenth."""
    return (int(run.starts_ns[-1] + run.durations_ns[-1]) - run.began_ns) / len(run.starts_ns)
