"""Delays: who made the others wait, and in which phase.

At each meeting the last one to come keeps the others waiting. It is late by what it took longer than they did since
the last meeting, phase by phase, and by what it was kept from its CPU: noise, which is no rank's doing. A phase is
named where a rank took longer for it than the others did, in all steps or in those of its turn, by more than chance
and by more than in runs without a delay. Three kinds are looked at by themselves: being blocked (asleep, or waiting for
storage), which hardly ever happens by chance; computing, which on a shared machine often takes longer on one rank; and
being kept from the CPU. What a rank computes longer by in every phase alike, as on a slower CPU, is no phase's doing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.analysis.meetings import PHASES, Floats, Meetings, Times

# What a rank is late by: a phase of its own, others on its CPU, or all that it computes.
NOISE, THROUGHOUT = "noise", "all phases"
_REASONS = [*PHASES, NOISE, THROUGHOUT]
# It is named where it is longer by at least this share of a step: more than runs without a delay come to
# (`benchmarks/delays.py`).
NOTABLE = {"blocked": 0.01, "computing": 0.015, "throughout": 0.05, "kept": 0.05}
_IN_TURNS = {"blocked", "computing"}
# Steps that follow each other have much in common: so many blocks of them are drawn anew, so many times.
_BLOCKS, _RESAMPLES, _LEVEL = 20, 1000, 0.025
# A step may be so much shorter than the usual one, and has as many meetings.
_SLACK = 0.1
# Of fewer steps nobody is named: one of them may be all that was long.
_FEWEST = 10
# Ranks that take turns come round after as many steps as there are ranks; of fewer steps of a turn nothing is told.
_FEWEST_OF_A_TURN = 16


@dataclass(frozen=True)
class Delay:
    """A phase of a rank in which it kept others waiting, by being `blocked` or by `computing`; all phases, where it
    computes longer `throughout`; or the noise by which it was `kept` from its CPU. `share_of_waiting` of all ranks'
    waiting, `cost_s` in rank-seconds. `step_share`: by how much longer it made a step than that of the others, at
    least, expected, at most (95 %), on average over all steps. `always`: by the mean over all of them, which a few long
    ones may be, and not in turns."""

    rank: int
    phase: str
    by: str
    share_of_waiting: float
    cost_s: float
    step_share: tuple[float, float, float]
    always: bool


@dataclass(frozen=True)
class Waiting:
    """The waiting of a group: `waited_s` rank-seconds over `meetings` meetings, of which `kept_share` because the last
    one was kept from its CPU and `explained` of which is known why. `delays`: what is to be named, the costliest first;
    nothing, where too few steps were followed on all ranks (`is_told`)."""

    waited_s: float
    meetings: int
    kept_share: float
    explained: float
    delays: list[Delay]
    is_told: bool


def find_delays(meetings: Meetings, step_ns: float, ends: Times | None = None) -> Waiting:
    """Whose delays the ranks of a group waited for. `step_ns` is the usual step; `ends` of all steps, Unix ns."""
    known = meetings.followed
    blame = _blamed(meetings, known)
    waited = float(meetings.waited[:, meetings.seen].sum())
    explained = float(meetings.waited[:, known].sum())
    longer, is_told = _longer(meetings, step_ns, ends)
    costs = _costs(blame, len(meetings.ranks), {(rank, reason) for _, rank, reason, _, _ in longer})
    delays = [] if not explained else [
        Delay(meetings.ranks[rank], _REASONS[reason], by, cost / explained, cost / 1e9, share, always)
        for by, rank, reason, share, always in longer
        if (cost := float(costs[rank, reason])) > 0
    ]  # fmt: skip
    return Waiting(
        waited_s=waited / 1e9,
        meetings=meetings.entered.shape[1],
        kept_share=float(blame.kept.sum() / explained) if explained else 0.0,
        explained=explained / waited if waited else 0.0,
        delays=sorted(delays, key=lambda delay: -delay.cost_s),
        is_told=is_told,
    )


def _costs(blame: "_Blame", ranks: int, named: set[tuple[int, int]]) -> Floats:
    """What each rank cost the others by each reason (rank, reason), ns: throughout, by the phases that are not
    `named`."""
    phases = np.stack([np.bincount(blame.last, costs, ranks) for costs in blame.phases.T], axis=1)
    unnamed = [[(rank, phase) not in named for phase in range(len(PHASES))] for rank in range(ranks)]
    throughout = np.where(unnamed, phases, 0.0).sum(axis=1)
    return np.column_stack([phases, np.bincount(blame.last, blame.kept, ranks), throughout])


def _longer(
    meetings: Meetings, step_ns: float, ends: Times | None
) -> tuple[list[tuple[str, int, int, tuple[float, float, float], bool]], bool]:
    """What ranks took longer for than the others: how, the places of rank and reason, by what share of all steps, and
    whether in all of them. Of one phase of a rank the larger kind. And whether enough steps are known to tell."""
    found: dict[tuple[int, int], tuple[str, int, int, tuple[float, float, float], bool]] = {}
    ranks, is_told = len(meetings.ranks), False
    for by, rank, reason, series, turn in _than_the_others(meetings, step_ns, ends):
        share, always, is_told = _interval(series), True, True
        if share[0] <= NOTABLE[by]:
            of_turn, always = _of_its_turn(by, series, turn, ranks), False
            share = (of_turn[0] / ranks, of_turn[1] / ranks, of_turn[2] / ranks)
            if of_turn[0] <= NOTABLE[by]:
                continue
        before = found.get((rank, reason))
        if before is None or before[3][1] < share[1]:
            found[rank, reason] = by, rank, reason, share, always
    return list(found.values()), is_told


def _of_its_turn(by: str, series: Floats, turn: NDArray[np.int64], ranks: int) -> tuple[float, float, float]:
    """The interval of a rank's series in the steps of the turn in which it is the largest: the largest of so many is
    the luckiest, so every other step of a turn chooses, and those between tell. Noise and CPUs know of no turns."""
    counts = np.bincount(turn, minlength=ranks)
    if by not in _IN_TURNS or counts.min() < _FEWEST_OF_A_TURN:
        return 0.0, 0.0, 0.0
    place = np.empty(len(turn), dtype=np.int64)  # of a step among those of its turn
    place[np.argsort(turn, kind="stable")] = np.concatenate([np.arange(count) for count in counts])
    chooses = place % 2 == 0
    means = np.bincount(turn[chooses], series[chooses], ranks) / np.bincount(turn[chooses], minlength=ranks)
    return _interval(series[~chooses & (turn == means.argmax())])


def most_by_chance(meetings: Meetings, step_ns: float) -> dict[str, float]:
    """By kind, the largest share of a step by which a rank took longer for a reason, at least: what `NOTABLE` is to
    exceed in runs without a delay."""
    found = dict.fromkeys(NOTABLE, -np.inf)
    for by, _, _, series, turn in _than_the_others(meetings, step_ns, None):
        least = max(_interval(series)[0], _of_its_turn(by, series, turn, len(meetings.ranks))[0])
        found[by] = max(found[by], least)
    return found


def _than_the_others(
    meetings: Meetings, step_ns: float, ends: Times | None
) -> Iterator[tuple[str, int, int, Floats, NDArray[np.int64]]]:
    """By kind, and place of a rank and a reason: by how much longer that took than the others' on average, as a share
    of the usual step, in each of the steps that were followed; and whose turn each step would be, if ranks took turns.
    On the way to a meeting that is not in every step: in the mean of those that it goes through. What a rank computes
    longer in every phase alike is told by itself, and taken off its phases."""
    ranks = len(meetings.ranks)
    steps, place = np.unique(_steps(meetings, step_ns, ends), return_inverse=True)
    passed = np.diff(steps, prepend=steps[0] - 1)
    kinds: dict[str, Callable[[int], Floats]] = {
        "blocked": lambda rank: meetings.blocked[rank],
        "computing": lambda rank: meetings.own[rank] - meetings.blocked[rank],
        "kept": lambda rank: meetings.kept[rank][:, None],
    }
    if not all(np.nansum(kept) > 0 for kept in meetings.kept):
        del kinds["kept"]  # not even for an instant: where some host does not tell
    for by, times in kinds.items():
        whole = np.asarray(sum(_by_step(times(rank), place) for rank in range(ranks)))
        known = np.flatnonzero(~np.isnan(whole).any(axis=1))
        if len(known) < _FEWEST:
            continue
        turn = steps[known] % ranks
        for rank in range(ranks):
            own = _by_step(times(rank), place)[known]
            others = (whole[known] - own) / (ranks - 1)
            step = step_ns * passed[known, None]
            if by == "kept":
                yield by, rank, _REASONS.index(NOISE), ((own - others) / step)[:, 0], turn
                continue
            factor, least = _common(own, others) if by == "computing" else (1.0, 0)
            for reason, series in enumerate(((own - factor * others) / step).T):
                yield by, rank, reason, series, turn
            if factor > 1:
                usual = others.mean(axis=0)
                alike = (own - others)[:, least] * usual.sum() / usual[least]
                yield "throughout", rank, _REASONS.index(THROUGHOUT), alike / step[:, 0], turn


def _common(own: Floats, others: Floats) -> tuple[float, int]:
    """By what factor a rank's phases, (step, phase), are longer than the others' in common, at most: that of the phase
    that is certain to be the least so, and its place. A single phase has nothing in common with others."""
    drawn = _drawn_anew(np.stack([own, others], axis=1))
    ratios = np.divide(drawn[:, 0], drawn[:, 1], out=np.full_like(drawn[:, 0], np.inf), where=drawn[:, 1] > 0)
    most = np.quantile(ratios, 1 - _LEVEL, axis=0, method="higher")
    least = int(most.argmin())
    return (max(float(most[least]), 1.0) if np.isfinite(most).sum() > 1 else 1.0), least


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
    `phases` (known, phase) and by being `kept` from its CPU (known)."""

    last: NDArray[np.intp]
    phases: Floats
    kept: Floats


def _blamed(meetings: Meetings, known: NDArray[np.bool_]) -> _Blame:
    last, at = meetings.last[known], np.flatnonzero(known)
    own, kept = meetings.own[last, at], meetings.kept[last, at]
    blame = _Blame(last, np.zeros_like(own), np.zeros_like(kept))
    waiting = meetings.waited
    for other in range(len(meetings.ranks)):
        longer = np.maximum(own - meetings.own[other, at], 0.0)
        longer_kept = np.maximum(kept - meetings.kept[other, at], 0.0)
        whole = longer.sum(axis=1) + longer_kept
        waited = waiting[other, at].astype(np.float64)
        part = np.divide(waited, whole, out=np.zeros_like(whole), where=whole > 0)
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


def _interval(values: Floats) -> tuple[float, float, float]:
    """The mean over steps and its 95 % interval, by blocks of steps drawn anew; rare large values leave it wide."""
    if not len(values):
        return 0.0, 0.0, 0.0
    low, high = np.quantile(_drawn_anew(values), [_LEVEL, 1 - _LEVEL])
    return float(low), float(values.mean()), float(high)


def _drawn_anew(values: Floats) -> Floats:
    """Means over the steps (the first axis), of blocks of them drawn anew."""
    blocks = np.array([block.mean(axis=0) for block in np.array_split(values, min(_BLOCKS, len(values)))])
    picks = np.random.default_rng(0).integers(len(blocks), size=(_RESAMPLES, len(blocks)))
    return np.asarray(blocks[picks].mean(axis=1))
