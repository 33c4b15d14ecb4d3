"""How storage may answer several readers at once: from what one run saw of it, and a probe with more readers."""

from dataclasses import dataclass

import numpy as np

from tracekit.analysis.loading import LoaderCosts, Seconds

# Of a mean: so many standard errors to either side hold it with 95 %.
_STANDARD_ERRORS = 1.96
# Fewer batches do not tell how sure they are.
_FEWEST_SAME = 30


@dataclass(frozen=True)
class Storage:
    """Some batches are read `at_once` as fast as one; more share what these got (None: any number). A batch that is
    read alone takes the share `alone` of what the run saw."""

    at_once: float | None = None
    alone: float = 1.0


def storages(costs: LoaderCosts, workers: int, probe: LoaderCosts | None = None) -> list[Storage]:
    """The storages that a run may have met, as far as they differ for so many workers: the truth lies between.

    More readers than were ever seen may be read for as fast, or get no more than these did. Fewer may be served no
    faster, or may be given all that several shared. A probe narrows it down where it saw more readers.
    """
    seen = max(costs.readers, costs.settings.num_workers, 1)
    if workers == seen:
        return [Storage()]
    if workers < seen:
        return [Storage(), Storage(1.0, 1 / seen)]
    if probe is None or probe.readers <= seen:
        return [Storage(), Storage(seen)]
    low, high = _slower(costs, probe)
    found = [Storage() if slower <= 1 else Storage(max(probe.reading / slower, 1.0)) for slower in (low, high)]
    return found if workers <= probe.readers else [*found, Storage(max(probe.reading / max(high, 1.0), 1.0))]


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
