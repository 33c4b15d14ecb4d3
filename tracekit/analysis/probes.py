"""What the probe of a run has seen of its loaders: how storage and CPUs serve more workers, and how much faster other
settings were than the program's own beside them.
"""

from dataclasses import dataclass
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from tracekit.analysis.loading import LoaderCosts, Stop, loader_costs
from tracekit.analysis.steps import Steps, find_steps
from tracekit.run.folder import PROBE
from tracekit.run.probes import load_sittings
from tracekit.run.reader import Run, open_run

# The first part of a turn is left out: what was asked of storage came while the process was stopped, and the caches are
# another one's. A worker has a read under way, of the many that a turn takes.
_COLD = 0.25
_FEWEST_TURNS = 3
# Batches that both runs went through are compared in so many blocks; fewer where these would have fewer batches.
_BLOCKS, _FEWEST_BATCHES = 10, 8
_LEVEL = 0.95
_NS = 1e9


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
    """Of one loader: the costs of its batches where most of them were being made at once, and what was seen."""

    costs: LoaderCosts
    seen: list[Seen]


def probes(run: Run) -> dict[str, Probe]:
    """By loader. Raises RunError where the probe cannot be read."""
    found: dict[str, Probe] = {}
    for sitting in load_sittings(run.path):
        runs = [(open_run(run.path / PROBE / each.run), each.stops) for each in sitting]
        turned = [_Turned(each, find_steps(each), _at(each, stops)) for each, stops in runs]
        base = _paces(turned[0])
        for each in turned[1:] or turned:
            paces = _paces(each)
            for costs in loader_costs(each.run, each.steps, each.stops):
                if costs.known:
                    former = found.get(costs.loader, Probe(costs, []))
                    seen = _seen(costs, paces.get(costs.loader), base.get(costs.loader)) if len(runs) > 1 else []
                    most = max(former.costs, costs, key=lambda one: (one.readers, len(one)))
                    found[costs.loader] = Probe(most, [*former.seen, *seen])
    return {loader: Probe(probe.costs, _together(probe.seen)) for loader, probe in found.items()}


@dataclass(frozen=True)
class _Turned:
    """A run of a sitting, and when it was stopped, Unix ns."""

    run: Run
    steps: Steps
    stops: list[Stop]


def _at(run: Run, stops: list[Stop]) -> list[Stop]:
    offset = run.manifest.clock_offset_ns
    return [(stopped + offset, resumed + offset) for stopped, resumed in stops]


@dataclass(frozen=True)
class _Pace:
    """How a run went through a loader's batches, of which the n-th is the same in all runs of a sitting.

    `turns`: how long each turn was, s, and how many batches came in it [T, 2]; 0 where the loader was not in use.
    `received`: for how long the run had run when each batch came, s [B]; NaN before its first turn and after its last.
    """

    turns: NDArray[np.float64]
    received: NDArray[np.float64]


def _paces(turned: _Turned) -> dict[str, _Pace]:
    """By loader."""
    batches = turned.run.sql(
        "SELECT loader, start_ns + duration_ns AS received_ns FROM batches WHERE process = ? ORDER BY received_ns",
        [turned.steps.main],
    )
    stops = np.array(turned.stops, dtype=np.int64).reshape(-1, 2)
    return {
        str(loader): _Pace(
            _turns(part["received_ns"].to_numpy(), stops), _running(part["received_ns"].to_numpy(), stops)
        )
        for loader, part in batches.groupby("loader")
    }


def _turns(received: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.float64]:
    begin, end = stops[:-1, 1], stops[1:, 0]
    begin = begin + ((end - begin) * _COLD).astype(np.int64)
    count = np.searchsorted(received, end) - np.searchsorted(received, begin)
    # It may go on without this loader; after the last turn it did not go on.
    is_at_it = (begin >= received[0]) & ((end <= received[-1]) | (end == end[-1:]) & (count > 0))
    return np.where(is_at_it[:, None], np.stack([(end - begin) / _NS, count], axis=1), 0.0)


def _running(received: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.float64]:
    stopped, resumed = stops.T
    if len(stops) < 2:
        return np.full(len(received), np.nan)
    lost = np.append(0, np.cumsum(resumed - stopped))[np.searchsorted(resumed, received, side="right")]
    is_in_turn = (received > resumed[0]) & (received < stopped[-1])
    return np.where(is_in_turn, (received - lost) / _NS, np.nan)


def _seen(costs: LoaderCosts, pace: _Pace | None, base: _Pace | None) -> list[Seen]:
    """By the turns that both had side by side, in which the machine was the same, or by the batches that both went
    through, which are the same work: what is surer. The error by leaving out one after the other (jackknife)."""
    by_turns = _by_turns(pace, base) if pace is not None and base is not None else None
    if pace is None or base is None or by_turns is None:
        return []
    log, error = min(by_turns, _by_batches(pace, base) or by_turns, key=itemgetter(1))
    return [Seen(costs.settings.num_workers, costs.settings.prefetch_factor or 0, float(np.exp(log)), error)]


def _by_turns(pace: _Pace, base: _Pace) -> tuple[float, float] | None:
    """The logarithm of the ratio, and its error. None where too few turns tell."""
    turns = min(len(pace.turns), len(base.turns))
    both = np.stack([pace.turns[:turns], base.turns[:turns]])
    both = both[:, (both[:, :, 0] > 0).all(axis=0)]
    sums = both.sum(axis=1)
    without = sums[:, None] - both
    if both.shape[1] < _FEWEST_TURNS or without[:, :, 1].min() == 0:
        return None

    def log_ratio(turns: NDArray[np.float64]) -> NDArray[np.float64]:
        per_batch = np.log(turns[..., 0] / turns[..., 1])
        return np.asarray(per_batch[0] - per_batch[1])

    return float(log_ratio(sums)), _jackknife(log_ratio(without))


def _by_batches(pace: _Pace, base: _Pace) -> tuple[float, float] | None:
    """The same. None where too few batches tell."""
    batches = min(len(pace.received), len(base.received))
    both = np.stack([pace.received[:batches], base.received[:batches]])
    both = both[:, ~np.isnan(both).any(axis=0)]
    blocks = min(_BLOCKS, both.shape[1] // _FEWEST_BATCHES)
    if blocks < _FEWEST_TURNS:
        return None
    took = np.diff(both[:, np.linspace(0, both.shape[1] - 1, blocks + 1).astype(int)])
    if took.min() <= 0:
        return None
    sums = took.sum(axis=1)
    without = np.log(sums[:, None] - took)
    return float(np.log(sums[0] / sums[1])), _jackknife(without[0] - without[1])


def _jackknife(left_out: NDArray[np.float64]) -> float:
    """The error of a value, 95 %, from what it is without one after the other of its parts."""
    parts = len(left_out)
    error = np.sqrt((parts - 1) * np.mean((left_out - left_out.mean()) ** 2))
    return float(error * student.ppf((1 + _LEVEL) / 2, parts - 1))


def _together(seen: list[Seen]) -> list[Seen]:
    """One for all sittings that had the same settings, each weighed by how sure it is."""
    found = []
    for cell in dict.fromkeys((each.workers, each.prefetch) for each in seen):
        alike = [each for each in seen if (each.workers, each.prefetch) == cell]
        weights = np.array([1 / max(each.error, 1e-9) ** 2 for each in alike])
        log = float(np.average(np.log([each.ratio for each in alike]), weights=weights))
        found.append(Seen(*cell, float(np.exp(log)), float(1 / np.sqrt(weights.sum()))))
    return found
