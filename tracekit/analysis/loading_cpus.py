"""The CPUs, while a loader is iterated over: who keeps them busy, and who waits for one."""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracekit.analysis.counters import Increases
from tracekit.analysis.intervals import Intervals

Seconds = NDArray[np.float64]


@dataclass(frozen=True)
class Crowding:
    """How the program shared the CPUs while it went through a loader: by all of its threads together per ns, for how
    long they waited for a CPU (`delayed`) and ran (`ran`); and the CPU time of the process (`busy`,
    nan where it was not read).
    """

    delayed: float
    ran: float
    busy: float

    @classmethod
    def of(cls, increases: Increases, process: int, epochs: Intervals) -> "Crowding":
        waited, ran, whole = (
            increases.rate_in(process, name, epochs)
            for name in ("thread.run_delay_ns", "thread.cpu_ns", "process.cpu_ns")
        )
        is_known = waited + ran > 0
        return cls(waited if is_known else 0.0, ran if is_known else 0.0, whole)

    @property
    def share_delayed(self) -> float:
        """Of the time that they wanted a CPU."""
        return self.delayed / (self.delayed + self.ran) if self.delayed else 0.0

    def alone(self, gap: Seconds, elsewhere: float, delayed_there: float, whole: float) -> Seconds:
        """What the `gap` between batches would be with a CPU for each thread that wants one. Of the `whole` time the
        program wanted a CPU for so long `elsewhere`, of which it waited for one for so long, s."""
        wanted = (self.delayed + self.ran) * whole - elsewhere
        if wanted <= 0 or gap.sum() <= 0:
            return gap
        share = np.clip((self.delayed * whole - delayed_there) / wanted, 0.0, 1.0)
        return gap * (1 - float(share) * min(wanted / float(gap.sum()), 1.0))


@dataclass(frozen=True)
class ByOthers:
    """What other threads than who makes a batch compute for it: the maker waits for them for the share `of_blocked` of
    the time that it does not compute; it and they keep `maker_cpus` busy while any does."""

    of_blocked: float
    maker_cpus: float


def computed_by_others(told: pd.DataFrame, cpu: float, blocked: float, cpus: float, send: float = 0.0) -> ByOthers:
    """From the batches that were looked at. What others may have computed beside the maker on the CPUs that there are,
    they did; more than that they did while it waited, for them: as one after the other, if that is not longer. And a
    worker has a thread of Python that sends its batches, for `send` each; of these only one runs at a time."""
    share = share_of_cpu(told, "others_ns")
    beyond = max(share - (cpus - 1), 0.0) * cpu
    waited = min(max(beyond, _waited_in_turn(cpu, blocked, min(share * cpu, send))), blocked)
    computing = cpu + waited
    return ByOthers(waited / blocked if waited else 0.0, min(cpu * (1 + share) / computing if computing else 1.0, cpus))


def _waited_in_turn(cpu: float, blocked: float, others: float) -> float:
    """For how long of what it was blocked a thread waited for others to let it run, where these come at any time: as
    often as it wants to run then, and not while it waits for storage."""
    # Of w = others * cpu / (cpu + blocked - w) the smaller solution; without any it does nothing but wait for them.
    rest = (cpu + blocked) ** 2 - 4 * others * cpu
    return min((cpu + blocked - math.sqrt(rest)) / 2, blocked) if rest >= 0 else blocked


def consumer_cpus_of(busy: float, own_cpu: float, wait: Seconds, gap: Seconds, consume: Seconds, cpus: float) -> float:
    """How many CPUs the program keeps busy while it computes: beside the `own_cpu` time that it and its threads take to
    make batches, or to take them, s. One where that was not seen."""
    whole, computing = wait.sum() + gap.sum(), consume.sum()
    if np.isnan(busy):
        return min(1.0, cpus)
    if computing <= 0:
        return 0.0
    return float(np.clip((busy * whole - own_cpu) / computing, 0.0, cpus))


def share_of_cpu(looked_at: pd.DataFrame, what: str) -> float:
    """The share of something in the CPU time of making batches, of those that were looked at."""
    made = looked_at[looked_at["maker"] >= 0]
    whole = made["cpu_ns"].sum()
    return float(made[what].sum() / whole) if whole > 0 else 0.0
