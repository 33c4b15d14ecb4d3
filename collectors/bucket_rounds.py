"""Which caps a round of an exploration of gradient buckets tries.

All of them at first, and now and then; in the rounds between, the program's own and those that may yet be the best:
what is clearly slower costs the program time, and those between which it is open are told apart sooner. One rank
chooses, and the others are told: each has times of its own.
"""

import math
from random import Random

OWN = 0

# Rounds that try all: the first ones, and then one of so many.
_FIRST, _EVERY = 4, 3
# A cap may be the best where it is not slower than another one by this many standard errors of both.
_REACH = 1.0


class Rounds:
    """Of C conditions, 0 being the program's own, what their blocks took next to its own in the same round."""

    def __init__(self, conditions: int, random: Random) -> None:
        self._random = random
        self._ratios = [_Mean() for _ in range(conditions)]
        self._open: dict[int, float] = {}  # what blocks of the open round took
        self._number = 0

    def add(self, condition: int, duration_ns: int) -> None:
        """A block of the round that was begun last. All blocks have as many steps."""
        self._open[condition] = math.log(max(duration_ns, 1))

    def begin(self) -> list[int]:
        """The conditions of the next round, in random order."""
        own = self._open.pop(OWN, None)
        if own is not None:
            for condition, log in self._open.items():
                self._ratios[condition].add(log - own)
        self._open.clear()
        is_full = self._number < _FIRST or (self._number - _FIRST) % _EVERY == _EVERY - 1
        self._number += 1
        tried = list(range(len(self._ratios))) if is_full else self._that_may_be_best()
        return self._random.sample(tried, len(tried))

    def _that_may_be_best(self) -> list[int]:
        """These, the own one, and at least one other."""
        others = range(1, len(self._ratios))
        ends = {each: self._ratios[each].ends(_REACH) for each in others}
        at_most = min([0.0, *(high for _, high in ends.values())])
        best = min(others, key=lambda each: self._ratios[each].mean)
        return [OWN, *(each for each in others if each == best or ends[each][0] <= at_most)]


class _Mean:
    """A running mean and its standard error (Welford)."""

    def __init__(self) -> None:
        self._count, self.mean, self._squares = 0, 0.0, 0.0

    def add(self, value: float) -> None:
        self._count += 1
        before = value - self.mean
        self.mean += before / self._count
        self._squares += before * (value - self.mean)

    def ends(self, reach: float) -> tuple[float, float]:
        """The mean, less and plus this many standard errors; unbounded for less than two values."""
        if self._count < 2:
            return -math.inf, math.inf
        half = reach * math.sqrt(self._squares / (self._count - 1) / self._count)
        return self.mean - half, self.mean + half
