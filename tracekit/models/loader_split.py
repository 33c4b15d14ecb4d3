"""What a program waited for its loader for: what it would not have waited for, one cost after the other taken away."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from tracekit.analysis.loading import LoaderCosts
from tracekit.models.loader_epochs import machine_of, settings_of, stall, stops_s, workload
from tracekit.models.loader_replay import Workload


@dataclass(frozen=True)
class Split:
    """Shares of the loading wait, which add up to 1: `storage` and then the `cpu` work of making samples, as three runs
    would tell them (as it is, with instant storage, with instant samples); putting batches together and sending them
    (`transfer`), taking them in the program (`consumer`), starting and ending workers (`startup`). `order` cuts across:
    what delivery in any order would save.
    """

    storage: float
    cpu: float
    transfer: float
    consumer: float
    startup: float
    order: float


def split(costs: LoaderCosts) -> Split | None:
    """What the program waited for, by what it would not have waited for: in the replay, one cost after the other is
    taken away. None where it did not wait.
    """
    settings = settings_of(costs)
    work, machine = workload(costs, settings.workers), machine_of(costs)
    stops = stops_s(costs, settings.workers)
    whole = stall(costs, work, machine, settings) + stops
    if whole <= 0:
        return None
    order = whole - stops - stall(costs, work, machine, replace(settings, in_order=False))
    shares, before = {}, whole
    for name, rest in _taken_away(costs, work):
        left = min(stall(costs, rest, machine, settings) + stops, before)
        shares[name], before = (before - left) / whole, left
    return Split(**shares, startup=before / whole, order=max(order / whole, 0.0))


def _taken_away(costs: LoaderCosts, work: Workload) -> Iterator[tuple[str, Workload]]:
    """The names of costs, and what is left of the batches without each and those before it."""
    zero, reading = np.zeros(len(costs)), costs.cpu * costs.reading_cpu
    # Workers wait for CPUs when storage has answered, too.
    making = float((costs.blocked + costs.cpu).sum())
    share_read = float((costs.blocked + reading).sum()) / making if making else 0.0
    waited = share_read * costs.crowded * costs.delayed
    work = replace(work, delay=zero, transfer=zero, cpu=work.cpu - reading - waited)
    yield "storage", work
    # Where workers do not compute, the program waits for CPUs as much less as these computed on the CPUs.
    computing = float(costs.cpu.sum()) / (costs.cpus * float((costs.wait + costs.gap).sum()))
    rested = workload(replace(costs, crowded=costs.crowded * max(1 - computing, 0.0)), costs.settings.num_workers)
    collating = (costs.collating or 0.0) * (costs.blocked + costs.cpu)
    left = costs.cpu - np.maximum(costs.cpu - collating, reading)
    work = replace(work, cpu=left, receive=rested.receive, consume=rested.consume)
    yield "cpu", work
    work = replace(work, cpu=zero, send=zero)
    yield "transfer", work
    yield "consumer", replace(work, receive=zero)
