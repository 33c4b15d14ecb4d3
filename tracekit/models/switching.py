"""What a step takes with a thread count for each of its sections, switches included, and the least that it can take.

A section costs what it takes at its count, plus what it costs the OpenMP runtime to bring its pool to that count. The
least sum over the closed cycle of steps is found by dynamic programming over (count, pool) states.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Calls = NDArray[np.float64] | NDArray[np.int64]  # of each section in a step, each 1 or more
Choice = NDArray[np.intp]  # for each section, an index into the counts

_CHUNK = 1 << 22  # values held at once


class Pool(StrEnum):
    """What an OpenMP runtime does with its pool of threads when it runs a team of another size.

    libgomp gives it the size of the team, but leaves it alone for a team of one; libomp only ever makes it larger.
    """

    LIBGOMP = "libgomp"
    LIBOMP = "libomp"

    @classmethod
    def of(cls, runtime: str) -> "Pool":
        """How a runtime of this name behaves; one that is not known is taken for libgomp."""
        return cls.LIBOMP if runtime in ("libomp", "libiomp5") else cls.LIBGOMP


@dataclass(frozen=True)
class SwitchCosts:
    """What it costs to begin a section with another count than the one before it had; N ascending counts.

    `switch` [N, N] ns: beginning to run with the second count when the pool has the size of the first; `change` ns: the
    call that sets a count. Raises ValueError for counts that do not ascend, another shape, and costs below 0 or not
    finite.
    """

    counts: tuple[int, ...]
    pool: Pool
    switch: Matrix
    change: float

    def __post_init__(self) -> None:
        if not self.counts or self.counts[0] < 1 or (np.diff(self.counts) <= 0).any():
            raise ValueError(f"thread counts must ascend from 1 or more, not {self.counts}")
        if self.switch.shape != (len(self.counts), len(self.counts)):
            raise ValueError(f"{len(self.counts)} counts need a square of switching costs, not {self.switch.shape}")
        every = np.append(self.switch, self.change)
        if not np.isfinite(every).all() or every.min() < 0:
            raise ValueError("costs of switching must be finite and not below 0")


def plan_cost(times: Matrix, calls: Calls, costs: SwitchCosts, choice: Choice) -> float:
    """What a step costs with a choice, ns, when the same step is run again and again.

    `times` [L, N] ns per step; `calls` [L] per step. A section with another count than the one before it pays `switch`
    and `change`, and pays them at each of its calls, as if the two took turns. The pool is what the choice makes of it.
    """
    return float(taken(times, choice).sum() + switching_cost(calls, costs, choice))


def optimal_plan(times: Matrix, calls: Calls, costs: SwitchCosts) -> tuple[Choice, float]:
    """The choice of least `plan_cost` among all N^L, and that cost, ns; times may be infinite.

    Dynamic programming over (count, pool) states from all states before the first section at once, so that the cycle
    closes in the state it began with: O(L S^3) for S states, of which libgomp has 2 N - 1. Raises ValueError for a
    section of less than one call.
    """
    choice = optima(np.asarray(times, dtype=np.float64)[None], calls, costs)[0]
    return choice, plan_cost(times, calls, costs, choice)


def best_fixed(times: Matrix, calls: Calls, costs: SwitchCosts) -> tuple[int, float]:
    """The index of the one count that is the best for all sections together, and its `plan_cost`, ns."""
    best = int(np.argmin(times.sum(axis=0)))
    return best, plan_cost(times, calls, costs, np.full(len(times), best))


def taken(values: Matrix, choice: Choice) -> Matrix:
    return values[..., np.arange(len(choice)), choice]


def switching_cost(calls: Calls, costs: SwitchCosts, choice: Choice) -> float:
    """What a choice pays for its switches, ns per step, once the pool has the sizes that come again in every step."""
    changed = choice != np.roll(choice, 1)
    pool = np.full_like(choice, choice.max())
    if costs.pool is Pool.LIBGOMP:
        # The last team before each section, the lap before included; without any team there is no switch either.
        teams = np.where(np.tile(np.array(costs.counts)[choice] > 1, 2), np.arange(2 * len(choice)), -1)
        pool = choice[np.maximum.accumulate(teams)[len(choice) - 1 : -1] % len(choice)]
    return float(((costs.switch[pool, choice] + costs.change) * calls)[changed].sum())


def _states(costs: SwitchCosts) -> Iterator[tuple[Choice, Matrix, Choice, Choice]]:
    """The (count, pool) states: the count of each [S]; what entering one after another costs [S, S], ns, infinite where
    it cannot follow; and those [A] before the first section and [A] after the last that close a cycle.
    """
    counts = np.arange(len(costs.counts))

    def entering(count: Choice, pool: Choice, follows: NDArray[np.bool_]) -> Matrix:
        switched = np.where(count[:, None] != count, costs.switch[pool[:, None], count] + costs.change, 0.0)
        return np.where(follows, switched, np.inf)

    if costs.pool is Pool.LIBGOMP:
        count = pool = counts
        if costs.counts[0] == 1:
            count, pool = np.append(0 * counts, counts[1:]), np.append(counts, counts[1:])
        follows = pool == np.where(np.array(costs.counts)[count] > 1, count, pool[:, None])
        yield count, entering(count, pool, follows), np.arange(len(count)), np.arange(len(count))
        return
    for top in counts:  # the largest count of the plan and the size of its pool; states are before and after its turn
        count = np.append(counts[:top], counts[: top + 1])
        after = np.arange(len(count)) >= top
        ends = np.flatnonzero(after)
        starts = np.where(count[ends] == top, ends, count[ends])
        follows = after == (after[:, None] | (count == top))
        yield count, entering(count, np.full_like(count, top), follows), starts, ends


def optima(times: Matrix, calls: Calls, costs: SwitchCosts) -> Choice:
    """The optimal choice [R, L] for each of R tables of times [R, L, N]."""
    if np.min(calls) < 1:
        raise ValueError("every section must be called once or more in a step")
    choice, least = np.zeros(times.shape[:2], dtype=np.intp), np.full(len(times), np.inf)
    for count, entering, starts, ends in _states(costs):
        rows = max(_CHUNK // (times.shape[1] * len(starts) * len(count)), 1)
        for first in range(0, len(times), rows):
            part = slice(first, first + rows)
            found, total = _closed(times[part][..., count], calls, entering, starts, ends)
            better = total < least[part]
            choice[part][better], least[part][better] = count[found][better], total[better]
    return choice


def _closed(times: Matrix, calls: Calls, entering: Matrix, starts: Choice, ends: Choice) -> tuple[Choice, Matrix]:
    """The cheapest closed walk [R, L] through the states for each table of times [R, L, S], and its cost [R], ns."""
    tables, sections, _ = times.shape
    cost = np.full((sections + 1, tables, len(starts), times.shape[2]), np.inf)
    cost[0][:, np.arange(len(starts)), starts] = 0
    for i in range(sections):
        cost[i + 1] = (cost[i][..., None] + calls[i] * entering).min(axis=-2) + times[:, i, None]
    closed = cost[-1][:, np.arange(len(ends)), ends]
    start, table = closed.argmin(axis=1), np.arange(tables)
    walk = np.empty((sections + 1, tables), dtype=np.intp)
    walk[-1] = ends[start]
    for i in reversed(range(sections)):
        walk[i] = (cost[i][table, start] + calls[i] * entering[:, walk[i + 1]].T).argmin(axis=1)
    return walk[1:].T, closed[table, start]
