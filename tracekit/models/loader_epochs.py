"""The epochs of a run, replayed (`loader_replay`) with some settings of its loader: what they take, and how long the
program waits.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from tracekit.analysis.handover import times_of
from tracekit.analysis.loading import LoaderCosts, Seconds
from tracekit.models.loader_replay import LoaderSettings, Machine, Replay, Workload, replay

# So many batches are replayed, of so many epochs, and at both ends as many more as workers may be ahead: the rest goes
# on as they did between, when workers were as far ahead as they come and there was something left to hand out.
_MOST_BATCHES = 400
# The share of the times between batches that may be too rare for those that stand for the rest, some 50 to 200, to have
# as many of them: what these take longer than the others counts apart.
_RARE = 0.02
# With more ahead than this, or than two for each worker, the replay of a long epoch is as if there were so many: more
# would take minutes, for what no loader gains.
_MOST_AHEAD = 256
_MOST_EPOCHS = 4
# What taking a batch from a worker, starting one and ending one cost where the run had no workers: as seen with small
# tensors and `fork` on Linux x86-64, taking one of a single tensor. Taking and ending may cost the share CHEAPEST of
# it: on some days such a machine took a batch in 0.45 to 0.6 ms, on another in 1.6. A worker puts its batches into
# memory that is made anew and shared, which takes 3.0 to 3.4 ms for 4 MiB; the same without workers 0.1.
RECEIVE_S = 0.0017
BYTES_PER_S = 1.35e9
# What is no tensor goes through a pipe, which the program reads while it waits: 1 MiB of a numpy array took 4.7 ms, 8
# took 29, where tensors took 2.8 and 3.8.
PICKLED_BYTES_PER_S = 0.28e9
START_S = 0.013
BOOT_S = 0.017
STOP_S = 0.011
CHEAPEST = 0.27
# How many times longer computing takes beside another busy CPU, at most: as seen on 2 virtual CPUs, where "computing,
# as much as the program" of `benchmarks/loading.py` and the image sample took 1.3 times what was predicted without it.
# Some of that was what taking a batch takes, which was told too short then: less may do, and a probe tells.
TOGETHER = 1.3
# Fewer batches, or turns of workers, do not tell how fast they go.
_FEWEST_SETTLED = 12
# The share of the waiting for CPUs that counts is known to within this.
_CLOSE = 0.02


@dataclass(frozen=True)
class Beside:
    """What workers mean for a program that had none: what computes takes `together` times as long beside another busy
    CPU, and to take batches from them and to end them costs the share `cost` of what it does at most."""

    together: float = 1.0
    cost: float = 1.0


@dataclass(frozen=True)
class Storage:
    """Some batches are read `at_once` as fast as one; more share what these got (None: any number). A batch that is
    read alone takes the share `alone` of what the run saw."""

    at_once: float | None = None
    alone: float = 1.0


def as_crowded(costs: LoaderCosts) -> LoaderCosts:
    """The same costs, of which as much waiting for CPUs counts (`crowded`) as it takes for the replay of the run to
    last as long as the run. The replay shares out CPUs evenly and at once; a scheduler lets a thread wait that has just
    become ready, and puts two on one CPU while another is idle."""
    current, measured = settings_of(costs), measured_time(costs)

    def missed(share: float) -> float:
        return measured - time_of(replace(costs, crowded=share), current, Storage())

    if missed(0.0) <= 0:
        return replace(costs, crowded=0.0)
    if missed(1.0) >= 0:
        return replace(costs, crowded=1.0)
    return replace(costs, crowded=float(brentq(missed, 0.0, 1.0, xtol=_CLOSE)))


def settings_of(costs: LoaderCosts) -> LoaderSettings:
    """Those of the run."""
    known = costs.settings
    in_order = known.in_order is not False
    anew = costs.start, costs.boot, costs.connect
    return LoaderSettings(known.num_workers, known.prefetch_factor or 2, in_order, *anew)


def stops_s(costs: LoaderCosts, workers: int, cost: float = 1.0) -> float:
    """What ending the workers takes after each epoch that is replayed. Those that persist end with the program."""
    if not workers or costs.settings.persistent_workers:
        return 0.0
    stop = costs.stop + (0.0 if costs.settings.num_workers else STOP_S * cost)
    return stop * max(1.0, workers / costs.cpus) * len(typical_epochs(costs))


def time_of(costs: LoaderCosts, settings: LoaderSettings, storage: Storage, beside: Beside = Beside()) -> float:
    """Seconds per batch."""
    replays = _replays(costs, *_with_storage(costs, settings, storage, beside), settings)
    total = sum(each.times * each.length for each in replays)
    return (total + stops_s(costs, settings.workers, beside.cost)) / batches_of(costs)


def slowed(costs: LoaderCosts, settings: LoaderSettings, at_once: float) -> float:
    """How many times longer reading takes with these settings where storage reads so many `at_once`."""
    work, machine = _with_storage(costs, settings, Storage(at_once), Beside())
    epochs = typical_epochs(costs, _ahead(settings))
    alone = at_once * sum(float(epoch.part_of(work)[0].transfer.sum()) for epoch in epochs)
    reading = sum(each.times * each.replay.reading for each in _replays(costs, work, machine, settings))
    return reading / alone if alone else 1.0


def _with_storage(
    costs: LoaderCosts, settings: LoaderSettings, storage: Storage, beside: Beside
) -> tuple[Workload, Machine]:
    work = workload(costs, settings.workers, beside.cost)
    read, machine = costs.blocked * storage.alone, replace(machine_of(costs), together=beside.together)
    if storage.at_once is None:
        return replace(work, delay=read), machine
    work = replace(work, delay=np.zeros(len(costs)), transfer=read / storage.at_once)
    return work, replace(machine, stream=1.0 / storage.at_once)


def stall(costs: LoaderCosts, work: Workload, machine: Machine, settings: LoaderSettings) -> float:
    """For how long the program waits in the epochs that are replayed, s."""
    return sum(each.times * each.stall for each in _replays(costs, work, machine, settings))


def computing(costs: LoaderCosts, work: Workload, machine: Machine, settings: LoaderSettings) -> float:
    """For how long it computes in the epochs that are replayed, s."""
    return sum(each.times * (each.length - each.stall) for each in _replays(costs, work, machine, settings))


def starts_of(costs: LoaderCosts) -> float:
    """How often workers are started over the epochs that are replayed: for each, or, where they persist, as often as in
    so many epochs of the run, which has one start or more in all of them."""
    replayed, epochs = len(typical_epochs(costs)), int(costs.first.sum())
    return replayed * _makings(costs) / epochs if costs.settings.persistent_workers else replayed


def _makings(costs: LoaderCosts) -> int:
    """How many loaders had all the epochs of the run."""
    return min(max(costs.settings.made, 1), int(costs.first.sum()))


@dataclass(frozen=True)
class _Replayed:
    """A replay of an epoch, or of some of its `batches`, that counts so many times. `half` is the first of those that
    stand for the rest, which goes on as they do until the last indices are handed out, `ahead` of the end: from then on
    workers come to their end, and leave the CPUs to the program. What is `rare` between batches takes so long, s, and
    is not in the replay."""

    times: float
    replay: Replay
    batches: int
    half: int
    ahead: int
    rare: float

    @property
    def length(self) -> float:
        """What the whole epoch takes, s."""
        if not self._more:
            return self.replay.end
        asked = self.replay.asked
        return self.replay.end + self._more * float(asked[-self.ahead - 1] - asked[self.half]) + self.rare

    @property
    def stall(self) -> float:
        """For how long the program waits in it, s."""
        waits = self.replay.received - self.replay.asked
        return self.replay.stall + self._more * float(waits[self.half : -self.ahead - 1].sum())

    @property
    def _more(self) -> float:
        """How many times the batches that stand for the rest come once more."""
        left = self.batches - len(self.replay.asked)
        return left / (len(self.replay.asked) - self.ahead - 1 - self.half) if left else 0.0


def _replays(costs: LoaderCosts, work: Workload, machine: Machine, settings: LoaderSettings) -> Iterator[_Replayed]:
    """Replays of each chosen epoch. Of workers that persist the first one counts with their start as often as they are
    started, and for the rest without."""
    starts, ahead = starts_of(costs), _ahead(settings)
    for number, epoch in enumerate(typical_epochs(costs, ahead)):
        is_whole = epoch.batches == len(epoch.at) or not settings.workers
        tried = settings if is_whole else replace(settings, prefetch=ahead // settings.workers)
        already = replace(tried, start=0.0, boot=0.0, connect=0.0)
        part, rare = epoch.part_of(work)
        anew = 1.0 if not costs.settings.persistent_workers else 0.0 if number else starts
        for times, how in ((anew, tried), (1 - anew, already)):
            if times:
                found = replay(part, machine, how)
                yield _Replayed(times, found, epoch.batches, epoch.half, ahead, rare)


@dataclass(frozen=True)
class _Epoch:
    """An epoch that is replayed: its `batches` from `first` on, those `at` in place of all of them, of which so many
    from `half` on are `spread` over what does not belong to its beginning, from `rest` on: the same ones whatever the
    settings are, or the luckiest would seem the best."""

    first: int
    batches: int
    at: NDArray[np.intp]
    half: int
    spread: int
    rest: int

    def part_of(self, work: Workload) -> tuple[Workload, float]:
        """What the batches `at` cost, those that stand for the rest as much as it in the mean; and what goes by between
        all of the epoch beyond what is not rare, s."""
        if len(self.at) == self.batches:
            return Workload(*(getattr(work, each.name)[self.at] for each in fields(Workload))), 0.0
        most = float(np.quantile(work.consume[self.rest : self.first + self.batches], 1 - _RARE))
        usual = replace(work, consume=np.minimum(work.consume, most))
        costs = []
        for values in (getattr(usual, each.name) for each in fields(Workload)):
            some, whole = values[self.at], values[self.rest : self.first + self.batches]
            standing = some[self.half : self.half + self.spread]
            if standing.any():
                some[self.half : self.half + self.spread] *= whole.mean() / standing.mean()
            costs.append(some)
        all_of_them = slice(self.first, self.first + self.batches)
        return Workload(*costs), float((work.consume - usual.consume)[all_of_them].sum())


def typical_epochs(costs: LoaderCosts, ahead: int = 0) -> list[_Epoch]:
    """The epochs of the most typical pace, half of them at most: the first has the program's start in it, and another
    one what else happened to run. Of a long one its beginning, as many batches spread over the rest, and with either as
    many more as workers may be `ahead`."""
    begins = np.flatnonzero(costs.first)
    ends = np.append(begins[1:], len(costs))
    pace = np.add.reduceat(costs.wait + costs.gap, begins) / (ends - begins)
    count = min(max(-(-len(begins) // 2), 2), _MOST_EPOCHS, len(begins))
    apart = np.round(np.abs(pace - np.median(pace)) / max(float(np.median(pace)), 1e-12), 6)
    typical = np.sort(np.lexsort((pace, apart))[:count])  # of those as far apart the faster ones: they start nothing
    half = _MOST_BATCHES // count // 2
    return [
        _Epoch(begin, end - begin, _sampled(begin, end, half, ahead), half + ahead, half + 1, begin + half)
        for begin, end in zip(begins[typical].tolist(), ends[typical].tolist(), strict=True)
    ]


def as_replayed(costs: LoaderCosts, settings: LoaderSettings) -> LoaderSettings:
    """The settings that are replayed in place of these: in long epochs no more ahead than `_MOST_AHEAD`."""
    ahead = _ahead(settings)
    if not settings.workers or any(each.batches == len(each.at) for each in typical_epochs(costs, ahead)):
        return settings
    return replace(settings, prefetch=ahead // settings.workers)


def _ahead(settings: LoaderSettings) -> int:
    """How many batches are handed out before the program has got one of them, as far as they are replayed."""
    return min(settings.prefetch, max(_MOST_AHEAD // max(settings.workers, 1), 2)) * settings.workers


def _sampled(begin: int, end: int, half: int, ahead: int) -> NDArray[np.intp]:
    """So many of the first, and one more spread over the rest, and `ahead` more of the first and of the last; all where
    there are not more."""
    if end - begin <= 2 * (half + ahead) + 1:
        return np.arange(begin, end)
    rest = np.linspace(begin + half, end - 1, half + 1).round().astype(np.intp)
    return np.concatenate([np.arange(begin, begin + half + ahead), rest, np.arange(end - ahead, end)])


def workload(costs: LoaderCosts, workers: int, cost: float = 1.0) -> Workload:
    """What each batch of the run costs with so many workers, s; `cost` is that of `Beside`."""
    zero = np.zeros(len(costs))
    shared = costs.batch_bytes / BYTES_PER_S
    still = _still_waiting(costs, workers)
    cpu = costs.cpu + costs.crowded * still.makers * costs.delayed
    consume = costs.consume + costs.crowded * still.program * (costs.gap - costs.consume)
    had_workers = costs.settings.num_workers > 0
    if not workers:
        cpu = np.maximum(cpu - shared, 0) if had_workers else cpu
        return Workload(costs.blocked, zero, cpu, zero, zero if had_workers else costs.receive, consume)
    receive = costs.receive + costs.crowded * still.program * costs.delayed_receive
    if not had_workers:
        cpu, receive = cpu + shared, zero + drawing_s(costs) + receive_s(costs) * cost
    return Workload(costs.blocked, zero, cpu, np.full(len(costs), costs.send), receive, consume)


@dataclass(frozen=True)
class _StillWaiting:
    """Which part of the waiting for CPUs of the run there is: that of those that make batches, and the program's."""

    makers: float = 1.0
    program: float = 1.0


def _still_waiting(costs: LoaderCosts, workers: int) -> _StillWaiting:
    """What waits does so beside all that wants CPUs then, its own team included: with fewer workers than the run had
    beside fewer, which are the busier, as there is as much to make; a batch that the program makes, not beside it.
    What others on the machine want is not known."""
    had, whole = costs.settings.num_workers, float((costs.wait + costs.gap).sum())
    if workers >= had or whole <= 0:
        return _StillWaiting()
    team, own = costs.maker_cpus, costs.consumer_cpus
    computing = float(costs.gap.sum()) / whole
    making = min(float((costs.cpu + costs.delayed).sum()) / whole, had)
    left = min(making, workers)

    def beside_a_maker(busy: float, number: int) -> float:
        return team * (1 + busy * (number - 1) / number) + own * computing

    makers = (beside_a_maker(left, workers) if workers else team) / beside_a_maker(making, had)
    wanted = own + team * making
    return _StillWaiting(makers, (own + team * left) / wanted if wanted > 0 else 1.0)


def drawing_s(costs: LoaderCosts) -> float:
    """What the program, which had no workers, was at for a batch beside making it, s, and is with workers: it draws
    indices. Where it pins batches that is not told from pinning, which a thread of its own does then; so nothing."""
    return 0.0 if costs.settings.pin_memory else float(costs.receive.mean())


def receive_s(costs: LoaderCosts) -> float:
    """What taking a batch from a worker costs at most where the run had none, s. Where batches are pinned a thread of
    its own reads what is pickled."""
    pickled = 0 if costs.settings.pin_memory else costs.settings.pickled
    return RECEIVE_S * times_of(costs.settings.storages) + pickled / PICKLED_BYTES_PER_S


def are_first(costs: LoaderCosts, workers: int) -> Seconds:
    """1 for each batch that would be the first one of a worker, whatever it is; 0 for the others."""
    begins = np.flatnonzero(costs.first)
    begins = begins[:1] if costs.settings.persistent_workers and _makings(costs) < len(begins) else begins
    found = np.zeros(len(costs))
    found[np.minimum(begins[:, None] + np.arange(workers), len(costs) - 1)] = 1.0
    return found


def machine_of(costs: LoaderCosts) -> Machine:
    """The one that the run had, whose storage answers everybody as fast as it answered the run."""
    return Machine(
        costs.cpus, min(costs.consumer_cpus, costs.cpus), maker_cpus=min(costs.maker_cpus, costs.cpus),
        preferred=costs.preferred,
    )  # fmt: skip


def measured_time(costs: LoaderCosts) -> float:
    """Seconds per batch of the epochs that are replayed, as they were, to start and to end workers included."""
    return (_of_typical(costs, costs.wait + costs.gap) + _outside(costs)) / batches_of(costs)


def measured_wait(costs: LoaderCosts) -> float:
    """For how long the program waited in the epochs that are replayed, to start and to end workers included, s."""
    return _of_typical(costs, costs.wait) + _outside(costs)


def _outside(costs: LoaderCosts) -> float:
    """What starting and ending workers takes in the epochs that are replayed, and is in no wait of theirs, s."""
    workers, replayed = costs.settings.num_workers, typical_epochs(costs)
    outside = costs.start * workers * starts_of(costs) + stops_s(costs, workers)
    if costs.settings.persistent_workers:
        # Workers boot as often as they are started; those of the typical epochs that waited for it hold it already.
        most_wait = 2 * _makings(costs) > int(costs.first.sum())
        held = len(replayed) if most_wait else replayed[0].first == 0
        outside += (costs.boot * costs.boot_shared + costs.connect) * (starts_of(costs) - held)
    return outside


def settled_time(costs: LoaderCosts) -> float:
    """Seconds per batch as they were once the workers were at it: but for the first ones of each epoch, which they made
    at once, one each. 0 where too few are left."""
    begins = np.flatnonzero(costs.first)
    turn = np.arange(len(costs)) - np.repeat(begins, np.diff(np.append(begins, len(costs))))
    later = (costs.wait + costs.gap)[turn >= max(costs.settings.num_workers, 1)]
    return float(later.mean()) if len(later) >= _FEWEST_SETTLED else 0.0


def _of_typical(costs: LoaderCosts, times: Seconds) -> float:
    """The sum of the times of the batches [B] of the epochs that are replayed, s."""
    return sum(float(times[each.first : each.first + each.batches].sum()) for each in typical_epochs(costs))


def waited_s(costs: LoaderCosts) -> float:
    """For how long the program waited in all epochs, to start and to end workers included, s."""
    workers, epochs = costs.settings.num_workers, int(costs.first.sum())
    starts = _makings(costs) if costs.settings.persistent_workers else epochs
    stops = stops_s(costs, workers) / max(len(typical_epochs(costs)), 1)
    return float(costs.wait.sum()) + costs.start * workers * starts + stops * epochs


def usual_wait(costs: LoaderCosts) -> float:
    """The share of its time for which the program waited in the epochs that are replayed, as a multiple of that in all
    of them."""
    wait, gap, waited = measured_wait(costs), _of_typical(costs, costs.gap), waited_s(costs)
    whole = waited + float(costs.gap.sum())
    return wait / (wait + gap) * whole / waited if wait + gap > 0 and waited > 0 else 1.0


def batches_of(costs: LoaderCosts) -> int:
    """How many the epochs that are replayed have."""
    return sum(each.batches for each in typical_epochs(costs))
