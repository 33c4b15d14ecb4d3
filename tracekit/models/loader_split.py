"""What a program waited for its loader for: what it would not have waited for, one cost after the other taken away."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import brentq

from tracekit.analysis.loading import LoaderCosts, Seconds
from tracekit.models.loader_epochs import (
    TOGETHER,
    are_first,
    as_crowded,
    computing,
    machine_of,
    measured_wait,
    settings_of,
    stall,
    stops_s,
    typical_epochs,
    workload,
)
from tracekit.models.loader_replay import Workload

# How far a program is preferred is known to within this.
_CLOSE = 0.05
_ALIKE = 1e-9  # times differ by no more than what sums are rounded by


@dataclass(frozen=True)
class Split:
    """Shares of the loading wait, which add up to 1: `storage` and then the `cpu` work of making samples, as three runs
    would tell them (as it is, with instant storage, with instant samples); putting batches together and sending them
    (`transfer`), taking them in the program (`consumer`), starting and ending workers (`startup`). `order` cuts across:
    what delivery in any order would save. The share `slowed` of the waiting is at most counted as taking batches, and
    is the workers' computing: CPUs may slow each other (`Beside`), by how much no run tells that had workers all along.
    """

    storage: float
    cpu: float
    transfer: float
    consumer: float
    startup: float
    order: float
    slowed: float


def split(costs: LoaderCosts) -> Split | None:
    """What the program waited for, by what it would not have waited for: in the replay, one cost after the other is
    taken away. None where it did not wait.

    Where the program waits longer in the replay than it did, that is for what is made: for how long it waits when
    nothing is to be made any more the replay knows best.
    """
    costs = _preferring(costs)
    settings = settings_of(costs)
    work, machine = workload(costs, settings.workers), machine_of(costs)
    stops = stops_s(costs, settings.workers)
    whole = stall(costs, work, machine, settings) + stops
    if whole <= 0 or not (costs.wait + costs.gap).any():
        return None
    order = whole - stops - stall(costs, work, machine, replace(settings, in_order=False))
    left, faster = {"": whole}, 0.0
    for name, rest in _taken_away(costs, work):
        if name == "cpu":
            stops -= _given_back_s(costs)
        left[name] = min(stall(costs, rest, machine, settings) + stops, *left.values())
        if name == "cpu":
            faster = min(stall(costs, _unhindered(costs, rest), machine, settings) + stops, left[name])
    # So much of what is made was waited for.
    waited = max(float(measured_wait(costs)), float(left["cpu"]))
    part = float((waited - left["cpu"]) / (whole - left["cpu"])) if 0 < waited < whole else 1.0
    for name in ("", "storage"):
        left[name] = left["cpu"] + (left[name] - left["cpu"]) * part
    waits = [float(each) for each in left.values()]
    names = [name for name in left if name]
    shares = dict(zip(names, (-np.diff(waits) / waits[0] + 0.0).tolist(), strict=True))
    order, slowed = max(float(order), 0.0) * part / waits[0], float(left["cpu"] - faster) / waits[0]
    return Split(**shares, startup=waits[-1] / waits[0], order=order, slowed=slowed)


def _taken_away(costs: LoaderCosts, work: Workload) -> Iterator[tuple[str, Workload]]:
    """The names of costs, and what is left of the batches without each and those before it."""
    zero, reading = np.zeros(len(costs)), costs.cpu * costs.reading_cpu
    # Workers wait for CPUs when storage has answered, too.
    making = float((costs.blocked + costs.cpu).sum())
    share_read = float((costs.blocked + reading).sum()) / making if making else 0.0
    waited = share_read * costs.crowded * costs.delayed
    connecting, starting = _cold(costs, share_read)
    left = np.maximum(work.cpu - reading - waited - connecting, 0)
    work = replace(work, delay=zero, transfer=zero, cpu=left, receive=_received(costs, work, left))
    yield "storage", work
    # Where workers do not compute, the program waits for CPUs as much less as these computed on the CPUs.
    rested = workload(
        replace(costs, crowded=costs.crowded * max(1 - _computing(costs), 0.0)), costs.settings.num_workers
    )
    collating = (costs.collating or 0.0) * (costs.blocked + costs.cpu)
    left = np.minimum(np.minimum(collating + starting, costs.cpu - reading), work.cpu)
    work = replace(work, cpu=left, receive=_received(costs, rested, left), consume=rested.consume)
    yield "cpu", work
    work = replace(work, cpu=np.minimum(left, starting), send=work.send - costs.send)
    yield "transfer", work
    yield "consumer", replace(work, receive=zero)


def _cold(costs: LoaderCosts, share_read: float) -> tuple[Seconds, Seconds]:
    """What of the computing for each batch is there because it is the first one of a worker: to read, and whatever its
    samples are. Where it was not seen apart, all that is not for reading counts as the latter."""
    cold = np.minimum(costs.cold * are_first(costs, costs.settings.num_workers), costs.cpu)
    if costs.cold_outside is None or costs.cold <= 0:
        return share_read * cold, (1 - share_read) * cold
    outside = min(costs.cold_outside / costs.cold, 1.0)
    return share_read * (1 - outside) * cold, outside * cold


def _given_back_s(costs: LoaderCosts) -> float:
    """How much longer ending the workers takes for what they have computed, s: the memory that samples came to need is
    given back. To end one that has made none takes about as long as to fork it: the one copies the pages of the
    program, and the other gives them back (1.0, 1.2 and 1.2 times as long, where "huge samples", "memory-limited" and
    "two loaders" of `benchmarks/loading.py` had instant samples). 0 where workers are not forked."""
    if costs.settings.start_method not in ("", "fork") or not costs.start:
        return 0.0
    usual = min(costs.stop, costs.start)
    workers = costs.settings.num_workers
    return stops_s(costs, workers) - stops_s(replace(costs, stop=usual), workers)


def _preferring(costs: LoaderCosts) -> LoaderCosts:
    """The same costs, with a program that is preferred as far as it takes for it to compute in the replay for as long
    as in the run. A scheduler prefers who has slept, which is the program more often than the workers that compute: it
    goes on, and waits for them the longer."""
    if not costs.settings.num_workers:
        return costs
    did = sum(float(costs.gap[each.first : each.first + each.batches].sum()) for each in typical_epochs(costs))

    def preferred(share: float) -> LoaderCosts:
        return as_crowded(replace(costs, preferred=share))

    def too_long(share: float) -> float:
        tried = preferred(share)
        settings = settings_of(tried)
        return computing(tried, workload(tried, settings.workers), machine_of(tried), settings) - did

    if too_long(0.0) <= _ALIKE * did:
        return costs
    return preferred(1.0 if too_long(1.0) >= 0 else float(brentq(too_long, 0.0, 1.0, xtol=_CLOSE)))


def _received(costs: LoaderCosts, work: Workload, cpu: Seconds) -> Seconds:
    """What it takes to receive each batch [B] where workers compute for so long for each [B], and wait for nothing, s:
    the less they have to do, the more as from those that have nothing to do."""
    made = float((costs.blocked + costs.cpu).sum())
    idle = max(1 - float(cpu.sum()) / made, 0.0) if made else 0.0
    if costs.rested is None:
        return np.asarray(work.receive + idle * costs.more_if_there)
    return np.asarray(work.receive + idle * (costs.rested - work.receive))


def _others(costs: LoaderCosts) -> float:
    """For which share of the time the workers kept another CPU busy, at most."""
    return min(_computing(costs) * costs.cpus, 1.0)


def _computing(costs: LoaderCosts) -> float:
    """Which share of the CPUs the workers kept busy."""
    return float(costs.cpu.sum()) / (costs.cpus * float((costs.wait + costs.gap).sum()))


def _unhindered(costs: LoaderCosts, work: Workload) -> Workload:
    """The same batches, used as fast as where no other CPU is busy, if CPUs slow each other as they do at most: by as
    much of the time as a worker computed on another one; taken as fast too, unless the run has shown that."""
    if not costs.settings.num_workers:
        return work
    slower = 1 + (TOGETHER - 1) * _others(costs)
    receive = work.receive if costs.rested is not None else work.receive / slower
    return replace(work, receive=receive, consume=work.consume / slower)
