"""Which thread count each section of a step should run with: what the measurements support, and what it saves.

Times are noisy: a plan keeps only what is certain, by a bootstrap over units of measurement (such as the rounds of an
experiment). The costs and the optimum are those of `switching`.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from tracekit.models.switching import (
    Calls,
    Choice,
    Matrix,
    SwitchCosts,
    best_fixed,
    optima,
    optimal_plan,
    plan_cost,
    switching_cost,
)

Gain = tuple[float, float, float]  # 1 - new/old: low, expected, high

_LEVEL = 0.95
_RESAMPLES = 1000
_RESAMPLES_OF_HALVES = 200
_OPTIMA = 100  # resamples for which the optimal plan is found too
_SPLITS = 5
_FEWEST_TO_SPLIT = 6
_FEWEST_TO_CORRELATE = 8
_STRETCHES, _FEWEST_STRETCHES, _FEWEST_OF_A_STRETCH = 8, 6, 4
_CHUNK = 1 << 22  # values held at once
_NONE: Gain = (0.0, 0.0, 0.0)


@dataclass(frozen=True)
class ThreadPlan:
    """A thread count for each section (`choice`), the one for all of them (`fixed`), and what they save.

    `gain` is that of the plan over the current count, `gain_of_fixed` that of the fixed count over the current, and
    `gain_over_fixed` that of the plan over the fixed count. `stability` is for each section the share of resamples
    whose optimal plan gives it the count of this one.
    """

    counts: tuple[int, ...]
    choice: tuple[int, ...]
    fixed: int
    gain: Gain
    gain_of_fixed: Gain
    gain_over_fixed: Gain
    stability: tuple[float, ...]

    def is_by_layer(self) -> bool:
        return len(set(self.choice)) > 1

    def given_up(self) -> "ThreadPlan":
        """The best fixed count in its place."""
        return replace(self, choice=(self.fixed,) * len(self.choice), gain=self.gain_of_fixed, gain_over_fixed=_NONE)


def simplified(
    times_blocks: Matrix, calls: Calls, costs: SwitchCosts, choice: Choice, seed: int = 0, level: float = _LEVEL
) -> Choice:
    """The choice without those deviations from the best fixed count that may gain nothing.

    `times_blocks` [B, L, N] ns, NaN where missing: medians over the units B count. Neighbouring sections (the last and
    the first are) that deviate to the same count stand or fall together. They stand if the interval of what they gain,
    switches included, is above zero; the least certain fall first. `level` is that of the intervals of all L (N - 1)
    possible deviations together (Bonferroni). Raises ValueError for fewer than two units.
    """
    measured = _measured(times_blocks, calls, costs)
    fixed, _ = best_fixed(measured.medians, calls, costs)
    return _simplified(measured, choice, fixed, measured.picks(np.random.default_rng(seed), _RESAMPLES), level)


def plan_threads(times_blocks: Matrix, calls: Calls, costs: SwitchCosts, current: int, seed: int = 0) -> ThreadPlan:
    """The plan that the measurements support, and what it saves; the current count where no other is surely better.

    `times_blocks` [B, L, N] ns, NaN where missing; `current` is one of the counts. What is chosen and judged by the
    same units seems better than it is: from six units on, gains are less by an estimate of that (`_optimism`). Raises
    ValueError for fewer than two units, and if the current count was not measured in all sections.
    """
    measured = _measured(times_blocks, calls, costs)
    if current not in costs.counts or np.isinf(measured.medians[:, costs.counts.index(current)]).any():
        raise ValueError(f"{current} threads, the current count, must have been measured in all sections")
    rng = np.random.default_rng(seed)
    picks = measured.picks(rng, _RESAMPLES)
    now = np.full(measured.medians.shape[0], costs.counts.index(current))
    fixed, choice = _choose(measured, now, picks)
    optimism = _optimism(measured, now, rng) if (choice != now).any() or (fixed != now).any() else np.zeros(3)

    def gain(new: Choice, old: Choice, optimism: float) -> Gain:
        if np.array_equal(new, old):
            return _NONE
        ratios = measured.totals(new) / measured.totals(old)
        half = _half_width_of_steps(1 - measured.draws(new, picks) / measured.draws(old, picks), ratios, _LEVEL)
        return _around(float(measured.gain(new, old) - optimism), half)

    of_fixed = gain(fixed, now, optimism[0])
    if of_fixed[0] <= 0:
        choice, fixed, of_fixed = now if np.array_equal(choice, fixed) else choice, now, _NONE
    whole = gain(choice, now, optimism[0 if np.array_equal(choice, fixed) else 1])
    over_fixed = whole if np.array_equal(fixed, now) else gain(choice, fixed, optimism[2])
    if over_fixed[0] <= 0:
        choice, whole, over_fixed = fixed, of_fixed, _NONE
    each = measured.resampled(picks[:_OPTIMA], slice(None), slice(None))
    agree = optima(each, calls, costs) == choice
    return ThreadPlan(
        counts=costs.counts,
        choice=tuple(costs.counts[index] for index in choice),
        fixed=costs.counts[fixed[0]],
        gain=whole,
        gain_of_fixed=of_fixed,
        gain_over_fixed=over_fixed,
        stability=tuple(agree.mean(axis=0).tolist()),
    )


def tried_gain(tried_ns: Matrix, old_ns: Matrix, tests: int = 1, seed: int = 0) -> Gain:
    """What counts that were in force together save of the time with others, by units of measurement that had both.

    The model adds up what sections take among their like. In a plan one may take longer: the threads that the section
    before it has used wait for work on their CPUs. `tried_ns` [B] is what steps took with the plan, `old_ns` [B] with
    the others in the same units, NaN where a unit has none. The interval is that of `tests` plans together
    (Bonferroni); of fewer than two units it has no ends.
    """
    ratios = 1 - tried_ns / old_ns
    ratios = ratios[~np.isnan(ratios)]
    if len(ratios) < 2:
        return -math.inf, 0.0, 1.0
    units = independent(ratios)
    draws = np.median(ratios[_picks(np.random.default_rng(seed), units, _RESAMPLES)], axis=1)
    return _around(float(np.median(ratios)), _half_width_of_steps(draws, ratios, _LEVEL, tests))


@dataclass(frozen=True)
class _Measured:
    """Units of measurement [B, L, N], and the medians over them [L, N]: infinite for what was never measured.

    `free` is how many independent units would tell as much (`independent`).
    """

    blocks: Matrix
    medians: Matrix
    calls: Calls
    costs: SwitchCosts
    free: float

    def picks(self, rng: np.random.Generator, resamples: int) -> NDArray[np.int64]:
        return _picks(rng, (len(self.blocks), self.free), resamples)

    def resampled(self, picks: NDArray[np.int64], sections: Choice | slice, counts: Choice | int | slice) -> Matrix:
        """The medians over each resample [R, B], [R, ...]; that over all units where a resample has no value."""
        wanted, missing = self.blocks[:, sections, counts], self.medians[sections, counts]
        columns, found = wanted.reshape(len(wanted), -1).T, np.empty((missing.size, len(picks)))
        width = max(_CHUNK // picks.size, 1)
        for first in range(0, len(columns), width):
            drawn = np.sort(columns[first : first + width, picks], axis=-1)  # NaN goes last
            known = np.count_nonzero(~np.isnan(drawn), axis=-1, keepdims=True)
            middle = np.append((known - 1) // 2, known // 2, axis=-1) % drawn.shape[-1]
            found[first : first + width] = np.take_along_axis(drawn, middle, axis=-1).mean(axis=-1)
        medians: Matrix = np.where(np.isnan(found), missing.reshape(-1, 1), found).T.reshape(-1, *missing.shape)
        return medians

    def draws(self, choice: Choice, picks: NDArray[np.int64]) -> Matrix:
        """What a step costs with a choice in each resample, ns [R]."""
        sections = self.resampled(picks, np.arange(len(choice)), choice).sum(axis=1, dtype=np.float64)
        return np.asarray(sections + switching_cost(self.calls, self.costs, choice))

    def totals(self, choice: Choice) -> Matrix:
        """What the sections took in each unit with a choice, ns [B]."""
        return np.asarray(self.blocks[:, np.arange(len(choice)), choice].sum(axis=1))

    def gain(self, new: Choice, old: Choice) -> float:
        """What the new choice saves of the old one's time, by the medians."""
        after, before = (plan_cost(self.medians, self.calls, self.costs, choice) for choice in (new, old))
        return 1 - after / before

    def part(self, units: NDArray[np.int64]) -> "_Measured":
        """Some of the units, in any order; what they have no value of keeps its median."""
        whole = replace(self, blocks=self.blocks[units], free=len(units))
        return replace(whole, medians=whole.resampled(np.arange(len(units))[None], slice(None), slice(None))[0])


def _measured(times_blocks: Matrix, calls: Calls, costs: SwitchCosts) -> _Measured:
    blocks = np.asarray(times_blocks, dtype=np.float64)
    if len(blocks) < 2:
        raise ValueError(f"the spread of {len(blocks)} units of measurement is not known: at least 2 are needed")
    unknown = np.full(blocks.shape[1:], np.inf)
    measured = _Measured(blocks, unknown, calls, costs, 0).part(np.arange(len(blocks)))
    steps = blocks.sum(axis=1)
    free = min(independent(steps[:, count] / steps[:, 0])[1] for count in range(steps.shape[1]))
    return replace(measured, free=max(free, 2.0))


def independent(series: Matrix) -> tuple[int, float]:
    """How many values there are, NaN left out, and how many independent ones would tell as much.

    A machine that changes between two speeds every few seconds makes neighbours alike: the number falls by
    1 + 2 (sum of the autocorrelations up to the first that chance explains). It is taken of ranks: no outlier hides it.
    """
    known = series[~np.isnan(series)]
    number = len(known)
    if number < _FEWEST_TO_CORRELATE:
        return number, float(number)
    ranks = pd.Series(known).rank().to_numpy() - (number + 1) / 2
    whole = float(ranks @ ranks)
    lost = 1.0
    for lag in range(1, number // 2) if whole else ():
        correlation = float(ranks[:-lag] @ ranks[lag:]) / whole
        if correlation < 1 / math.sqrt(number):
            break
        lost += 2 * correlation
    return number, max(number / lost, 2.0)


def _picks(rng: np.random.Generator, units: tuple[int, float], resamples: int) -> NDArray[np.int64]:
    """Units drawn with replacement [resamples, number], in stretches as long as neighbours are alike (the circular
    block bootstrap; D. Politis and J. Romano, 1992)."""
    number, free = units
    length = math.ceil(number / free)
    starts = rng.integers(number, size=(resamples, -(-number // length), 1))
    return np.asarray((starts + np.arange(length)) % number).reshape(resamples, -1)[:, :number]


def in_other_processes(gain: Gain, between: float) -> Gain:
    """The interval of a gain in a process to come, where processes differ by `between`, a standard deviation."""
    low, expected, _ = gain
    return _around(expected, math.hypot(expected - low, between * float(ndtri((1 + _LEVEL) / 2))))


def _around(expected: float, half: float) -> Gain:
    """The interval of a gain, of which there is none above 1."""
    return expected - half, expected, min(expected + half, 1.0)


def _half_width(draws: Matrix, units: tuple[int, float], level: float, tests: int = 1) -> float:
    """Half the percentile interval of bootstrap draws of some `units` (`independent`), widened as Student's t is for
    few of them (T. Hesterberg, What Teachers Should Know About the Bootstrap, The American Statistician 69, 2015), and
    for many tests (Bonferroni).
    """
    number, free = units
    if number < 2:
        return math.inf
    tail = (1 - level) / 2
    wider = math.sqrt(free / (free - 1)) * stdtrit(free - 1, tail / tests) / ndtri(tail)
    low, high = np.quantile(draws, [tail, 1 - tail])
    return float(wider * (high - low) / 2)


def _half_width_of_steps(draws: Matrix, series: Matrix, level: float, tests: int = 1) -> float:
    """The same for whole steps, of which `series` are the units in their order; and so much that it holds the interval
    of the mean of stretches of them (batch means; A. Law, Simulation Modeling and Analysis, 9.5.3).

    Where a neighbour on the machine makes some count slower for half of the run, units have two values, each of them
    many times, and every median lies between: resampled, it is certain of what is true of one half and not the other.
    """
    half = _half_width(draws, independent(series), level, tests)
    known = series[~np.isnan(series)]
    stretches = min(len(known) // _FEWEST_OF_A_STRETCH, _STRETCHES)
    if stretches < _FEWEST_STRETCHES:
        return half
    medians = [float(np.median(stretch)) for stretch in np.array_split(known, stretches)]
    error = np.std(medians, ddof=1) / math.sqrt(stretches)
    off = abs(np.mean(medians) - np.median(known))
    return max(half, float(off + stdtrit(stretches - 1, 1 - (1 - level) / 2 / tests) * error))


def _choose(measured: _Measured, now: Choice, picks: NDArray[np.int64]) -> tuple[Choice, Choice]:
    """The best fixed count if it is surely better than the current one, else that; and the simplified optimum."""
    calls, costs, medians = measured.calls, measured.costs, measured.medians
    fixed = np.full_like(now, best_fixed(medians, calls, costs)[0])
    draws = measured.draws(now, picks) - measured.draws(fixed, picks)
    saved = plan_cost(medians, calls, costs, now) - plan_cost(medians, calls, costs, fixed)
    each = measured.totals(now) - measured.totals(fixed)
    if saved <= _half_width_of_steps(draws, each, _LEVEL, max(len(costs.counts) - 1, 1)):
        fixed = now
    choice, _ = optimal_plan(medians, calls, costs)
    return fixed, _simplified(measured, choice, int(fixed[0]), picks, _LEVEL)


def _simplified(measured: _Measured, choice: Choice, fixed: int, picks: NDArray[np.int64], level: float) -> Choice:
    begins = choice != np.roll(choice, 1)
    number = np.cumsum(begins) % max(np.count_nonzero(begins), 1)  # of the run of equal neighbours, around the cycle
    runs = np.unique(number[choice != fixed])
    tests = max(choice.size * (len(measured.costs.counts) - 1), 1)
    saved, half = np.empty(len(runs)), np.empty(len(runs))
    for at, run in enumerate(runs):
        sections = np.flatnonzero(number == run)
        old, new = (sections, fixed), (sections, int(choice[sections[0]]))
        draws = measured.resampled(picks, *old).sum(axis=1) - measured.resampled(picks, *new).sum(axis=1)
        units = independent((measured.blocks[:, *old] - measured.blocks[:, *new]).sum(axis=1))
        saved[at] = (measured.medians[old] - measured.medians[new]).sum()
        half[at] = _half_width(draws, units, level, tests)
    while len(runs):
        paid = switching_cost(measured.calls, measured.costs, choice)
        without = (np.where(number == run, fixed, choice) for run in runs)
        spared = [paid - switching_cost(measured.calls, measured.costs, other) for other in without]
        certainty = (saved - spared) / np.maximum(half, 1e-3)  # ns: what does not vary is certain
        # The least certain falls first, and so do others that are less certain than their neighbours: a switch is
        # between neighbours.
        falls = (certainty <= 1) & (certainty <= np.roll(certainty, 1)) & (certainty <= np.roll(certainty, -1))
        if not falls.any():
            break
        choice = np.where(np.isin(number, runs[falls]), fixed, choice)
        saved, half, runs = saved[~falls], half[~falls], runs[~falls]
    return choice


def _optimism(measured: _Measured, now: Choice, rng: np.random.Generator) -> NDArray[np.float64]:
    """How much greater gains seem to the units by which plans were chosen than to others: of the fixed count and of the
    plan over the current count, and of the plan over the fixed count.

    Plans are chosen on either half of the units in random splits, and judged by both. Errors of half the units are
    larger by the root of two. 0 for fewer than six units.
    """
    found = []
    for _ in range(_SPLITS if len(measured.blocks) >= _FEWEST_TO_SPLIT else 0):
        order = rng.permutation(len(measured.blocks))
        halves = [measured.part(half) for half in np.array_split(order, 2)]
        for inside, outside in (halves, halves[::-1]):
            fixed, choice = _choose(inside, now, inside.picks(rng, _RESAMPLES_OF_HALVES))
            compared = (fixed, now), (choice, now), (choice, fixed)
            found.append([inside.gain(*plans) - outside.gain(*plans) for plans in compared])
    return np.maximum(np.array(found).mean(axis=0) / math.sqrt(2), 0) if found else np.zeros(3)
