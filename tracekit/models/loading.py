"""What a loader would do with other settings, from what one run saw of it.

The costs of the run's batches are replayed (`loader_replay`) at every setting of a grid, with every storage that the
run may have met (`storage`), CPUs that slow each other or do not, and, where a run without workers computed with
several threads, workers that take as long as it did or, with one thread, many times as long: the truth lies between.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product

import msgspec
import numpy as np
from scipy.special import stdtrit

from tracekit.analysis.loading import LoaderCosts
from tracekit.analysis.probes import Probe, Seen
from tracekit.models.loader_epochs import (
    BOOT_S,
    CHEAPEST,
    START_S,
    TOGETHER,
    Beside,
    Storage,
    as_replayed,
    batches_of,
    drawing_s,
    measured_time,
    receive_s,
    settings_of,
    settled_time,
    starts_of,
    stops_s,
    time_of,
)
from tracekit.models.loader_memory import fits
from tracekit.models.loader_replay import LoaderSettings
from tracekit.models.storage import ProbedStorage, probed_storage, reading_of_the_same, storages

_PREFETCH = (1, 2, 4, 8, 16)
# Beyond this many workers not every number is tried.
_EVERY_COUNT_TO = 8
_GROWTH = 1.25
_TOGETHERS = (1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6)
# What the replay misses of the logarithm of a time at half of the points of `benchmarks/loading.py`.
USUAL_ERROR = 0.045

# By how much the replay misses the ratio of two settings at 19 of 20 points of `benchmarks/loading.py` on 2 virtual
# CPUs (at half of them: 0.035), where the machine wanders by some percent meanwhile. Every range is at least so wide.
MODEL_ERROR = 0.15
# By how much the logarithms of the time of one loop differ from minute to minute, at 19 of 20 points there. So many
# rounds of whole runs tell themselves how sure they are.
APART = 0.15
_FEWEST_ROUNDS = 3
_LEVEL = 0.95

# Computing so many times as long in the first epoch as in others is more than what begins there takes: the data set
# keeps what it has made.
_KEPT = 1.5


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


def forecasts(costs: LoaderCosts, counts: list[int] | None = None, probe: Probe | None = None) -> Forecasts:
    """The time per batch for every number of workers up to 4 per CPU and that of the run (or those given), and prefetch
    factors up to 16 and that of the run.

    What would not fit into memory is left out. `probe`: what a probe has seen of the same loader. What was measured
    in the probe is weighed against the replay; what the replay misses of it, and of the time that the run had, it is
    taken to miss of the others too.
    """
    current, measured = settings_of(costs), measured_time(costs)
    if probe is not None and probe.alone:
        probe = replace(probe, seen=_pace(probe, costs))
    now = current.workers, current.prefetch if current.workers else 0
    seen = {now: Forecast(current, measured, measured, measured, seen=True)}
    startup = _startup(costs, probe)
    apart = storage_apart(costs, probe) if probe else 0.0
    for each in probe.seen if probe else ():
        settings = LoaderSettings(each.workers, each.prefetch or 2, current.in_order, *startup)
        expected, error = measured * each.ratio, float(np.exp(np.hypot(each.error, apart)))
        found = Forecast(settings, expected / error, expected, expected * error, seen=True)
        seen.setdefault((each.workers, each.prefetch), found)
    # What it tells of another storage holds for no workers of the run.
    run = _Known(costs, probe, probed_storage(costs, probe.costs, probe.alone) if probe and not apart else None)
    besides = run.besides(seen.values())
    of_workers = {current.workers: [_missed(measured, time_of(costs, current, Storage()))]}
    # By itself: how much waiting for CPUs counts is taken from the run.
    own_error = abs(time_of(replace(costs, crowded=0.0), current, Storage()) / measured - 1) if measured > 0 else 0.0
    error = max(own_error, MODEL_ERROR)
    for cell, measured_so in list(seen.items()):
        if cell != now:
            replayed = run.forecast(measured_so.settings, besides)
            seen[cell] = _both(measured_so, replayed, error)
            of_workers.setdefault(cell[0], []).append(_missed(seen[cell].expected, replayed.expected))
    missed = {workers: float(np.exp(np.mean(np.log(of_workers[workers])))) for workers in sorted(of_workers)}

    replayed_so: dict[LoaderSettings, Forecast] = {}

    def forecast(settings: LoaderSettings) -> Forecast:
        if known := seen.get((settings.workers, settings.prefetch if settings.workers else 0)):
            return replace(known, settings=settings)
        alike = as_replayed(costs, settings)
        if alike not in replayed_so:
            replayed_so[alike] = run.forecast(alike, besides)
        found = replace(replayed_so[alike], settings=settings)
        factor = float(np.interp(settings.workers, list(missed), list(missed.values())))
        low, high = factor * found.low / (1 + error), factor * found.high * (1 + error)
        return run.beside_device(replace(found, low=low, expected=factor * found.expected, high=high))

    tried = sorted({*worker_counts(int(np.ceil(costs.cpus))), current.workers}) if counts is None else counts
    ahead = sorted({*_PREFETCH, current.prefetch} if current.workers else _PREFETCH)
    grid = [
        forecast(LoaderSettings(workers, prefetch, current.in_order, *startup))
        for workers in tried
        for prefetch in (ahead if workers else (2,))
        if fits(costs, workers, prefetch) and (workers or not costs.settings.num_workers or not costs.settings.prepares)
    ]
    return Forecasts(Forecast(current, measured, measured, measured), own_error, grid)


def storage_apart(costs: LoaderCosts, probe: Probe) -> float:
    """By how much the logarithm of what it takes to make a batch differs between the run and its probe because of
    storage, as it may be for a cache that the run has filled: in the latter as it was, or, where nothing ran so, with
    other settings, if these met a faster one. 0 where that is no more than what minutes differ by anyway."""
    again = probe.base if probe.base is not None else probe.costs
    times = reading_of_the_same(costs, again)
    computing = float(costs.cpu.mean())
    if times is None or computing + min(times) <= 0:
        return 0.0
    before, now = times
    apart = float(np.log((computing + now) / (computing + before)))
    if probe.base is None:
        apart = min(apart, 0.0)
    return apart if abs(apart) > APART else 0.0


def _pace(probe: Probe, costs: LoaderCosts) -> list[Seen]:
    """How many times longer batches took in a probe whose settings had no turns: than as it was in each round, or than
    in the run."""
    times = np.array([[measured_time(each) for each in one] for one in probe.rounds])
    if len(times) >= _FEWEST_ROUNDS and (times > 0).all():
        longer = np.log(times[:, 1:] / times[:, :1])
        errors = longer.std(axis=0, ddof=1) / np.sqrt(len(longer)) * stdtrit(len(longer) - 1, (1 + _LEVEL) / 2)
        found = list(zip(probe.rounds[0][1:], np.exp(longer.mean(axis=0)), errors, strict=True))
    else:
        # An epoch that it has not come to the end of is its start above all.
        time_of_some = settled_time if int(probe.costs.first.sum()) < 2 else measured_time
        took, usual = time_of_some(probe.costs), time_of_some(costs)
        if min(took, usual) <= 0:
            return []
        found = [(probe.costs, took / usual, APART)]
    return [
        Seen(costs.settings.num_workers, costs.settings.prefetch_factor or 0, float(ratio), float(error))
        for costs, ratio, error in found
    ]


def saved_in_any_order(costs: LoaderCosts, workers: int, prefetch: int) -> float:
    """The share of its time that the loop would save if batches were taken as they get ready. 0 where they are, or
    cannot be."""
    if workers < 2 or costs.settings.in_order is not True:
        return 0.0
    settings = LoaderSettings(workers, prefetch, True, *_startup(costs))
    return _saved(costs, *(time_of(costs, replace(settings, in_order=each), Storage()) for each in (True, False)))


def saved_by_persisting(costs: LoaderCosts, workers: int, prefetch: int) -> float:
    """The share of its time that the loop would save if so many workers lived from epoch to epoch. 0 where that is not
    known: what it takes to start workers here was seen in a run that has some; and of an epoch that is left early those
    that persist make all that they were asked for before they begin the next one."""
    epochs = int(costs.first.sum())
    again = epochs - costs.settings.made  # of a loader that there was already
    if not workers or not costs.settings.num_workers or costs.settings.persistent_workers or again < 1:
        return 0.0
    if costs.at_once or costs.settings.left_early or costs.leaves_early:
        return 0.0  # one that persists has one iterator for all
    if costs.settings.told_epochs:
        return 0.0  # by the program, and one that persists never hears of it
    settings = LoaderSettings(workers, prefetch, costs.settings.in_order is not False, *_startup(costs))
    persisting = replace(costs, settings=msgspec.structs.replace(costs.settings, persistent_workers=True))
    ends = stops_s(costs, workers) * starts_of(persisting) / starts_of(costs)  # the last ones end anyway
    kept = time_of(persisting, settings, Storage()) + ends / batches_of(costs)
    return _saved(costs, time_of(costs, settings, Storage()), kept)


def _saved(costs: LoaderCosts, now: float, then: float) -> float:
    """The share that is saved of the time of a batch, which is no less than a GPU works for it; 0 where one may be used
    and nobody saw for how long."""
    return 0.0 if np.isnan(costs.device) else 1 - max(then, costs.device) / max(now, costs.device)


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


def _startup(costs: LoaderCosts, probe: Probe | None = None) -> tuple[float, float, float]:
    """What starting a worker takes, and what it takes then, and longer to send its first batch: as seen, or as usual
    where it is forked. One that is not forked imports what the program imports: at most it takes what the program took
    until it wanted a batch (`_boots`)."""
    for known in (costs, probe.costs if probe else costs):
        if known.settings.num_workers:
            return known.start, known.boot, known.connect
    is_forked = costs.settings.start_method in ("", "fork")
    return START_S, BOOT_S if is_forked else max(costs.began, BOOT_S), 0.0


def _boots(costs: LoaderCosts, probe: Probe | None, settings: LoaderSettings) -> list[LoaderSettings]:
    """The same settings, with as little and as much as a worker may take to boot, where none was seen."""
    is_seen = costs.settings.num_workers or (probe is not None and probe.costs.settings.num_workers)
    if is_seen or not settings.workers or settings.boot <= BOOT_S:
        return [settings]
    return [replace(settings, boot=BOOT_S), settings]


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
class _Known:
    """What a run has seen of a loader, and a probe of it, if there was one."""

    costs: LoaderCosts
    probe: Probe | None
    storage: ProbedStorage | None

    def besides(self, seen: Iterable[Forecast]) -> list[Beside]:
        """What a run with workers has in its costs, and one without has not seen, so that the truth lies between; but
        a probe of it has: of how much CPUs slow each other, what the times are most like that the probe saw."""
        costs, probe = self.costs, self.probe
        if costs.settings.num_workers:
            return [Beside()]
        cells = [each for each in seen if each.settings.workers]
        if probe is None or not cells:
            return [Beside(1.0, CHEAPEST), Beside(TOGETHER, 1.0)]
        probed = probe.costs.settings.num_workers
        taking = float(probe.costs.receive.mean()) - drawing_s(costs)
        cost = max(taking / receive_s(costs), CHEAPEST) if probed else 1.0
        # Beside as many workers as there are CPUs taking a batch takes longer than beside few.
        possible = {cost, CHEAPEST} if probed >= costs.cpus else {cost}

        def misses(beside: Beside) -> float:
            replayed = [self.forecast(each.settings, [beside]).expected for each in cells]
            return sum(
                np.log(each.expected / time) ** 2 / (np.log(each.high / each.low) ** 2 + USUAL_ERROR**2)
                for each, time in zip(cells, replayed, strict=True)
            )

        together = min((Beside(together, cost) for together in _TOGETHERS), key=misses).together
        return [Beside(together, each) for each in sorted(possible)]

    def forecast(self, settings: LoaderSettings, besides: list[Beside]) -> Forecast:
        """What the replay says."""
        costs = self.costs
        possible = [costs]
        slow: list[LoaderCosts] = []
        if costs.settings.num_workers and not settings.workers and costs.faults:
            # Memory that is new to workers may be there already in a program that makes its batches itself.
            possible.append(replace(costs, cpu=costs.cpu * (1 - costs.faults)))
        if settings.workers and not costs.settings.num_workers:
            possible, slow = _in_workers(costs, self.probe)
        storage = storages(costs, max(settings.workers, 1), self.storage)
        beside = besides if settings.workers else besides[:1]
        if settings.workers and not costs.settings.num_workers and costs.settings.left_early:
            # Workers end when they are through with the batch that they are at, which nobody takes any more.
            at_it = float((costs.blocked + costs.cpu).mean())
            slow = slow + [replace(each, stop=at_it) for each in possible + slow]
        if settings.workers > costs.settings.num_workers and costs.cores < costs.cpus:
            slow = [replace(each, cpus=costs.cores) for each in possible + slow] + slow  # a core gives two CPUs less
        boots = _boots(costs, self.probe, settings)
        times, slow_times = (
            [time_of(*each) for each in product(some, boots, storage, beside)] for some in (possible, slow)
        )
        return self.beside_device(Forecast(settings, min(times), float(np.mean(times)), max(times + slow_times)))

    def beside_device(self, found: Forecast) -> Forecast:
        """No batch takes less than a GPU works for it; where nobody saw for how long it does, it may be what the
        program waits for now."""
        device = self.costs.device
        if np.isnan(device):
            return replace(found, high=max(found.high, measured_time(self.costs)))
        return replace(
            found, low=max(found.low, device), expected=max(found.expected, device), high=max(found.high, device)
        )


def _in_workers(costs: LoaderCosts, probe: Probe | None) -> tuple[list[LoaderCosts], list[LoaderCosts]]:
    """What batches that the program made itself would cost in workers, and what they might cost there: the threads that
    had a part may be torch's, which workers do not have, or another library's, which they may have or not: one thread
    then computes what several did. A probe tells."""
    has_seen_one = probe is not None and any(each.workers for each in probe.seen)
    one_thread = max(costs.alone, costs.maker_cpus)
    in_one = replace(costs, cpu=costs.cpu * one_thread, maker_cpus=1.0)
    if probe is not None and probe.costs.settings.num_workers:
        costs = _as_computed_in(probe.costs, costs, one_thread)
    if has_seen_one:
        return [costs], []
    kept = _computed_first(costs)
    anew = kept if kept > _KEPT else 1.0
    slowest = replace(in_one, cpu=in_one.cpu * anew)
    if costs.alone == 1:
        return [costs], [slowest] if one_thread * anew > 1 else []
    return [replace(costs, maker_cpus=1.0)], [costs, slowest]


def _as_computed_in(workers: LoaderCosts, costs: LoaderCosts, one_thread: float) -> LoaderCosts:
    """The same batches with the threads that computed in `workers`, as much slower as these were, as far as it is for
    want of threads: at most `one_thread` takes so many times as long."""
    usual = float(costs.cpu.mean())
    longer = float(workers.cpu.mean()) / usual if usual > 0 else 1.0
    most = max(one_thread / workers.maker_cpus, 1.0)
    return replace(costs, cpu=costs.cpu * min(max(longer, 1.0), most), maker_cpus=workers.maker_cpus)


def _ending_late(costs: LoaderCosts) -> LoaderCosts:
    """The same batches where each epoch is left while a worker makes one more: torch waits for it to be made."""
    return replace(costs, stop=float((costs.cpu + costs.blocked).mean()))


def _computed_first(costs: LoaderCosts) -> float:
    """How many times longer batches were computed in the first epoch than in those after it. A data set that keeps
    what it has made, in memory, does so in workers for as long as they live."""
    begins = np.flatnonzero(costs.first)
    if len(begins) < 2 or begins[1] < 2:
        return 1.0
    usual = float(costs.cpu[begins[1] :].mean())  # of the first epoch not the first batch, in which all begins
    return float(costs.cpu[1 : begins[1]].mean()) / usual if usual > 0 else 1.0
