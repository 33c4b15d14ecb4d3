"""What a loader would do with other settings, from what one run saw of it.

The costs of the run's batches are replayed (`loader_replay`) at every setting of a grid, with every storage that the
run may have met (`storage`), CPUs that slow each other or do not, and, where a run without workers computed with a team
of threads, workers that take as long with one thread or many times as long: the truth lies between.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from tracekit.analysis.loading import LoaderCosts, Seconds
from tracekit.analysis.probes import Probe
from tracekit.models.loader_memory import fits
from tracekit.models.loader_replay import LoaderSettings, Machine, Replay, Workload, replay
from tracekit.models.storage import Storage, storages

# So many batches are replayed, of so many epochs: the rest goes on as they did.
_MOST_BATCHES = 400
_MOST_EPOCHS = 4
_PREFETCH = (1, 2, 4, 8, 16)
# Beyond this many workers not every number is tried.
_EVERY_COUNT_TO = 8
_GROWTH = 1.25
# What taking a batch from a worker, starting one and ending one cost where the run had no workers: as seen with small
# tensors and `fork` on Linux x86-64. Taking and ending may cost the share CHEAPEST of it: on other days such a machine
# took a batch in 0.45 to 0.6 ms. A worker puts its batches into memory that is made anew and shared, which takes 3.0 to
# 3.4 ms for 4 MiB; the same without workers 0.1.
RECEIVE_S = 0.0013
BYTES_PER_S = 1.35e9
START_S = 0.013
BOOT_S = 0.017
STOP_S = 0.011
CHEAPEST = 0.35
# How many times longer computing takes beside another busy CPU, at most: as seen on 2 virtual CPUs, where "computing,
# as much as the program" of `benchmarks/loading.py` and the image sample took 1.3 times what was predicted without it.
# Some of that was what taking a batch takes, which was told too short then: less may do, and a probe tells.
TOGETHER = 1.3
_TOGETHERS = (1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6)
# The share of the waiting for CPUs that counts is known to within this.
_CLOSE = 0.02
# What the replay misses of the logarithm of a time at half of the points of `benchmarks/loading.py`.
_REPLAYED_WELL = 0.045

# By how much the replay misses the ratio of two settings at 19 of 20 points of `benchmarks/loading.py` on 2 virtual
# CPUs (at half of them: 0.04), where the machine wanders by some percent meanwhile; on a calmer day it was 0.13. Every
# range is at least so wide.
MODEL_ERROR = 0.18


@dataclass(frozen=True)
class Forecast:
    """Seconds per batch with some settings: at least, to be expected, at most. `seen`: they were measured too."""

    settings: LoaderSettings
    low: float
    expected: float
    high: float
    seen: bool = False


@dataclass(frozen=True)
class Forecasts:
    """Seconds per batch over the grid, and at the settings of the run, as `measured`; of which the replay misses the
    share `error`."""

    current: Forecast
    error: float
    grid: list[Forecast]


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


def forecasts(costs: LoaderCosts, counts: list[int] | None = None, probe: Probe | None = None) -> Forecasts:
    """The time per batch for every number of workers up to 4 per CPU (or those given) and prefetch factors up to 16.

    What would not fit into memory is left out. `probe`: what a probe has seen of the same loader. What was measured
    in the probe is weighed against the replay; what the replay misses of it, and of the time that the run had, it is
    taken to miss of the others too.
    """
    current, measured = _settings_of(costs), _with_outside(costs)
    now = current.workers, current.prefetch if current.workers else 0
    seen = {now: Forecast(current, measured, measured, measured, seen=True)}
    startup = _startup(costs, probe)
    for each in probe.seen if probe else ():
        settings = LoaderSettings(each.workers, each.prefetch or 2, current.in_order, *startup)
        expected, error = measured * each.ratio, float(np.exp(each.error))
        found = Forecast(settings, expected / error, expected, expected * error, seen=True)
        seen.setdefault((each.workers, each.prefetch), found)
    besides = _besides(costs, probe, seen.values())
    of_workers = {current.workers: [_missed(measured, _time(costs, current, Storage()))]}
    # By itself: how much waiting for CPUs counts is taken from the run.
    own_error = abs(_time(replace(costs, crowded=0.0), current, Storage()) / measured - 1) if measured > 0 else 0.0
    error = max(own_error, MODEL_ERROR)
    for cell, measured_so in list(seen.items()):
        if cell != now:
            replayed = _forecast(costs, measured_so.settings, probe, besides)
            seen[cell] = _both(measured_so, replayed, error)
            of_workers.setdefault(cell[0], []).append(_missed(seen[cell].expected, replayed.expected))
    missed = {workers: float(np.exp(np.mean(np.log(of_workers[workers])))) for workers in sorted(of_workers)}

    def forecast(settings: LoaderSettings) -> Forecast:
        if known := seen.get((settings.workers, settings.prefetch if settings.workers else 0)):
            return replace(known, settings=settings)
        found = _forecast(costs, settings, probe, besides)
        factor = float(np.interp(settings.workers, list(missed), list(missed.values())))
        low, high = factor * found.low / (1 + error), factor * found.high * (1 + error)
        return Forecast(settings, low, factor * found.expected, high)

    grid = [
        forecast(LoaderSettings(workers, prefetch, current.in_order, *startup))
        for workers in (counts if counts is not None else worker_counts(int(np.ceil(costs.cpus))))
        for prefetch in (_PREFETCH if workers else (2,))
        if fits(costs, workers, prefetch)
    ]
    return Forecasts(Forecast(current, measured, measured, measured), own_error, grid)


def as_crowded(costs: LoaderCosts) -> LoaderCosts:
    """The same costs, of which as much waiting for CPUs counts (`crowded`) as it takes for the replay of the run to
    last as long as the run. The replay shares out CPUs evenly and at once; a scheduler lets a thread wait that has just
    become ready, and puts two on one CPU while another is idle."""
    current, measured = _settings_of(costs), _with_outside(costs)

    def missed(share: float) -> float:
        return measured - _time(replace(costs, crowded=share), current, Storage())

    if missed(0.0) <= 0 or missed(1.0) >= 0:
        return replace(costs, crowded=0.0 if missed(0.0) <= 0 else 1.0)
    return replace(costs, crowded=float(brentq(missed, 0.0, 1.0, xtol=_CLOSE)))


def saved_in_any_order(costs: LoaderCosts, workers: int, prefetch: int) -> float:
    """The share of its time that the loop would save if batches were taken as they get ready. 0 where they are, or
    cannot be."""
    if workers < 2 or costs.settings.in_order is not True:
        return 0.0
    settings = LoaderSettings(workers, prefetch, True, *_startup(costs))
    return 1 - _time(costs, replace(settings, in_order=False), Storage()) / _time(costs, settings, Storage())


def saved_by_persisting(costs: LoaderCosts, workers: int, prefetch: int) -> float:
    """The share of its time that the loop would save if so many workers lived from epoch to epoch. 0 where that is not
    known: what it takes to start workers here was seen in a run that has some."""
    epochs = int(costs.first.sum())
    again = epochs - costs.settings.made  # of a loader that there was already
    if not workers or not costs.settings.num_workers or costs.settings.persistent_workers or again < 1:
        return 0.0
    if costs.at_once:
        return 0.0  # one that persists has one iterator for all
    settings = LoaderSettings(workers, prefetch, costs.settings.in_order is not False, *_startup(costs))
    persisting = replace(costs, settings=msgspec.structs.replace(costs.settings, persistent_workers=True))
    replayed, batches = len(_epochs(costs)), _batches(costs)
    anew, kept = (_time(each, settings, Storage()) * batches for each in (costs, persisting))
    # Between any two epochs; the last ones end anyway.
    between = (anew - kept - _stops_s(costs, workers) / replayed) / (replayed - 1)
    return between * again / (anew * epochs / replayed)


def _missed(measured: float, replayed: float) -> float:
    """How many times longer it took than in the replay."""
    return measured / replayed if measured > 0 and replayed > 0 else 1.0


def worker_counts(cpus: int) -> list[int]:
    """0, 1, 2, … up to four workers per CPU, at growing distances where there are many."""
    counts, count = [], 0.0
    while count <= 4 * cpus:
        counts.append(int(count))
        count = count + 1 if count < _EVERY_COUNT_TO else float(np.ceil(count * _GROWTH))
    return counts if counts[-1] == 4 * cpus else [*counts, 4 * cpus]


def split(costs: LoaderCosts) -> Split | None:
    """What the program waited for, by what it would not have waited for: in the replay, one cost after the other is
    taken away. None where it did not wait.
    """
    settings = _settings_of(costs)
    work, machine = _workload(costs, settings.workers), _machine(costs)
    zero, reading = np.zeros(len(costs)), costs.cpu * costs.reading_cpu
    collating = (costs.collating or 0.0) * (costs.blocked + costs.cpu)
    # Where workers do not compute, the program waits for CPUs as much less as these computed on the CPUs.
    computing = float(costs.cpu.sum()) / (costs.cpus * float((costs.wait + costs.gap).sum()))
    rested = _workload(replace(costs, crowded=costs.crowded * max(1 - computing, 0.0)), settings.workers)
    left = costs.cpu - np.maximum(costs.cpu - collating, reading)
    # Workers wait for CPUs when storage has answered, too.
    making = float((costs.blocked + costs.cpu).sum())
    share_read = float((costs.blocked + reading).sum()) / making if making else 0.0
    read = reading + share_read * costs.crowded * costs.delayed
    without = [
        ("storage", {"delay": zero, "transfer": zero, "cpu": work.cpu - read}),
        ("cpu", {"cpu": left, "receive": rested.receive, "consume": rested.consume}),
        ("transfer", {"cpu": zero, "send": zero}),
        ("consumer", {"receive": zero}),
    ]
    stops = _stops_s(costs, settings.workers)
    whole = _stall(costs, work, machine, settings) + stops
    if whole <= 0:
        return None
    order = whole - stops - _stall(costs, work, machine, replace(settings, in_order=False))
    stalls = [whole]
    for _, taken_away in without:
        work = replace(work, **taken_away)
        stalls.append(min(_stall(costs, work, machine, settings) + stops, stalls[-1]))
    shares = {name: (stalls[at] - stalls[at + 1]) / whole for at, (name, _) in enumerate(without)}
    return Split(**shares, startup=stalls[-1] / whole, order=max(order / whole, 0.0))


def _settings_of(costs: LoaderCosts) -> LoaderSettings:
    known = costs.settings
    in_order = known.in_order is not False
    workers, prefetch = known.num_workers, known.prefetch_factor or 2
    return LoaderSettings(workers, prefetch, in_order, costs.start, costs.boot)


def _startup(costs: LoaderCosts, probe: Probe | None = None) -> tuple[float, float]:
    """What starting a worker takes, and what it takes then: as seen, or as usual where it is forked. One that is not
    forked imports what the program imports: at most it takes what the program took until it wanted a batch."""
    for known in (costs, probe.costs if probe else costs):
        if known.settings.num_workers:
            return known.start, known.boot
    is_forked = costs.settings.start_method in ("", "fork")
    return START_S, BOOT_S if is_forked else max(costs.began, BOOT_S)


def _stops_s(costs: LoaderCosts, workers: int, cost: float = 1.0) -> float:
    """What ending the workers takes after each epoch that is replayed. Those that persist end with the program."""
    if not workers or costs.settings.persistent_workers:
        return 0.0
    stop = costs.stop if costs.settings.num_workers else STOP_S * cost
    return stop * max(1.0, workers / costs.cpus) * len(_epochs(costs))


def _both(seen: Forecast, replayed: Forecast, error: float) -> Forecast:
    """What was measured and what the replay says, each weighed by how sure it is, in logarithms: a few turns may be
    less sure than the replay."""
    of_seen = np.log(seen.high / seen.low) / 2
    of_replay = np.log(replayed.high / replayed.low) / 2 + np.log1p(error)
    weight = of_replay**2 / (of_seen**2 + of_replay**2)
    expected = float(np.exp(weight * np.log(seen.expected) + (1 - weight) * np.log(replayed.expected)))
    half = float(np.exp(np.sqrt(weight) * of_seen))
    return replace(seen, low=expected / half, expected=expected, high=expected * half)


@dataclass(frozen=True)
class _Beside:
    """What workers mean for a program that had none: what computes takes `together` times as long beside another busy
    CPU, and to take batches from them and to end them costs the share `cost` of what it does at most."""

    together: float = 1.0
    cost: float = 1.0


def _besides(costs: LoaderCosts, probe: Probe | None, seen: Iterable[Forecast]) -> list[_Beside]:
    """What a run with workers has in its costs, and one without has not seen, so that the truth lies between; but a
    probe of it has: of how much CPUs slow each other, what the times are most like that the probe saw."""
    if costs.settings.num_workers:
        return [_Beside()]
    cells = [each for each in seen if each.settings.workers]
    if probe is None or not cells:
        return [_Beside(1.0, CHEAPEST), _Beside(TOGETHER, 1.0)]
    probed = probe.costs.settings.num_workers
    cost = max(float(probe.costs.receive.mean()) / RECEIVE_S, CHEAPEST) if probed else 1.0
    # Beside as many workers as there are CPUs taking a batch takes longer than beside few.
    possible = {cost, CHEAPEST} if probed >= costs.cpus else {cost}

    def misses(beside: _Beside) -> float:
        replayed = [_forecast(costs, each.settings, probe, [beside]).expected for each in cells]
        return sum(
            np.log(each.expected / time) ** 2 / (np.log(each.high / each.low) ** 2 + _REPLAYED_WELL**2)
            for each, time in zip(cells, replayed, strict=True)
        )

    together = min((_Beside(together, cost) for together in _TOGETHERS), key=misses).together
    return [_Beside(together, each) for each in sorted(possible)]


def _forecast(costs: LoaderCosts, settings: LoaderSettings, probe: Probe | None, besides: list[_Beside]) -> Forecast:
    times = [
        _time(costs, settings, storage, beside)
        for storage in storages(costs, max(settings.workers, 1), probe.costs if probe else None)
        for beside in (besides if settings.workers else besides[:1])
    ]
    slowest = max(times)
    has_seen_one = probe is not None and any(each.workers for each in probe.seen)
    if settings.workers and costs.alone > 1 and not has_seen_one:
        by_one_thread = replace(costs, cpu=costs.cpu * costs.alone, alone=1.0)
        slowest = max(slowest, _forecast(by_one_thread, settings, probe, besides).high)
    return Forecast(settings, min(times), float(np.mean(times)), slowest)


def _time(costs: LoaderCosts, settings: LoaderSettings, storage: Storage, beside: _Beside = _Beside()) -> float:
    """Seconds per batch."""
    work = _workload(costs, settings.workers, beside.cost)
    read, machine = costs.blocked * storage.alone, replace(_machine(costs), together=beside.together)
    if storage.at_once is None:
        work = replace(work, delay=read)
    else:
        work = replace(work, delay=np.zeros(len(costs)), transfer=read / storage.at_once)
        machine = replace(machine, stream=1.0 / storage.at_once)
    total = sum(_length(found, batches) for found, batches in _replays(costs, work, machine, settings))
    return (total + _stops_s(costs, settings.workers, beside.cost)) / _batches(costs)


def _stall(costs: LoaderCosts, work: Workload, machine: Machine, settings: LoaderSettings) -> float:
    return sum(found.stall for found, _ in _replays(costs, work, machine, settings))


def _replays(
    costs: LoaderCosts, work: Workload, machine: Machine, settings: LoaderSettings
) -> Iterator[tuple[Replay, int]]:
    """A replay of each chosen epoch, and how many batches the epoch has."""
    for number, epoch in enumerate(_epochs(costs)):
        there = number > 0 and costs.settings.persistent_workers
        part = Workload(*(getattr(work, each.name)[epoch.at] for each in fields(Workload)))
        yield replay(part, machine, replace(settings, start=0.0, boot=0.0) if there else settings), epoch.batches


@dataclass(frozen=True)
class _Epoch:
    """An epoch that is replayed: its `batches` from `first` on, those `at` in place of all of them."""

    first: int
    batches: int
    at: NDArray[np.intp]


def _epochs(costs: LoaderCosts) -> list[_Epoch]:
    """The epochs of the most typical pace, half of them at most: the first has the program's start in it, and another
    one what else happened to run. Of a long one its beginning, and as many batches spread over the rest."""
    begins = np.flatnonzero(costs.first)
    ends = np.append(begins[1:], len(costs))
    pace = np.add.reduceat(costs.wait + costs.gap, begins) / (ends - begins)
    count = min(max(-(-len(begins) // 2), 2), _MOST_EPOCHS, len(begins))
    typical = np.sort(np.argsort(np.abs(pace - np.median(pace)), kind="stable")[:count])
    most = _MOST_BATCHES // count
    return [
        _Epoch(begin, end - begin, _sampled(begin, end, most))
        for begin, end in zip(begins[typical].tolist(), ends[typical].tolist(), strict=True)
    ]


def _sampled(begin: int, end: int, most: int) -> NDArray[np.intp]:
    if end - begin <= most:
        return np.arange(begin, end)
    half = begin + most // 2
    rest = np.linspace(half, end - 1, most - most // 2).round().astype(np.intp)
    return np.concatenate([np.arange(begin, half), rest])


def _length(found: Replay, batches: int) -> float:
    """What the whole epoch takes, for which some of its batches were replayed: the rest goes on as the second half."""
    seen = len(found.asked)
    if batches == seen:
        return found.end
    half = seen // 2
    return float(found.end + (batches - seen) * (found.end - found.asked[half]) / (seen - half))


def _workload(costs: LoaderCosts, workers: int, cost: float = 1.0) -> Workload:
    zero = np.zeros(len(costs))
    shared = costs.batch_bytes / BYTES_PER_S
    # Where fewer want CPUs there is less to wait for.
    crowded = costs.crowded * min((workers + 1) / (costs.settings.num_workers + 1), 1.0)
    cpu, consume = costs.cpu + crowded * costs.delayed, costs.consume + crowded * (costs.gap - costs.consume)
    if not workers:
        return Workload(
            costs.blocked, zero, np.maximum(cpu - shared, 0) if costs.settings.num_workers else cpu, zero, zero, consume
        )
    receive = costs.receive + crowded * costs.delayed_receive
    if not costs.settings.num_workers:
        cpu, receive = cpu + shared, receive + RECEIVE_S * cost
    return Workload(costs.blocked, zero, cpu, zero + costs.send, receive, consume)


def _machine(costs: LoaderCosts) -> Machine:
    return Machine(costs.cpus, min(costs.consumer_cpus, costs.cpus))


def _with_outside(costs: LoaderCosts) -> float:
    """Seconds per batch of the epochs that are replayed, as they were, to start and to end workers included."""
    workers, replayed, persist = costs.settings.num_workers, _epochs(costs), costs.settings.persistent_workers
    outside = costs.start * workers * (1 if persist else len(replayed)) + _stops_s(costs, workers)
    # The first epoch that is replayed has workers that boot; of the run it need not be the first.
    outside += costs.boot if persist and replayed[0].first else 0.0
    return _per_batch(costs) + outside / _batches(costs)


def _per_batch(costs: LoaderCosts) -> float:
    """Seconds per batch of the epochs that are replayed, as they were, with workers that had been started."""
    whole: Seconds = costs.wait + costs.gap
    replayed = _epochs(costs)
    return sum(float(whole[each.first : each.first + each.batches].sum()) for each in replayed) / _batches(costs)


def _batches(costs: LoaderCosts) -> int:
    return sum(each.batches for each in _epochs(costs))
