"""What the probe of a run has seen of its loaders: how storage and CPUs serve more workers, and how much faster other
settings were than the program's own beside them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtri, stdtrit

from tracekit.analysis.loading import LoaderCosts, Stop, loader_costs
from tracekit.analysis.steps import Steps, find_steps
from tracekit.run.folder import PROBE
from tracekit.run.probes import Probed, load_sittings
from tracekit.run.reader import Run, open_run

# The first part of a turn is left out: what was asked of storage came while the process was stopped, and the caches are
# another one's. A worker has a read under way, of the many that a turn takes.
_COLD = 0.25
_FEWEST_TURNS = 3
# The batches that both got are cut into so many parts at most, none shorter than a turn: the machine changes from turn
# to turn.
_MOST_PARTS = 10
_FEWEST_BATCHES = 4  # of a part
_LEVEL = 0.95
# Of the two ways, by turns or by batches, the surer one counts. Where one is surer by no more than chance has it (the F
# test, 99 %), it may seem so only: then each is told at the level that makes it 95 % for both (Bonferroni). Drawn from
# normal errors of 3 to 10 parts, 95 to 96 % of what one sitting tells so hold, and 95 to 98 % of what two do.
_CLEARLY = 0.99
_LEVEL_OF_EITHER = 1 - (1 - _LEVEL) / 2
_LOOKS = 2  # of a probe in turns at most; of whole runs there are more rounds
_SUREST = 1e-6  # of a logarithm: parts that are all alike tell no error
_NS = 1e9

Times = NDArray[np.float64]


@dataclass(frozen=True)
class Seen:
    """How many times longer than with the program's own settings a batch took with these, in turn; the error of the
    logarithm is at most so much, with 95 %: so many times its `standard` error, which has so much `freedom`, as this
    `level` takes."""

    workers: int
    prefetch: int
    ratio: float
    error: float
    standard: float = math.nan
    freedom: float = math.inf
    level: float = _LEVEL


@dataclass(frozen=True)
class Probe:
    """Of one loader: the costs of its batches with those of the other settings that had most made at once, and what was
    seen of them all. `alone`: they had no turns with the program as it is, but ran by themselves; or in `rounds` of
    whole runs, one after the other: of each, the costs of the program as it is and with the other settings. `base`: the
    costs of the program as it is, where it ran so in the probe."""

    costs: LoaderCosts
    seen: list[Seen]
    alone: bool = False
    rounds: list[list[LoaderCosts]] = field(default_factory=list)
    base: LoaderCosts | None = None


def probes(run: Run) -> dict[str, Probe]:
    """By loader. Raises RunError where the probe cannot be read."""
    sittings = [[_turned(run, each) for each in sitting] for sitting in load_sittings(run.path)]
    if len(sittings) > _LOOKS and not any(each.stops for sitting in sittings for each in sitting):
        return _of_rounds([[_known_costs(each) for each in sitting] for sitting in sittings])
    return _together([_of_turns(each) for each in sittings])


def _of_rounds(rounds: list[list[dict[str, LoaderCosts]]]) -> dict[str, Probe]:
    """By loader: of whole runs, one after the other."""
    found = {}
    for loader in rounds[0][-1]:
        ran = [[each[loader] for each in one if loader in each] for one in rounds]
        whole = [each for each in ran if len(each) == len(rounds[0])]
        if whole:
            found[loader] = Probe(max(whole[0][1:], key=_readers), [], True, whole, whole[0][0])
    return found


def _of_turns(turned: "list[_Turned]") -> dict[str, Probe]:
    """By loader: of runs that took turns, or of one that was alone."""
    ran = [{each.costs.loader: each for each in _ran(one)} for one in turned]
    base, others = ran[0], ran[1:] or ran
    found = {}
    for loader in {name for each in others for name in each}:
        theirs = [each[loader] for each in others if loader in each]
        seen = [_seen(each, base[loader]) for each in theirs] if len(ran) > 1 and loader in base else []
        most = max((each.costs for each in theirs), key=_readers)
        as_it_is = base[loader].costs if len(ran) > 1 and loader in base else None
        found[loader] = Probe(most, [each for each in seen if each is not None], len(ran) == 1, base=as_it_is)
    return found


def _together(sittings: list[dict[str, Probe]]) -> dict[str, Probe]:
    """What was seen of each loader in all of them, and of what most had made at once."""
    found = {}
    for loader in dict.fromkeys(name for each in sittings for name in each):
        theirs = [each[loader] for each in sittings if loader in each]
        by_cell: dict[tuple[int, int], list[Seen]] = {}
        for seen in (seen for each in theirs for seen in each.seen):
            by_cell.setdefault((seen.workers, seen.prefetch), []).append(seen)
        most = max((each.costs for each in theirs), key=_readers)
        bases = [each.base for each in theirs if each.base is not None]
        found[loader] = Probe(
            most, [_mean(each) for each in by_cell.values()], all(each.alone for each in theirs),
            base=max(bases, key=len, default=None),
        )  # fmt: skip
    return found


def _mean(seen: list[Seen]) -> Seen:
    """What several sittings have seen of the same settings, each with the weight of its parts: errors of so few are too
    unsure to weigh by. Where they differ by more than chance has it (5 %), also by how much (by the moments of any
    weights: DerSimonian and Kacker, Random-effects model for meta-analysis of clinical trials, 2007)."""
    if len(seen) == 1:
        return seen[0]
    logs = np.log([each.ratio for each in seen])
    variances = np.array([max(each.standard, _SUREST) for each in seen]) ** 2
    parts = np.array([min(each.freedom, _MOST_PARTS) + 1 for each in seen])
    weights = parts / parts.sum()
    mean, others = float(weights @ logs), len(seen) - 1
    apart, by_chance = float(weights @ (logs - mean) ** 2), float((weights * (1 - weights)) @ variances)
    if apart > by_chance * fdtri(others, _freedom(weights * (1 - weights) * variances, seen), _LEVEL):
        variances = variances + (apart - by_chance) / (1 - weights @ weights)
    shares = weights**2 * variances
    standard, freedom = float(np.sqrt(shares.sum())), _freedom(shares, seen)
    level = max(each.level for each in seen)
    error = standard * float(stdtrit(freedom, (1 + level) / 2))
    return Seen(seen[0].workers, seen[0].prefetch, float(np.exp(mean)), error, standard, freedom, level)


def _freedom(shares: Times, seen: list[Seen]) -> float:
    """Of a sum of variances, each with its share (Welch and Satterthwaite)."""
    return float(shares.sum() ** 2 / (shares**2 / [each.freedom for each in seen]).sum())


def _readers(costs: LoaderCosts) -> int:
    return costs.readers


@dataclass(frozen=True)
class _Turned:
    """A run of a sitting, and when it was stopped, Unix ns."""

    run: Run
    steps: Steps
    stops: list[Stop]


def _known_costs(turned: _Turned) -> dict[str, LoaderCosts]:
    """By loader, of those whose making was seen."""
    return {each.loader: each for each in loader_costs(turned.run, turned.steps, turned.stops) if each.known}


def _turned(run: Run, probed: Probed) -> _Turned:
    found = open_run(run.path / PROBE / probed.run)
    offset = found.manifest.clock_offset_ns
    stops = [(stopped + offset, resumed + offset) for stopped, resumed in probed.stops]
    return _Turned(found, find_steps(found), stops)


@dataclass(frozen=True)
class _Ran:
    """How a run of a sitting went on with a loader: of each turn its seconds and batches, (T, 2), and how many epochs
    `began`, [T]; and for how many seconds it had run, of those that it had in turns, `when` it got each batch, [B], in
    the order in which it got them, of which the `firsts` began an epoch. What was read for it while it was stopped is
    at most the share `unpaid` of all that it read."""

    costs: LoaderCosts
    turns: Times
    began: Times
    when: Times
    firsts: NDArray[np.intp]
    unpaid: float


def _ran(turned: _Turned) -> list[_Ran]:
    """For each loader whose batches were seen to be made."""
    batches = turned.run.sql(
        "SELECT loader, epoch, start_ns + duration_ns AS received_ns FROM batches WHERE process = ? "
        "ORDER BY received_ns",
        [turned.steps.main],
    )
    stops = np.array(turned.stops, dtype=np.int64).reshape(-1, 2)
    begin, end = stops[:-1, 1], stops[1:, 0]
    lasts = end - begin
    ran = np.append(0, np.cumsum(lasts))
    warm = begin + (lasts * _COLD).astype(np.int64)
    found = []
    for costs in _known_costs(turned).values():
        if not len(begin):
            found.append(_Ran(costs, np.empty((0, 2)), np.empty(0), np.empty(0), np.empty(0, np.intp), 0.0))
            continue
        own = batches[batches["loader"] == costs.loader]
        received = own["received_ns"].to_numpy()
        firsts = np.flatnonzero(np.diff(own["epoch"].to_numpy(), prepend=-1))
        began = np.diff(np.searchsorted(received[firsts], np.append(begin, end[-1]))).astype(np.float64)
        # It may go on without this loader; after the last turn it did not go on.
        has_some = np.searchsorted(received, end) > np.searchsorted(received, warm)
        is_at_it = (warm >= received[0]) & ((end <= received[-1]) | (end == end[-1:]) & has_some)
        received = received[received <= end[-1]]  # of a last turn that was not stopped nobody knows the end
        turn = np.maximum(np.searchsorted(begin, received, "right") - 1, 0)
        when = ran[turn] + np.minimum(received - begin[turn], lasts[turn])
        batches_at = _count_of(when)
        count = batches_at(ran[1:]) - batches_at(ran[:-1] + (warm - begin))
        turns = np.where(is_at_it[:, None], np.stack([(end - warm) / _NS, count], axis=1), 0.0)
        # A batch that is being read as it is stopped is half read, about.
        unpaid = float(costs.blocked.mean()) / 2 / (ran[-1] / len(begin) / _NS)
        found.append(_Ran(costs, turns, began, when / _NS, firsts, unpaid))
    return found


def _count_of(when: Times) -> Callable[[Times], Times]:
    """How many batches had come at some times, given when each did: a turn has a dozen, and to count none that is on
    its way would be an error of some percent. The one that was never there takes as long as usual."""
    if not len(when):
        return np.zeros_like
    came, total = np.unique(when, return_counts=True)
    usual = (came[-1] - came[0]) / max(len(when) - 1, 1)
    times, counts = np.append(came, came[-1] + usual), np.append(total.cumsum(), len(when) + 1)
    return lambda at: np.interp(at, times, counts)


@dataclass(frozen=True)
class _Parts:
    """What is compared: seconds and batches of P parts, (2, P, 2), the base last; and how many epochs began in each,
    more than in the part of the base where that is another one, [P]."""

    both: Times
    began: Times
    missing: float = 0.0  # how many epochs more than began are usual in so many batches


def _seen(ours: _Ran, base: _Ran) -> Seen | None:
    """By the turns that both had side by side, or by the batches that both got, whichever is surer: the machine is the
    same in the former, and the samples may be in the latter. These hold what was read while a process was stopped,
    for which the turns leave their cold part out: by how much the two differ counts as an error too, as far as what was
    read so can account for it."""
    both = [each for each in (_side_by_side(ours, base), _of_the_same_batches(ours, base)) if each is not None]
    settings = ours.costs.settings
    cell = settings.num_workers, settings.prefetch_factor or 0
    tried = _by_ways(cell, both)
    if len(tried) == 2:
        by_turns, by_batches = tried
        apart = min(abs(np.log(by_batches.ratio / by_turns.ratio)), max(ours.unpaid, base.unpaid))
        tried[1] = _widened(by_batches, apart)
    return min(tried, key=attrgetter("error"), default=None)


def _by_ways(cell: tuple[int, int], ways: list[_Parts]) -> list[Seen]:
    """Each way, as unsure as it is where the surer of two counts."""
    found = [_ratio(cell, each, _LEVEL) for each in ways]
    if len(found) < 2 or _is_clear(*found):
        return found
    return [_ratio(cell, each, _LEVEL_OF_EITHER) for each in ways]


def _is_clear(one: Seen, other: Seen) -> bool:
    """Whether one is surer than the other by more than chance has it."""
    surer, less = sorted([one, other], key=attrgetter("standard"))
    return less.standard**2 > fdtri(less.freedom, surer.freedom, _CLEARLY) * max(surer.standard, _SUREST) ** 2


def _side_by_side(ours: _Ran, base: _Ran) -> _Parts | None:
    """The turns that both had."""
    turns = min(len(ours.turns), len(base.turns))
    both, began = (np.stack([getattr(each, name)[:turns] for each in (ours, base)]) for name in ("turns", "began"))
    had = (both[:, :, 0] > 0).all(axis=0)
    both = both[:, had]
    each_batches = both[:, :, 1]
    is_enough = both.shape[1] >= _FEWEST_TURNS and (each_batches.sum(axis=1, keepdims=True) > each_batches).all()
    return _Parts(both, (began[0] - began[1])[had]) if is_enough else None


def _of_the_same_batches(ours: _Ran, base: _Ran) -> _Parts | None:
    """Parts of what both got in their turns."""
    parts = min(_MOST_PARTS, *(int(np.count_nonzero(each.turns[:, 1])) for each in (ours, base)))
    first = max(int(np.count_nonzero(each.when < 0)) for each in (ours, base))
    last = min(len(ours.when), len(base.when)) - 1
    parts = min(parts, (last - first) // _FEWEST_BATCHES)
    if parts < _FEWEST_TURNS:
        return None
    cuts = np.linspace(first, last, parts + 1).astype(np.intp)
    seconds = np.stack([np.diff(each.when[cuts]) for each in (ours, base)])
    if (seconds <= 0).any():
        return None
    began = np.diff(np.searchsorted(base.firsts, cuts, "right")).astype(np.float64)
    missing = (last - first) / float(np.diff(base.firsts).mean()) - began.sum() if len(base.firsts) > 1 else 0.0
    return _Parts(np.stack([seconds, np.broadcast_to(np.diff(cuts), seconds.shape)], axis=2), began, missing)


def _ratio(cell: tuple[int, int], parts: _Parts, level: float) -> Seen:
    """How many times longer than the base a batch took; the error of the logarithm at this level, by how much each part
    moves it (the linear jackknife). That parts in which an epoch begins, and workers start, differ is no error; it
    counts as often as is usual, give or take one."""
    both, began = parts.both, parts.began - parts.began.mean()
    ours, base = both.sum(axis=1)
    shares = both / both.sum(axis=1, keepdims=True)
    moves = np.diff(np.diff(shares, axis=2)[:, :, 0], axis=0)[0]
    left, of_one = len(moves) - 1, 0.0
    if began.any() and left > _FEWEST_TURNS:
        of_one = (began @ moves) / (began @ began)
        moves, left = moves - began * of_one, left - 1
    standard = float(np.sqrt((left + 1) / left * (moves @ moves)))
    ratio = ours[0] / ours[1] * base[1] / base[0] * np.exp(of_one * parts.missing)
    found = Seen(*cell, float(ratio), standard * float(stdtrit(left, (1 + level) / 2)), standard, left, level)
    return _widened(found, of_one)


def _widened(seen: Seen, more: float) -> Seen:
    """The error is not that of chance alone."""
    error = float(np.hypot(seen.error, more))
    standard = seen.standard * error / seen.error if seen.error > 0 else error
    return replace(seen, error=error, standard=standard)
