"""How storage may answer several readers at once: from what one run saw of it, and a probe with more readers."""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from tracekit.analysis.loading import LoaderCosts, Seconds
from tracekit.models.loader_epochs import Storage, settings_of, slowed

# Of a mean: so many standard errors to either side hold it with 95 %.
_STANDARD_ERRORS = 1.96
# Fewer batches do not tell how sure they are.
_FEWEST_SAME = 30
# What storage answers at once is known to within this.
_CLOSE = 0.01


@dataclass(frozen=True)
class ProbedStorage:
    """What a probe with so many `readers` has seen of storage: what it is at best and at worst, and that it may be
    `no_faster` for more of them."""

    readers: int
    storages: list[Storage]
    no_faster: Storage


def probed_storage(costs: LoaderCosts, probe: LoaderCosts, alone: bool) -> ProbedStorage:
    """By how much longer a batch took to read in the probe than in the run. Of a probe in turns just the batches are
    known that no stop fell into, which are the short ones: storage gives what these got together, for as long as they
    were read. Of one that ran `alone` it is what makes a replay of it read as slowly: it can give more than its readers
    got on average, as they begin and end, and compute."""
    slower = _slower(costs, probe)
    by_share = [Storage() if each <= 1 else Storage(max(probe.reading / each, 1.0)) for each in slower]
    no_faster = Storage(max(probe.reading / max(slower[1], 1.0), 1.0))
    found = [_as_slow(costs, probe, each) for each in slower] if alone else by_share
    return ProbedStorage(probe.readers, found, no_faster)


def _as_slow(costs: LoaderCosts, probe: LoaderCosts, slower: float) -> Storage:
    """The storage with which reading takes so many times longer in a replay of the probe."""
    settings, most = settings_of(probe), float(max(probe.readers, 1))

    def missed(at_once: float) -> float:
        return slowed(costs, settings, at_once) - slower

    if slower <= 1:
        return Storage()
    if missed(1.0) <= 0:
        return Storage(1.0)
    return Storage(float(brentq(missed, 1.0, most, rtol=_CLOSE)) if missed(most) < 0 else most)


def storages(costs: LoaderCosts, workers: int, probed: ProbedStorage | None = None) -> list[Storage]:
    """The storages that a run may have met, as far as they differ for so many workers: the truth lies between.

    More readers than were ever seen may be read for as fast, or get no more than these did. Fewer may be served no
    faster, or may be given all that several shared. A probe narrows it down where it saw more readers.
    """
    seen = max(costs.readers, costs.settings.num_workers, 1)
    if workers == seen:
        return [Storage()]
    if workers < seen:
        return [Storage(), Storage(1.0, 1 / seen)]
    if probed is None or probed.readers <= seen:
        return [Storage(), Storage(seen)]
    return [*probed.storages, probed.no_faster] if workers > probed.readers else probed.storages


def _slower(costs: LoaderCosts, probe: LoaderCosts) -> tuple[float, float]:
    """How many times longer a batch takes to read among the probe's readers: at least and at most. By all batches, or
    by those that both have seen, whichever is surer: where they have the same samples the latter is."""
    if not costs.blocked.any() or not probe.blocked.any():
        return 1.0, 1.0
    tried = [(_ratio(costs.blocked, probe.blocked), float(np.hypot(_error(costs.blocked), _error(probe.blocked))))]
    same, again = _of_the_same(costs, probe)
    if len(same) >= _FEWEST_SAME and same.any() and again.any():
        ratio = _ratio(same, again)
        tried.append((ratio, float((again - ratio * same).std() / again.mean() / np.sqrt(len(same)))))
    ratio, error = min(tried, key=lambda each: each[1])
    return ratio * (1 - min(_STANDARD_ERRORS * error, 1.0)), ratio * (1 + _STANDARD_ERRORS * error)


def reading_of_the_same(costs: LoaderCosts, probe: LoaderCosts) -> tuple[float, float] | None:
    """For how long a batch was read in a run and in its probe, s, of the same batches, or of all where too few were the
    same. None where that may be chance (5 %), or nobody knows."""
    before, now = _of_the_same(costs, probe)
    if len(before) >= _FEWEST_SAME:
        error = float((now - before).std() / np.sqrt(len(before)))
    else:
        before, now = costs.blocked, probe.blocked
        if min(len(before), len(now)) < _FEWEST_SAME:
            return None
        error = float(np.hypot(before.std() / np.sqrt(len(before)), now.std() / np.sqrt(len(now))))
    is_apart = abs(now.mean() - before.mean()) > _STANDARD_ERRORS * error
    return (float(before.mean()), float(now.mean())) if is_apart else None


def _of_the_same(costs: LoaderCosts, probe: LoaderCosts) -> tuple[Seconds, Seconds]:
    """The times of the batches that were seen to be made in both."""
    ours = np.flatnonzero((costs.number >= 0) & (costs.number <= probe.number.max(initial=-1)))
    theirs = np.flatnonzero(probe.number >= 0)
    _, at, there = np.intersect1d(costs.number[ours], probe.number[theirs], return_indices=True)
    return costs.blocked[ours[at]], probe.blocked[theirs[there]]


def _ratio(before: Seconds, now: Seconds) -> float:
    return float(now.mean() / before.mean())


def _error(times: Seconds) -> float:
    """The standard error of a mean time, relative."""
    return float(times.std() / times.mean() / np.sqrt(len(times)))
