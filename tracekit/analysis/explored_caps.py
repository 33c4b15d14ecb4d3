"""Gradient buckets that were tried in turn (`tracekit.collectors.bucket_exploration`): what steps took with each."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.analysis.exploration import condition_times
from tracekit.analysis.log_ratios import log_interval
from tracekit.analysis.steps import Steps
from tracekit.run.manifest import Wrapped
from tracekit.run.reader import Run
from tracekit.settings.exploration import BUCKET_CAP, bucket_condition

_MS = 1e-6
_LEVEL = 0.95
_FEWEST_ROUNDS = 3


@dataclass(frozen=True)
class CapTimes:
    """A step with a cap, as a share of one with the program's own in the same round: estimated over the rounds that
    tried both, and the interval, at a level at which all caps of the run are right together at 95 %."""

    cap_mb: float
    low: float
    ratio: float
    high: float


@dataclass(frozen=True)
class ExploredCaps:
    """What steps took with the program's own cap, ms, and with others, in R rounds; `problem` says why nothing can be
    made of it."""

    model: Wrapped
    own_ms: float
    others: list[CapTimes]
    rounds: int
    problem: str | None = None


def explored_caps(run: Run, steps: Steps) -> ExploredCaps | None:
    """The exploration of gradient buckets of a run; None where it is none."""
    tried = run.sql(
        "SELECT count(*) AS blocks FROM spans WHERE kind = 'block' AND process = ? AND starts_with(name, ?)",
        [steps.main, f"{BUCKET_CAP}="],
    )
    if not tried["blocks"].iloc[0] or not run.manifest.ddp:
        return None
    model = run.manifest.ddp[0]
    if len(run.manifest.ddp) > 1:
        return ExploredCaps(model, np.nan, [], 0, "several models are wrapped, and one of them was explored")
    times = condition_times(run, steps)
    table = times.pivot_table(index="round", columns="name", values="step_ns")
    own = bucket_condition(*model.caps_mb)
    full = len(table.dropna())
    if own not in table or full < _FEWEST_ROUNDS:
        return ExploredCaps(
            model, np.nan, [], full,
            f"the run was too short: {full} rounds of blocks; at least {_FEWEST_ROUNDS} are needed",
        )  # fmt: skip
    others = [name for name in table if name != own]
    level = 1 - (1 - _LEVEL) / max(len(others), 1)  # Bonferroni
    ratios = {name: np.log(table[name] / table[own]).dropna() for name in others}
    return ExploredCaps(
        model=model,
        own_ms=float(table[own].median()) * _MS,
        others=[_times(name, logs.to_numpy(), level) for name, logs in ratios.items()],
        rounds=max(map(len, ratios.values()), default=0),
    )


def _times(name: str, log_ratios: NDArray[np.float64], level: float) -> CapTimes:
    low, ratio, high = (float(np.exp(each)) for each in log_interval(log_ratios, level))
    return CapTimes(float(name.partition("=")[2]), low, ratio, high)
