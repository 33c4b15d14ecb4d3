"""What a loader would do with other settings, from what one run saw of it.

The costs of the run's batches are replayed (`loader_replay`) at every setting of a grid, with every storage that the
run may have met (`storage`): the truth lies between.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tracekit.analysis.loading import LoaderCosts, Seconds
from tracekit.models.loader_replay import LoaderSettings, Machine, Replay, Workload, replay
from tracekit.models.storage import Storage, storages

# Of each epoch, so many batches are replayed, and of the run so many: the rest goes on as they did.
_MOST_BATCHES = 200
_MOST_EPOCHS = 2
_PREFETCH = (1, 2, 4, 8, 16)
# Beyond this many workers not every number is tried.
_EVERY_COUNT_TO = 8
_GROWTH = 1.25
# What taking a batch from a worker and starting one cost where the run had no workers: measured with small tensors on
# Linux x86-64 (`benchmarks/loading.py` prints what they are where it runs).
RECEIVE_S = 0.0003
BYTES_PER_S = 1.5e9
START_S = 0.02


@dataclass(frozen=True)
class Forecast:
    """Seconds per batch with some settings: at most and at least, and what to expect."""

    settings: LoaderSettings
    low: float
    expected: float
    high: float


@dataclass(frozen=True)
class Forecasts:
    """Seconds per batch over the grid, and at the settings of the run as replayed and as `measured`."""

    current: Forecast
    measured: float
    grid: list[Forecast]

    @property
    def error(self) -> float:
        """By how much the replay misses what it can be compared with: relative."""
        return abs(self.current.expected / self.measured - 1) if self.measured > 0 else 1.0


@dataclass(frozen=True)
class Split:
    """Shares of the loading wait: what each keeps the program waiting for. They add up to 1."""

    storage: float
    cpu: float
    transfer: float
    consumer: float
    order: float
    startup: float


def forecasts(costs: LoaderCosts, counts: list[int] | None = None, probe: LoaderCosts | None = None) -> Forecasts:
    """The time per batch for every number of workers up to 4 per CPU (or those given) and prefetch factors up to 16.

    What would not fit into memory is left out. `probe`: the same loader in a run with more workers, which has seen how
    storage answers them.
    """
    current = _settings_of(costs)
    grid = [
        _forecast(costs, LoaderSettings(workers, prefetch, current.in_order, _start(costs)), probe)
        for workers in (counts if counts is not None else worker_counts(int(np.ceil(costs.cpus))))
        for prefetch in (_PREFETCH if workers else (2,))
        if fits(costs, workers, prefetch)
    ]
    now = _time(costs, current, Storage())
    return Forecasts(Forecast(current, now, now, now), _measured(costs), grid)


def worker_counts(cpus: int) -> list[int]:
    """0, 1, 2, … up to four workers per CPU, at growing distances where there are many."""
    counts, count = [], 0.0
    while count <= 4 * cpus:
        counts.append(int(count))
        count = count + 1 if count < _EVERY_COUNT_TO else float(np.ceil(count * _GROWTH))
    return counts if counts[-1] == 4 * cpus else [*counts, 4 * cpus]


def fits(costs: LoaderCosts, workers: int, prefetch: int) -> bool:
    """Whether so many workers and the batches that they have made fit into memory, and the batches into /dev/shm.

    What the program has fits; so does what is not known."""
    ahead = workers * prefetch * costs.batch_bytes
    shared, free = costs.memory.shared, costs.memory.free
    if workers <= costs.settings.num_workers and prefetch <= (costs.settings.prefetch_factor or 0):
        return True
    return (shared is None or ahead <= shared) and (free is None or workers * costs.worker_bytes + ahead <= free)


def split(costs: LoaderCosts) -> Split | None:
    """What the program waited for, by what it would not have waited for: the storage made instant, then the work of the
    workers, the transfer of batches, the program's own claim to the CPUs; before all that, delivery in any order and
    workers that are there at once. None where it did not wait.
    """
    settings = _settings_of(costs)
    work, machine = _workload(costs, settings.workers), _machine(costs)
    zero = np.zeros(len(costs))
    stalls = {"": _stall(costs, work, machine, settings)}
    settings = replace(settings, start=0.0)
    stalls["startup"] = _stall(costs, work, machine, settings)
    settings = replace(settings, in_order=False)
    stalls["order"] = _stall(costs, work, machine, settings)
    machine = replace(machine, consumer_cpus=0.0)
    stalls["consumer"] = _stall(costs, work, machine, settings)
    work = replace(work, delay=zero, transfer=zero)
    stalls["storage"] = _stall(costs, work, machine, settings)
    work = replace(work, cpu=zero)
    stalls["cpu"] = _stall(costs, work, machine, settings)
    work = replace(work, receive=zero)
    stalls["transfer"] = _stall(costs, work, machine, settings)
    shares = dict.fromkeys(Split.__dataclass_fields__, 0.0)
    for name, (before, after) in zip(list(stalls)[1:], pairwise(stalls.values()), strict=True):
        shares[name] = max(before - after, 0.0)
    whole = sum(shares.values())
    return Split(**{name: share / whole for name, share in shares.items()}) if whole > 0 else None


def _settings_of(costs: LoaderCosts) -> LoaderSettings:
    known = costs.settings
    return LoaderSettings(known.num_workers, known.prefetch_factor or 2, known.in_order, costs.start)


def _start(costs: LoaderCosts) -> float:
    return costs.start if costs.settings.num_workers else START_S


def _forecast(costs: LoaderCosts, settings: LoaderSettings, probe: LoaderCosts | None) -> Forecast:
    times = [_time(costs, settings, storage) for storage in storages(costs, max(settings.workers, 1), probe)]
    return Forecast(settings, min(times), float(np.mean(times)), max(times))


def _time(costs: LoaderCosts, settings: LoaderSettings, storage: Storage) -> float:
    """Seconds per batch."""
    work = _workload(costs, settings.workers)
    read, machine = costs.blocked * storage.alone, _machine(costs)
    if storage.at_once is None:
        work = replace(work, delay=read)
    else:
        work = replace(work, delay=np.zeros(len(costs)), transfer=read / storage.at_once)
        machine = replace(machine, stream=1.0 / storage.at_once)
    total = sum(_length(found, batches) for found, batches in _replays(costs, work, machine, settings))
    return total / sum(batches for _, batches in _epochs(costs))


def _stall(costs: LoaderCosts, work: Workload, machine: Machine, settings: LoaderSettings) -> float:
    return sum(found.stall for found, _ in _replays(costs, work, machine, settings))


def _replays(
    costs: LoaderCosts, work: Workload, machine: Machine, settings: LoaderSettings
) -> Iterator[tuple[Replay, int]]:
    """A replay of each epoch, or of its beginning, and how many batches the epoch has."""
    for number, (at, batches) in enumerate(_epochs(costs)):
        there = number > 0 and costs.settings.persistent_workers
        part = Workload(*(getattr(work, name)[at] for name in ("delay", "transfer", "cpu", "receive", "consume")))
        yield replay(part, machine, replace(settings, start=0.0) if there else settings), batches


def _epochs(costs: LoaderCosts) -> list[tuple[slice, int]]:
    begins = np.flatnonzero(costs.first)
    ends = np.append(begins[1:], len(costs))
    return [
        (slice(begin, min(end, begin + _MOST_BATCHES)), int(end - begin))
        for begin, end in list(zip(begins.tolist(), ends.tolist(), strict=True))[:_MOST_EPOCHS]
    ]


def _length(found: Replay, batches: int) -> float:
    """What the whole epoch takes, of which the beginning was replayed: it goes on as its second half did."""
    seen = len(found.asked)
    if batches == seen:
        return found.end
    half = seen // 2
    return float(found.end + (batches - seen) * (found.end - found.asked[half]) / (seen - half))


def _workload(costs: LoaderCosts, workers: int) -> Workload:
    receive: NDArray[np.float64] = costs.receive
    if workers and not costs.settings.num_workers:
        receive = receive + RECEIVE_S + costs.batch_bytes / BYTES_PER_S
    return Workload(costs.blocked, np.zeros(len(costs)), costs.cpu, receive if workers else 0 * receive, costs.consume)


def _machine(costs: LoaderCosts) -> Machine:
    return Machine(costs.cpus, min(costs.consumer_cpus, costs.cpus))


def _measured(costs: LoaderCosts) -> float:
    """Seconds per batch of the same epochs as they were."""
    epochs = _epochs(costs)
    whole: Seconds = costs.wait + costs.gap
    total = sum(float(whole[at.start : at.start + batches].sum()) for at, batches in epochs)
    starts = 1 if costs.settings.persistent_workers else len(epochs)
    return (total + costs.start * costs.settings.num_workers * starts) / sum(batches for _, batches in epochs)
