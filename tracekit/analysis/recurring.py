"""Steps in which a rank takes longer than the others, where that is not always: in its turn, in stretches, at random.

On average over all steps ranks that are late one after the other are not late at all. So steps are chosen, and what a
rank takes longer in them is told by others than those that chose: the steps that chose are the luckiest.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.analysis.meetings import Floats
from tracekit.analysis.resampling import interval

STRETCHES = "stretches"
# Of fewer steps of a turn, or fewer steps or stretches, nothing is told: a machine changes now and then, too.
_FEWEST, _FEWEST_STRETCHES = 16, 3
_NEVER = (0.0, 0.0, 0.0)
_ROUNDS = 20  # the middle between two means stands still much sooner
# Given which steps are chosen, what of their series is longer in every phase alike, and by how much it is on average.
Beyond = Callable[[NDArray[np.bool_]], tuple[Floats | float, float]]


@dataclass(frozen=True)
class Recurring:
    """By how much longer a rank takes in some steps, at least, expected, at most (95 %), as a share of a step; which
    `part` of all steps these are; how they recur: in "turns", in "stretches", at "random"; and what it takes longer in
    them in every phase alike, which that is to exceed (`beyond`)."""

    longer: tuple[float, float, float] = _NEVER
    part: float = 1.0
    how: str = "turns"
    beyond: float = 0.0

    @property
    def overall(self) -> tuple[float, float, float]:
        """On average over all steps."""
        low, expected, high = self.longer
        return low * self.part, expected * self.part, high * self.part


def in_turns(series: Floats, steps: NDArray[np.int64], ranks: int) -> Recurring:
    """The steps of the turn in which a rank's series is the largest, if ranks take turns step by step: the largest of
    so many turns is the luckiest, so every other step of a turn chooses, and those between tell."""
    turn = steps % ranks
    counts = np.bincount(turn, minlength=ranks)
    if counts.min() < _FEWEST:
        return Recurring()
    place = np.empty(len(turn), dtype=np.int64)  # of a step among those of its turn
    place[np.argsort(turn, kind="stable")] = np.concatenate([np.arange(count) for count in counts])
    chooses = place % 2 == 0
    means = np.bincount(turn[chooses], series[chooses], ranks) / np.bincount(turn[chooses], minlength=ranks)
    return Recurring(interval(series[~chooses & (turn == means.argmax())], ranks), 1 / ranks)


def in_stretches(series: Floats, steps: NDArray[np.int64], ranks: int, beyond: Beyond | None = None) -> Recurring:
    """The steps whose neighbours are among the longer ones, if a rank is late for some steps in succession, and not in
    the others: they choose a step, and it tells."""
    follows = np.diff(steps) == 1
    before, behind = np.append(False, follows), np.append(follows, False)
    around = np.zeros(len(series))
    around[before] += series[:-1][follows]
    around[behind] += series[1:][follows]
    neighbours = before.astype(np.int64) + behind
    around = np.divide(around, neighbours, out=np.zeros_like(around), where=neighbours > 0)
    chosen = (neighbours > 0) & (around > _middle(around[neighbours > 0]))
    stretches = np.count_nonzero(np.diff(chosen, prepend=False) & chosen)
    if np.count_nonzero(chosen) < _FEWEST or stretches < _FEWEST_STRETCHES:
        return Recurring(how=STRETCHES)
    longer, others = interval(series[chosen], ranks), interval(series[~chosen], ranks)
    if longer[0] <= others[2]:
        return Recurring(how=STRETCHES)
    alike, least = beyond(chosen) if beyond else (0.0, 0.0)
    return Recurring(interval(series[chosen] - alike, ranks), float(chosen.mean()), STRETCHES, least)


def at_random(series: Floats, least: float, ranks: int) -> Recurring:
    """The steps in which a rank takes longer by more than `least`, of what never does by chance: of these no other step
    need tell. On average over all steps."""
    longer = series > least
    if np.count_nonzero(longer) < _FEWEST:
        return Recurring(how="random")
    return Recurring(interval(np.where(longer, series, 0.0), ranks), how="random")


def _middle(values: Floats) -> float:
    """Between the means of those above and below it (Ridler and Calvard, 1978)."""
    if not len(values):
        return np.inf
    middle = float(values.mean())
    for _ in range(_ROUNDS):
        above = values > middle
        if above.all() or not above.any():
            break
        middle = float(values[above].mean() + values[~above].mean()) / 2
    return middle
