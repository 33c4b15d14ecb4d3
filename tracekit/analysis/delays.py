"""Delays: who made the others wait, and in which phase.

At each meeting the last one to come keeps the others waiting. It is late by what it took longer than they did since the
last meeting, phase by phase; what it was kept from its CPU is told apart, as that is no rank's doing. A phase is named
where it makes others wait in the usual step, or so often that it cannot be chance.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.analysis.meetings import PHASES, Floats, Meetings

# A phase is named where it costs more than this share of a step: what runs without any delay in them come to at most
# (`benchmarks/delays.py`).
NOTABLE = 0.02
# Meetings that follow each other have much in common: so many blocks of them are drawn anew, so many times.
_BLOCKS, _RESAMPLES, _LEVEL = 20, 1000, 0.025
# One rank is the cause where so much of the cost is its own; else they take turns.
MOSTLY = 0.8


@dataclass(frozen=True)
class Delay:
    """A phase of a rank in which it kept others waiting. `share_of_waiting` of all ranks' waiting, `cost_s` in
    rank-seconds. `step_share`: by how much longer it made each step, at least, expected, at most (95 %). `turns`: how
    often it was this rank, of the meetings where this phase made others wait."""

    rank: int
    phase: str
    share_of_waiting: float
    cost_s: float
    step_share: tuple[float, float, float]
    turns: float

    @property
    def is_always_the_same(self) -> bool:
        return self.turns >= MOSTLY


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
    delays = []
    if explained:
        for phase in range(len(PHASES)):
            delays += _named(meetings, blamed[:, :, phase], PHASES[phase], explained, step_ns)
    return Waiting(
        waited_s=waited / 1e9,
        meetings=meetings.entered.shape[1],
        kept_share=float(kept.sum() / explained) if explained else 0.0,
        explained=explained / waited if waited else 0.0,
        delays=sorted(delays, key=lambda delay: -delay.cost_s),
    )


def least_shares(meetings: Meetings, step_ns: float) -> dict[str, float]:
    """By phase, what it made each step longer by at least (95 %), as a share of it, whichever rank was late."""
    known = meetings.followed
    late = _blamed(meetings, known)[0].sum(axis=0) / (len(meetings.ranks) - 1)
    steps = _by_step(late.T, step_ns, meetings)
    return {phase: _interval(steps[at] / step_ns)[0] for at, phase in enumerate(PHASES)}


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


def _named(meetings: Meetings, blamed: Floats, phase: str, waited: float, step_ns: float) -> list[Delay]:
    """The delays of one phase, by rank, where there is any to be named; `blamed` (N, meetings), ns."""
    ranks, others = len(blamed), len(blamed) - 1
    steps = _by_step(blamed / others, step_ns, meetings)
    low, _, _ = _interval(steps.sum(axis=0) / step_ns)
    if low <= NOTABLE:
        return []
    cost = blamed.sum(axis=1)
    turns = cost / cost.sum()
    named = []
    for at in range(ranks):
        own_low, own, own_high = _interval(steps[at] / step_ns)
        if turns[at] > 0 and own_low > NOTABLE / ranks / 2:
            share = (own_low, own, own_high)
            named.append(
                Delay(
                    meetings.ranks[at], phase, float(cost[at]) / waited, float(cost[at]) / 1e9, share, float(turns[at])
                )
            )
    return named


def _by_step(blamed: Floats, step_ns: float, meetings: Meetings) -> Floats:
    """Meetings of a step taken together: there may be several in each."""
    count = blamed.shape[1]
    spacing = np.median(np.diff(meetings.left[0])) if meetings.left.shape[1] > 1 else step_ns
    each = max(round(step_ns / spacing), 1) if spacing > 0 else 1
    whole = count // each * each
    return blamed[:, :whole].reshape(len(blamed), -1, each).sum(axis=2) if whole else blamed


def _interval(values: Floats) -> tuple[float, float, float]:
    """The mean over steps and its 95 % interval, by blocks of steps drawn anew; rare large values leave it wide."""
    blocks = np.array([block.mean() for block in np.array_split(values, min(_BLOCKS, len(values))) if len(block)])
    if not len(blocks):
        return 0.0, 0.0, 0.0
    picks = np.random.default_rng(0).integers(len(blocks), size=(_RESAMPLES, len(blocks)))
    low, high = np.quantile(blocks[picks].mean(axis=1), [_LEVEL, 1 - _LEVEL])
    return float(low), float(values.mean()), float(high)
