"""What the probe of a run has seen of its loaders: how storage and CPUs serve more workers, and how much faster other
settings were than the program's own beside them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from tracekit.analysis.loading import LoaderCosts, Stop, loader_costs
from tracekit.analysis.steps import Steps, find_steps
from tracekit.run.folder import PROBE
from tracekit.run.probes import load_sitting
from tracekit.run.reader import Run, open_run

# The first part of a turn is left out: what was asked of storage came while the process was stopped, and the caches are
# another one's. A worker has a read under way, of the many that a turn takes.
_COLD = 0.25
_FEWEST_TURNS = 3
_LEVEL = 0.95
_NS = 1e9

Pace = NDArray[np.float64]  # of each turn: seconds, batches


@dataclass(frozen=True)
class Seen:
    """How many times longer than with the program's own settings a batch took with these, at the same time; the error
    of the logarithm is at most so much, with 95 %."""

    workers: int
    prefetch: int
    ratio: float
    error: float


@dataclass(frozen=True)
class Probe:
    """Of one loader: the costs of its batches with the other settings, and what was seen of these."""

    costs: LoaderCosts
    seen: list[Seen]


def probes(run: Run) -> dict[str, Probe]:
    """By loader. Raises RunError where the probe cannot be read."""
    runs = [(open_run(run.path / PROBE / each.run), each.stops) for each in load_sitting(run.path)]
    turned = [_Turned(each, find_steps(each), _at(each, stops)) for each, stops in runs]
    if not turned:
        return {}
    other = turned[-1]
    base, paces = (_paces(turned[0]), _paces(other)) if len(turned) > 1 else ({}, {})
    return {
        costs.loader: Probe(costs, _seen(costs, paces.get(costs.loader), base.get(costs.loader)))
        for costs in loader_costs(other.run, other.steps, other.stops)
        if costs.known
    }


@dataclass(frozen=True)
class _Turned:
    """A run of a sitting, and when it was stopped, Unix ns."""

    run: Run
    steps: Steps
    stops: list[Stop]


def _at(run: Run, stops: list[Stop]) -> list[Stop]:
    offset = run.manifest.clock_offset_ns
    return [(stopped + offset, resumed + offset) for stopped, resumed in stops]


def _paces(turned: _Turned) -> dict[str, Pace]:
    """How long each turn was and how many batches came in it, by loader."""
    batches = turned.run.sql(
        "SELECT loader, start_ns + duration_ns AS received_ns FROM batches WHERE process = ? ORDER BY received_ns",
        [turned.steps.main],
    )
    stops = np.array(turned.stops, dtype=np.int64).reshape(-1, 2)
    begin, end = stops[:-1, 1], stops[1:, 0]
    begin = begin + ((end - begin) * _COLD).astype(np.int64)
    found = {}
    for loader, part in batches.groupby("loader"):
        received = part["received_ns"].to_numpy()
        count = np.searchsorted(received, end) - np.searchsorted(received, begin)
        # It may go on without this loader; after the last turn it did not go on.
        is_at_it = (begin >= received[0]) & ((end <= received[-1]) | (end == end[-1:]) & (count > 0))
        found[str(loader)] = np.where(is_at_it[:, None], np.stack([(end - begin) / _NS, count], axis=1), 0.0)
    return found


def _seen(costs: LoaderCosts, pace: Pace | None, base: Pace | None) -> list[Seen]:
    """By the turns that both had side by side; the error by leaving out one after the other (jackknife)."""
    if pace is None or base is None:
        return []
    turns = min(len(pace), len(base))
    both = np.stack([pace[:turns], base[:turns]])
    both = both[:, (both[:, :, 0] > 0).all(axis=0)]
    turns, sums = both.shape[1], both.sum(axis=1)
    without = sums[:, None] - both
    if turns < _FEWEST_TURNS or without[:, :, 1].min() == 0:
        return []

    def log_ratio(times: NDArray[np.float64]) -> NDArray[np.float64]:
        per_batch = np.log(times[..., 0] / times[..., 1])
        return np.asarray(per_batch[0] - per_batch[1])

    left_out = log_ratio(without)
    error = np.sqrt((turns - 1) * np.mean((left_out - left_out.mean()) ** 2)) * student.ppf((1 + _LEVEL) / 2, turns - 1)
    settings = costs.settings
    return [Seen(settings.num_workers, settings.prefetch_factor or 0, float(np.exp(log_ratio(sums))), float(error))]
