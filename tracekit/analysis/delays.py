"""Delays: who made the others wait, and in which phase.

At each meeting the last one to come keeps the others waiting. It is late by what it took longer than they did since
the last meeting, phase by phase, and by what it was kept from its CPU: noise, which is no rank's doing. A phase is
named where a rank took longer for it than the others did, in all steps or in some that recur, by more than chance
and by more than in runs without a delay. Three kinds are looked at by themselves: being blocked (asleep, or waiting for
storage), which hardly ever happens by chance; computing, which on a shared machine often takes longer on one rank, and
in one start of a process longer than in the next; and being kept from the CPU. What a rank computes longer by in every
phase alike, as on a slower CPU, is no phase's doing.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tracekit.analysis.meetings import PHASES, Floats, Meetings, Times
from tracekit.analysis.recurring import STRETCHES, Beyond, Recurring, at_random, in_stretches, in_turns
from tracekit.analysis.resampling import interval
from tracekit.analysis.slower_ranks import Throughout, throughout

# What a rank is late by: a phase of its own, others on its CPU, or all that it computes.
NOISE, THROUGHOUT = "noise", "all phases"
ALWAYS = "always"
_REASONS = [*PHASES, NOISE, THROUGHOUT]
# It is named where it is longer by at least this share of a step: more than runs without a delay come to
# (`benchmarks/delays.py`).
NOTABLE = {"blocked": 0.01, "computing": 0.015, "throughout": 0.05, "kept": 0.05}
# As long as the process lives it may compute longer, by up to this share of a step, for where its memory lies: a
# backward pass of four linear layers, alone on a CPU (AMD EPYC, Zen 1), took the same 17 % longer in all steps of 1
# start in 12, and of two ranks without a delay one was slower by 3.0 to 4.5 % of a step (lower bound) in 5 of 26 runs.
# Of a rank that is so in the usual step, or for a while, it is undecided whether that is its doing. By another phase,
# which writes less, none was slower.
_BY_ITS_START = 0.045
# Here operators compute. Threads that share one wait for each other where they have too few CPUs, spinning (at work) or
# asleep (blocked), for as long as they lie so on the CPUs. Of 2 ranks without a delay on 2 CPUs one was at work longer,
# by 6 and 8 % of a step at least, in stretches of steps, in its backward pass, in 2 of 5 runs with 2 threads; with 4,
# both were blocked there now and then, by 2 %. In the mean over all steps none was late.
OF_OPERATORS = ("forward", "backward", "optimizer")
# A step may be so much shorter than the usual one, and has as many meetings.
_SLACK = 0.1
# Of fewer steps nobody is named: one of them may be all that was long.
_FEWEST = 10
# And where the others waited for at least this part of what it is longer by: who itself waits for a rank, in a way that
# nobody sees, is as late as that one, and comes last by accident.
_WAITED_FOR = 0.1


@dataclass(frozen=True)
class Delay:
    """A phase of a rank in which it kept others waiting, by being `blocked` or by `computing`; all phases, where it
    computes longer `throughout`; or the noise by which it was `kept` from its CPU. `share_of_waiting` of all ranks'
    waiting, `cost_s` in rank-seconds. `step_share`: by how much longer it made a step than that of the others, at
    least, expected, at most (95 %), on average over all steps. `persistence`: "always" by the mean over all of them,
    which a few long ones may be; else in "turns", in "stretches" of steps, or at "random". `undecided`: it may be how
    this process has started, and another rank in another run."""

    rank: int
    phase: str
    by: str
    share_of_waiting: float
    cost_s: float
    step_share: tuple[float, float, float]
    persistence: str
    undecided: bool = False

    @property
    def always(self) -> bool:
        return self.persistence == ALWAYS


@dataclass(frozen=True)
class Waiting:
    """The waiting of a group: `waited_s` rank-seconds over `meetings` meetings, of which `kept_share` because the last
    one was kept from its CPU and `explained` of which is known why. `delays`: what is to be named, the costliest first,
    what follows from another one, and what is undecided, last; nothing, where too few steps were followed on all ranks
    (`is_told`)."""

    waited_s: float
    meetings: int
    kept_share: float
    explained: float
    delays: list[Delay]
    is_told: bool


def find_delays(meetings: Meetings, step_ns: float, ends: Times | None = None, *, is_crowded: bool = False) -> Waiting:
    """Whose delays the ranks of a group waited for. `step_ns` is the usual step; `ends` of all steps, Unix ns;
    `is_crowded`: the threads that share an operator have too few CPUs."""
    known = meetings.followed
    blame = _blamed(meetings, known)
    waited = float(meetings.waited[:, meetings.seen].sum())
    explained = float(meetings.waited[:, known].sum())
    longer, is_told = _longer(meetings, step_ns, ends, is_crowded)
    costs = _costs(blame, len(meetings.ranks), longer)
    delays = [] if not explained else [
        Delay(
            meetings.ranks[each.rank], _REASONS[each.reason], each.by, cost / explained, cost / 1e9, each.share,
            each.persistence, each.undecided,
        )
        for each in longer
        if (cost := float(costs[each.rank, each.reason])) > max(_WAITED_FOR * each.share[1] * each.steps * step_ns, 0)
    ]  # fmt: skip
    return Waiting(
        waited_s=waited / 1e9,
        meetings=meetings.entered.shape[1],
        kept_share=float(blame.kept.sum() / explained) if explained else 0.0,
        explained=explained / waited if waited else 0.0,
        delays=_in_order(delays),
        is_told=is_told,
    )


def _in_order(delays: list[Delay]) -> list[Delay]:
    """The costliest first, of what is certain. Who is late by a phase goes on while the communication of all others
    is under way, whose threads keep it from its CPU where these are few: that follows from being late, and comes
    behind."""
    late = {each.rank for each in delays if each.by != "kept" and not each.undecided}
    return sorted(delays, key=lambda each: (each.undecided, each.by == "kept" and each.rank in late, -each.cost_s))


@dataclass(frozen=True)
class _Longer:
    """By how much longer a rank took for a reason (their places) than the others, as a share of a step: in all steps,
    in the `usual` one, and in those that recur (noise and CPUs know of none). A phase is named where that is more than
    what it has in common with the others, `beyond`, as CPUs slow phases unlike; what is `common` to all of them is told
    with what is longer throughout."""

    by: str
    rank: int
    reason: int
    share: tuple[float, float, float]
    recurring: Sequence[Recurring] = ()
    usual: float = 0.0
    persistence: str = ALWAYS
    undecided: bool = False
    beyond: float = 0.0
    common: Throughout | None = None
    factor: float = 1.0
    steps: int = 0  # that this is known of

    def notable(self) -> "_Longer | None":
        """As it is to be named, if it is."""
        least = max(NOTABLE[self.by], self.beyond)
        if self.share[0] > least:  # by the usual step, or by a few long ones
            return replace(self, undecided=self.usual > self.share[1] / 2 and self._may_be_its_start(self.share[0]))
        found = next((each for each in self.recurring if each.longer[0] > max(least, each.beyond)), None)
        if found is None:
            return None
        unsure = found.how == STRETCHES and self._may_be_its_start(found.longer[0])
        return replace(self, share=found.overall, persistence=found.how, undecided=unsure)

    def _may_be_its_start(self, share: float) -> bool:
        """A share of the steps that it makes longer, of what they take without it."""
        return self.by == "computing" and _REASONS[self.reason] == "backward" and share <= _BY_ITS_START * (1 - share)


def _costs(blame: "_Blame", ranks: int, named: list[_Longer]) -> Floats:
    """What each rank cost the others by each reason (rank, reason), ns."""
    alike = np.zeros_like(blame.phases)
    for each in named:
        if each.factor > 1:
            its = blame.last == each.rank
            common, longer = blame.computed[its] * (1 - 1 / each.factor), blame.longer[its]
            part = np.divide(common, longer, out=np.zeros_like(longer), where=longer > 0)
            alike[its] = blame.phases[its] * part.clip(0, 1)
    phases = np.stack([np.bincount(blame.last, costs, ranks) for costs in (blame.phases - alike).T], axis=1)
    kept = np.bincount(blame.last, blame.kept, ranks)
    return np.column_stack([phases, kept, np.bincount(blame.last, alike.sum(axis=1), ranks)])


def _longer(meetings: Meetings, step_ns: float, ends: Times | None, is_crowded: bool) -> tuple[list[_Longer], bool]:
    """What ranks took longer for than the others, of one phase of a rank the larger kind; and whether enough steps are
    known to tell."""
    found: dict[tuple[int, int], _Longer] = {}
    unnamed: list[_Longer] = []
    is_told = False
    for each in _than_the_others(meetings, step_ns, ends, is_crowded):
        is_told = True
        named = each.notable()
        if named is None:
            unnamed.append(each)
            continue
        before = found.get((named.rank, named.reason))
        if before is None or before.share[1] < named.share[1]:
            found[named.rank, named.reason] = named
    at_work = {each.rank for each in found.values() if each.by == "computing"}
    for each in unnamed:
        # Its phases are longer by too little in common, and none by much more: all of it together is to be told.
        if each.common and each.rank not in at_work and each.common.whole[0] > NOTABLE["throughout"]:
            found[each.rank, each.reason] = replace(each, share=each.common.whole, factor=each.common.of_whole)
    return list(found.values()), is_told


def most_by_chance(meetings: Meetings, step_ns: float) -> dict[str, float]:
    """By kind, the largest share of a step by which a rank took longer for a reason, at least: what `NOTABLE` is to
    exceed in runs without a delay."""
    found = dict.fromkeys(NOTABLE, 0.0)
    for each in _than_the_others(meetings, step_ns, None, is_crowded=False):
        whole = each.common.whole[0] if each.common else 0.0
        found[each.by] = max(found[each.by], each.share[0], whole, *(some.longer[0] for some in each.recurring))
    return found


def _than_the_others(meetings: Meetings, step_ns: float, ends: Times | None, is_crowded: bool) -> Iterator[_Longer]:
    """By how much longer each rank took for each reason than the others did on average, in shares of the usual step, in
    the steps that were followed. On the way to a meeting that is not in every step: in the mean of those that it goes
    through."""
    ranks = len(meetings.ranks)
    steps, place = np.unique(_steps(meetings, step_ns, ends), return_inverse=True)
    passed = np.diff(steps, prepend=steps[0] - 1)
    kinds: dict[str, Callable[[int], Floats]] = {
        "blocked": lambda rank: meetings.blocked[rank],
        "computing": lambda rank: meetings.own[rank] - meetings.blocked[rank],
        "kept": lambda rank: meetings.kept[rank][:, None],
    }
    if not all(np.nansum(kept) > 0 for kept in meetings.kept):
        del kinds["kept"]  # not even for an instant: where some host does not tell; then that is blocked, by chance
    for by, times in kinds.items():
        whole = np.asarray(sum(_by_step(times(rank), place) for rank in range(ranks)))
        known = np.flatnonzero(~np.isnan(whole).any(axis=1))
        if len(known) < _FEWEST:
            continue
        step = step_ns * passed[known, None]
        for rank in range(ranks):
            own = _by_step(times(rank), place)[known] / step
            others = (whole[known] / step - own) / (ranks - 1)
            if by == "kept":
                of_kept = interval((own - others)[:, 0], ranks)
                yield _Longer(by, rank, _REASONS.index(NOISE), of_kept, steps=len(known))
                continue
            common = throughout(own, others, ranks) if by == "computing" else None
            factor = common.factor if common else 1.0
            if common:
                reason = _REASONS.index(THROUGHOUT)
                yield _Longer("throughout", rank, reason, common.share, common=common, factor=factor, steps=len(known))
            for reason, series in enumerate((own - factor * others).T):
                beyond = (factor - 1) * float(others[:, reason].mean())
                alike = _alike(own - factor * others, others, reason, ranks) if by == "computing" else None
                recurring = [in_turns(series, steps[known], ranks)]
                if not (is_crowded and PHASES[reason] in OF_OPERATORS):
                    recurring.append(in_stretches(series, steps[known], ranks, alike))
                    if by == "blocked" and "kept" in kinds:
                        recurring.append(at_random(series, NOTABLE[by], ranks))
                usual = float(np.median(series))
                yield _Longer(
                    by, rank, reason, interval(series, ranks), recurring, usual, beyond=beyond, steps=len(known)
                )


def _alike(longer: Floats, others: Floats, reason: int, ranks: int) -> Beyond:
    """What a rank that is `longer` than the `others` (step, reason) computes longer in some steps for that reason, as
    it does for all: others on the machine slow a CPU for a while, and every phase of those steps."""

    def beyond(chosen: NDArray[np.bool_]) -> tuple[Floats | float, float]:
        common = throughout(others[chosen] + longer[chosen], others[chosen], ranks)
        alike = ((common.factor if common else 1.0) - 1) * others[chosen, reason]
        return alike, float(alike.mean())

    return beyond


def causes(meetings: Meetings) -> list[str]:
    """By meeting, the phase that made its last one late, or `NOISE`; "" where that is not known."""
    known = meetings.followed
    blame = _blamed(meetings, known)
    found = [""] * len(known)
    costs = np.column_stack([blame.phases, blame.kept])
    is_told = costs.max(axis=1, initial=0) > 0
    for at, place in zip(np.flatnonzero(known)[is_told], costs.argmax(axis=1)[is_told], strict=True):
        found[at] = _REASONS[place]
    return found


@dataclass(frozen=True)
class _Blame:
    """Of each known meeting: the place of the rank that came `last` (known), and what it cost the others, ns, by its
    `phases` (known, phase) and by being `kept` from its CPU (known); for how long it `computed` (known, phase), and by
    how much its phases were `longer` than those of the others on average (known, phase)."""

    last: NDArray[np.intp]
    phases: Floats
    kept: Floats
    computed: Floats
    longer: Floats


def _blamed(meetings: Meetings, known: NDArray[np.bool_]) -> _Blame:
    last, at = meetings.last[known], np.flatnonzero(known)
    own, kept = meetings.own[last, at], meetings.kept[last, at]
    ranks = len(meetings.ranks)
    than_others = (own * ranks - sum(meetings.own[other, at] for other in range(ranks))) / (ranks - 1)
    computed = own - meetings.blocked[last, at]
    blame = _Blame(last, np.zeros_like(own), np.zeros_like(kept), computed, than_others)
    waiting = meetings.waited
    for other in range(len(meetings.ranks)):
        longer = np.maximum(own - meetings.own[other, at], 0.0)
        longer_kept = np.maximum(kept - meetings.kept[other, at], 0.0)
        whole = longer.sum(axis=1) + longer_kept
        waited = waiting[other, at].astype(np.float64)
        # What was waited beyond that has another reason, as what a slow link or clocks make of it.
        part = np.minimum(np.divide(waited, whole, out=np.zeros_like(whole), where=whole > 0), 1.0)
        blame.phases[:] += longer * part[:, None]
        blame.kept[:] += longer_kept * part
    return blame


def _steps(meetings: Meetings, step_ns: float, ends: Times | None) -> NDArray[np.int64]:
    """The number of the step of each meeting: by when the steps have ended, if most meetings are among them, as they
    are not where the job was started again; else as if a group did as much together in every step."""
    left, sequence = meetings.left[0], meetings.sequence
    if ends is not None:
        number = np.searchsorted(ends, left)
        if ((number > 0) & (number < len(ends))).mean() > 0.5:
            return np.asarray(number)
    after = np.searchsorted(left, left + step_ns * (1 - _SLACK))
    is_there = after < len(left)
    done = sequence[after[is_there]] - sequence[is_there]
    return np.asarray((sequence - sequence[0]) // (max(int(np.median(done)), 1) if len(done) else 1))


def _by_step(times: Floats, place: NDArray[np.intp]) -> Floats:
    """The times (K, reason) of a rank in each step, given the `place` of that of each meeting; NaN where one lacks a
    meeting. One may have more, as behind what a rank saves or evaluates."""
    counts = np.bincount(place)
    whole = np.zeros((len(counts), times.shape[1]))
    np.add.at(whole, place, times)
    whole[counts < np.bincount(counts).argmax()] = np.nan
    return whole
