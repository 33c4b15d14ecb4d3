"""What the probe of a run has seen of its loaders: how storage and CPUs serve more workers, and how much faster other
settings were than the program's own beside them.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

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
_NS = 1e9

Times = NDArray[np.float64]


@dataclass(frozen=True)
class Seen:
    """How many times longer than with the program's own settings a batch took with these, in turn; the error of the
    logarithm is at most so much, with 95 %."""

    workers: int
    prefetch: int
    ratio: float
    error: float


@dataclass(frozen=True)
class Probe:
    """Of one loader: the costs of its batches with those of the other settings that had most made at once, and what was
    seen of them all. `alone`: they had no turns with the program as it is, but ran by themselves; or in `rounds` of
    whole runs, one after the other: of each, the costs of the program as it is and with the other settings."""

    costs: LoaderCosts
    seen: list[Seen]
    alone: bool = False
    rounds: list[list[LoaderCosts]] = field(default_factory=list)


def probes(run: Run) -> dict[str, Probe]:
    """By loader. Raises RunError where the probe cannot be read."""
    sittings = [[_turned(run, each) for each in sitting] for sitting in load_sittings(run.path)]
    if len(sittings) > 1:
        return _of_rounds([[_known_costs(each) for each in sitting] for sitting in sittings])
    return _of_turns(*sittings) if sittings else {}


def _of_rounds(rounds: list[list[dict[str, LoaderCosts]]]) -> dict[str, Probe]:
    """By loader: of whole runs, one after the other."""
    found = {}
    for loader in rounds[0][-1]:
        ran = [[each[loader] for each in one if loader in each] for one in rounds]
        whole = [each for each in ran if len(each) == len(rounds[0])]
        if whole:
            found[loader] = Probe(max(whole[0][1:], key=_readers), [], True, whole)
    return found


def _of_turns(turned: "list[_Turned]") -> dict[str, Probe]:
    """By loader: of runs that took turns, or of one that was alone."""
    others = [_known_costs(each) for each in turned[1:] or turned]
    courses = [_courses(each) for each in turned] if len(turned) > 1 else []
    found = {}
    for loader in {name for each in others for name in each}:
        seen = [
            each
            for costs, course in zip(others, courses[1:], strict=False)
            if loader in costs
            for each in _seen(costs[loader], course.get(loader), courses[0].get(loader))
        ]
        most = max((costs[loader] for costs in others if loader in costs), key=_readers)
        found[loader] = Probe(most, seen, len(turned) == 1)
    return found


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
class _Course:
    """How a run of a sitting went on with a loader: of each turn its seconds and batches, (T, 2); and for how many
    seconds it had run, of those that it had in turns, when it got each batch [B], in the order in which it got them."""

    turns: Times
    ran: Times


def _courses(turned: _Turned) -> dict[str, _Course]:
    """By loader."""
    batches = turned.run.sql(
        "SELECT loader, start_ns + duration_ns AS received_ns FROM batches WHERE process = ? ORDER BY received_ns",
        [turned.steps.main],
    )
    stops = np.array(turned.stops, dtype=np.int64).reshape(-1, 2)
    begin, end = stops[:-1, 1], stops[1:, 0]
    if not len(begin):
        return {}
    ran = np.append(0, np.cumsum(end - begin))
    warm = begin + ((end - begin) * _COLD).astype(np.int64)
    found = {}
    for loader, part in batches.groupby("loader"):
        received = part["received_ns"].to_numpy()
        count = np.searchsorted(received, end) - np.searchsorted(received, warm)
        # It may go on without this loader; after the last turn it did not go on.
        is_at_it = (warm >= received[0]) & ((end <= received[-1]) | (end == end[-1:]) & (count > 0))
        turns = np.where(is_at_it[:, None], np.stack([(end - warm) / _NS, count], axis=1), 0.0)
        received = received[received <= end[-1]]  # of a last turn that was not stopped nobody knows the end
        turn = np.maximum(np.searchsorted(begin, received, "right") - 1, 0)
        until = ran[turn] + np.minimum(received - begin[turn], (end - begin)[turn])
        found[str(loader)] = _Course(turns, until / _NS)
    return found


def _seen(costs: LoaderCosts, ours: _Course | None, base: _Course | None) -> list[Seen]:
    """By the turns that both had side by side, or by the batches that both got, whichever is surer: the machine is the
    same in the former, and the samples may be in the latter. These hold what was read while a process was stopped,
    for which the turns leave their cold part out: by how much the two differ counts as an error too."""
    if ours is None or base is None:
        return []
    both = [each for each in (_side_by_side(ours, base), _of_the_same_batches(ours, base)) if each is not None]
    tried = [_ratio(each, 1 - (1 - _LEVEL) / len(both)) for each in both]
    if not tried:
        return []
    if len(tried) == 2:
        (by_turns, _), (by_batches, error) = tried
        tried[1] = by_batches, float(np.hypot(error, np.log(by_batches / by_turns)))
    ratio, error = min(tried, key=lambda each: each[1])
    return [Seen(costs.settings.num_workers, costs.settings.prefetch_factor or 0, ratio, error)]


def _side_by_side(ours: _Course, base: _Course) -> Times | None:
    """Seconds and batches of the turns that both had: (2, T, 2), the base last."""
    turns = min(len(ours.turns), len(base.turns))
    both = np.stack([ours.turns[:turns], base.turns[:turns]])
    both = both[:, (both[:, :, 0] > 0).all(axis=0)]
    each_batches = both[:, :, 1]
    is_enough = both.shape[1] >= _FEWEST_TURNS and (each_batches.sum(axis=1, keepdims=True) > each_batches).all()
    return both if is_enough else None


def _of_the_same_batches(ours: _Course, base: _Course) -> Times | None:
    """Seconds and batches of parts of what both got in their turns: (2, parts, 2), the base last."""
    parts = min(_MOST_PARTS, *(int(np.count_nonzero(each.turns[:, 1])) for each in (ours, base)))
    first = max(int(np.count_nonzero(each.ran < 0)) for each in (ours, base))
    last = min(len(ours.ran), len(base.ran)) - 1
    parts = min(parts, (last - first) // _FEWEST_BATCHES)
    if parts < _FEWEST_TURNS:
        return None
    cuts = np.linspace(first, last, parts + 1).astype(np.intp)
    seconds = np.stack([np.diff(each.ran[cuts]) for each in (ours, base)])
    if (seconds <= 0).any():
        return None
    return np.stack([seconds, np.broadcast_to(np.diff(cuts), seconds.shape)], axis=2)


def _ratio(both: Times, level: float) -> tuple[float, float]:
    """How many times longer than the base a batch took; the error of the logarithm at this level, by leaving out one
    part after the other (jackknife)."""
    parts, sums = both.shape[1], both.sum(axis=1)

    def log_ratio(times: Times) -> Times:
        per_batch = np.log(times[..., 0] / times[..., 1])
        return np.asarray(per_batch[0] - per_batch[1])

    left_out = log_ratio(sums[:, None] - both)
    error = np.sqrt((parts - 1) * np.mean((left_out - left_out.mean()) ** 2)) * student.ppf((1 + level) / 2, parts - 1)
    return float(np.exp(log_ratio(sums))), float(error)
