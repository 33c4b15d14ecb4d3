"""Delays: who made the others wait, and in which phase.

At each meeting the last one to come keeps the others waiting. It is late by what it took longer than they did since the
last meeting, phase by phase; what it was kept from its CPU is told apart, as that is no rank's doing. A rank's phase is
named where it took longer than the others' did, in all steps or in those of its turn, by more than chance and by more
than it does in runs without a delay. Two kinds of it are looked at by themselves: being blocked (asleep, or waiting for
storage), which hardly ever happens by chance, and computing, which on a shared machine often takes longer on one rank.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.analysis.meetings import PHASES, Floats, Meetings

# A phase is named where it is longer by at least this share of a step: more than runs without a delay come to
# (`benchmarks/delays.py`).
NOTABLE = {"blocked": 0.01, "computing": 0.02}
# Steps that follow each other have much in common: so many blocks of them are drawn anew, so many times.
_BLOCKS, _RESAMPLES, _LEVEL = 20, 1000, 0.025
# A step may be so much shorter than the usual one, and has as many meetings.
_SLACK = 0.1
# Ranks that take turns come round after as many steps as there are ranks; of fewer steps of a turn nothing is told.
_FEWEST_OF_A_TURN = 16


@dataclass(frozen=True)
class Delay:
    """A phase of a rank in which it kept others waiting, by being `blocked` or by `computing`. `share_of_waiting` of
    all ranks' waiting, `cost_s` in rank-seconds. `step_share`: by how much longer it made a step than that of the
    others, at least, expected, at most (95 %), on average over all steps. `always`: in all of them, not in turns."""

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
    one was kept from its CPU and `explained` of which is known why. `delays`: what is to be named, the costliest first.
    """

    waited_s: float
    meetings: int
    kept_share: float
    explained: float
    delays: list[Delay]


def find_delays(meetings: Meetings, step_ns: float) -> Waiting:
    """Whose delays the ranks of a group waited for. `step_ns` is the usual step."""
    known = meetings.followed
    blamed, kept = _blamed(meetings, known)
    waited = float(meetings.waited[:, 1:].sum())
    explained = float(meetings.waited[:, known].sum())
    delays = [] if not explained else [
        Delay(meetings.ranks[rank], PHASES[phase], by, cost / explained, cost / 1e9, share, always)
        for by, rank, phase, share, always in _longer(meetings, step_ns)
        if (cost := float(blamed[rank, :, phase].sum())) > 0
    ]  # fmt: skip
    return Waiting(
        waited_s=waited / 1e9,
        meetings=meetings.entered.shape[1],
        kept_share=float(kept.sum() / explained) if explained else 0.0,
        explained=explained / waited if waited else 0.0,
        delays=sorted(delays, key=lambda delay: -delay.cost_s),
    )


def _longer(meetings: Meetings, step_ns: float) -> list[tuple[str, int, int, tuple[float, float, float], bool]]:
    """What ranks took longer for than the others: how, the places of rank and phase, by what share of all steps, and
    whether in all of them. Of one phase of a rank the larger kind."""
    found: dict[tuple[int, int], tuple[str, int, int, tuple[float, float, float], bool]] = {}
    ranks = len(meetings.ranks)
    for by, times in _kinds(meetings):
        longer, turn = _than_the_others(times, meetings, step_ns)
        for rank in range(ranks):
            for phase in range(len(PHASES)):
                series = longer[rank, :, phase]
                share, always = _interval(series), True
                if share[0] <= NOTABLE[by]:
                    of_turn, always = _of_its_turn(series, turn, ranks), False
                    share = (of_turn[0] / ranks, of_turn[1] / ranks, of_turn[2] / ranks)
                    if of_turn[0] <= NOTABLE[by]:
                        continue
                before = found.get((rank, phase))
                if before is None or before[3][1] < share[1]:
                    found[rank, phase] = by, rank, phase, share, always
    return list(found.values())


def _of_its_turn(series: Floats, turn: NDArray[np.int64], ranks: int) -> tuple[float, float, float]:
    """The interval of a rank's series in the steps of the turn in which it is the largest."""
    turns = [series[turn == each] for each in range(ranks)]
    if min(len(each) for each in turns) < _FEWEST_OF_A_TURN:
        return 0.0, 0.0, 0.0
    return _interval(max(turns, key=lambda each: float(each.mean())))


def most_by_chance(meetings: Meetings, step_ns: float) -> dict[str, float]:
    """By kind, the largest share of a step by which a phase of a rank was longer, at least: what `NOTABLE` is to exceed
    in runs without a delay."""
    found = {}
    for by, times in _kinds(meetings):
        longer, turn = _than_the_others(times, meetings, step_ns)
        series = [longer[rank, :, phase] for rank in range(len(longer)) for phase in range(len(PHASES))]
        found[by] = max(max(_interval(each)[0], _of_its_turn(each, turn, len(longer))[0]) for each in series)
    return found


def _kinds(meetings: Meetings) -> list[tuple[str, Floats]]:
    return [("blocked", meetings.blocked), ("computing", meetings.own - meetings.blocked)]


def _than_the_others(times: Floats, meetings: Meetings, step_ns: float) -> tuple[Floats, NDArray[np.int64]]:
    """By how much longer each rank took than the others on average, in the steps that were followed, as a share of the
    usual step (N, steps, phase); and whose turn the step would be, if ranks took turns."""
    steps = _by_step(times, meetings, step_ns) / step_ns
    numbers = np.flatnonzero(~np.isnan(steps).any(axis=(0, 2)))
    ranks, steps = len(steps), steps[:, numbers]
    return (steps * ranks - steps.sum(axis=0)) / (ranks - 1), numbers % ranks


def causes(meetings: Meetings) -> list[str]:
    """By meeting, the phase that made its last one late; "" where that is not known, or a CPU was all it lacked."""
    known = meetings.followed
    blamed, kept = _blamed(meetings, known)
    by_phase = blamed.sum(axis=0)
    found = [""] * len(known)
    is_told = by_phase.max(axis=1, initial=0) > kept.sum(axis=0)
    for at, place in zip(np.flatnonzero(known)[is_told], by_phase.argmax(axis=1)[is_told], strict=True):
        found[at] = PHASES[place]
    return found


def _blamed(meetings: Meetings, known: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """What the last one of each known meeting cost the others, ns: (N, known, phase) by its phases; and (N, known) by
    being kept from its CPU."""
    own, kept, waited = meetings.own[:, known], meetings.kept[:, known], meetings.waited[:, known].astype(np.float64)
    last, at = meetings.last[known], np.arange(int(known.sum()))
    blamed, of_kept = np.zeros_like(own), np.zeros_like(kept)
    for other in range(len(own)):
        longer = np.maximum(own[last, at] - own[other, at], 0.0)
        longer_kept = np.maximum(kept[last, at] - kept[other, at], 0.0)
        whole = longer.sum(axis=1) + longer_kept
        part = np.divide(waited[other], whole, out=np.zeros_like(whole), where=whole > 0)
        blamed[last, at] += longer * part[:, None]
        of_kept[last, at] += longer_kept * part
    return blamed, of_kept


def _by_step(times: Floats, meetings: Meetings, step_ns: float) -> Floats:
    """The times (N, K, phase) of the meetings of a step taken together, as there may be several in each."""
    left = meetings.left[0]
    within = np.searchsorted(left, left + step_ns * (1 - _SLACK)) - np.arange(len(left))
    each = max(int(np.median(within)), 1)
    whole = times.shape[1] // each * each
    return times[:, :whole].reshape(len(times), -1, each, times.shape[2]).sum(axis=2)


def _interval(values: Floats) -> tuple[float, float, float]:
    """The mean over steps and its 95 % interval, by blocks of steps drawn anew; rare large values leave it wide."""
    blocks = np.array([block.mean() for block in np.array_split(values, min(_BLOCKS, len(values))) if len(block)])
    if not len(blocks):
        return 0.0, 0.0, 0.0
    picks = np.random.default_rng(0).integers(len(blocks), size=(_RESAMPLES, len(blocks)))
    low, high = np.quantile(blocks[picks].mean(axis=1), [_LEVEL, 1 - _LEVEL])
    return float(low), float(values.mean()), float(high)
