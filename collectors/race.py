"""Racing: a condition with which the step is clearly slower than with another one, and no layer faster, is dropped; and
which condition is the best for which layer.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

Key = tuple[int, int]  # a layer's number and the direction
REST: Key = (-1, 0)  # of the step, outside all layers
WHOLE: Key = (-2, 0)

# Sign tests. By whole steps a condition must have lost to another one so often that it is no chance, if both were
# equally fast; by each layer as often as not: layers that do not care about the count shall not keep it in the race.
_CHANCE = 0.005
_EVEN = 0.7  # of 8 rounds, 4 or more
# A layer shall have a condition of its own when that won so often: of 6 rounds all, of 8 all but one.
_CLEAR = 0.05
# What takes less of each step than this decides nothing.
_NOTABLE = 0.01
# Rounds between two looks, and the last rounds that are looked at: a look takes about 1 us a round, layer and pair of
# conditions on the program's own thread.
_ROUNDS_BETWEEN_LOOKS = 4
_ROUNDS = 16


@dataclass
class _Block:
    """What one block took, ns."""

    whole: int = 0
    outermost: int = 0
    layers: Counter[Key] = field(default_factory=Counter)
    calls: Counter[Key] = field(default_factory=Counter)


class Race:
    """The blocks of the last rounds, by condition and round."""

    def __init__(self) -> None:
        self._open = _Block()
        self._blocks: dict[int, dict[int, _Block]] = defaultdict(dict)
        self._callers: set[Key] = set()
        self._depths: dict[int, int] = {}  # of the last call, by direction: a call ends after those inside it

    def begin(self) -> None:
        self._open = _Block()

    def add(self, layer: int, direction: int, depth: int, duration_ns: int) -> None:
        """A call in the block that is open."""
        self._open.layers[layer, direction] += duration_ns
        self._open.calls[layer, direction] += 1
        if self._depths.get(direction, depth) > depth:
            self._callers.add((layer, direction))
        self._depths[direction] = depth
        if not depth:
            self._open.outermost += duration_ns

    def close(self, condition: int, number: int, duration_ns: int) -> None:
        """The end of a block, of the round of this number. All blocks have as many steps."""
        block, self._open = self._open, _Block()
        block.whole = duration_ns
        block.layers[REST] = max(duration_ns - block.outermost, 0)
        block.layers[WHOLE] = duration_ns
        rounds = self._blocks[condition]
        rounds[number] = block
        rounds.pop(number - _ROUNDS, None)

    def beaten(self, number: int, keep: int) -> set[int]:
        """The conditions to drop before the round of this number. At least two stay, and `keep`, which is the one that
        all gains refer to."""
        if number % _ROUNDS_BETWEEN_LOOKS or len(self._blocks) <= 2:
            return set()
        keys = {
            key
            for rounds in self._blocks.values()
            for block in rounds.values()
            for key, ns in block.layers.items()
            if ns >= _NOTABLE * block.whole
        }
        losers = {
            each
            for each in self._blocks
            if each != keep and self._loses(each, WHOLE, _CHANCE) and all(self._loses(each, key, _EVEN) for key in keys)
        }
        if len(self._blocks) - len(losers) < 2:
            return set()
        for loser in losers:
            del self._blocks[loser]
        return losers

    def best_for_each(self, call_ns: Mapping[int, int]) -> tuple[int, dict[Key, int]]:
        """The condition for everything, and those of the layers that are to have another one.

        Such layers call no other, are clearly faster with it, and save more than a call with a condition of its own
        costs, `call_ns` by direction. Of all conditions, the one for everything is that with which the step is the
        shortest after its layers have saved this: where most layers want one thing, the others are told apart.
        """
        layers = {key for rounds in self._blocks.values() for block in rounds.values() for key in block.layers}
        layers -= self._callers | {REST, WHOLE}
        plans = {}
        for common in self._blocks:
            saved = {key: self._saved(common, key, call_ns[key[1]]) for key in layers}
            step = self._median(common, WHOLE) - sum(ns for ns, _ in saved.values())
            plans[common] = step, {key: other for key, (ns, other) in saved.items() if ns > 0}
        common = min(plans, key=lambda each: plans[each][0])
        return common, plans[common][1]

    def _saved(self, common: int, key: Key, call_ns: int) -> tuple[float, int]:
        """What a layer saves in a block with the condition that is best for it beside the common one, and that one."""
        faster = [
            other for other in self._blocks if other != common and self._chance_that_equal(common, other, key) <= _CLEAR
        ]
        best = min(faster, key=lambda each: self._median(each, key), default=common)
        rounds = self._blocks[common]
        paid = median(block.calls[key] for block in rounds.values()) * call_ns
        return max(self._median(common, key) - self._median(best, key) - paid, 0.0), best

    def _median(self, condition: int, key: Key) -> float:
        """The median time of a block, ns."""
        return median(block.layers[key] for block in self._blocks[condition].values())

    def _loses(self, condition: int, key: Key, chance: float) -> bool:
        """Whether another condition was faster in so many rounds that it is at most so likely by chance."""
        others = self._blocks.keys() - {condition}
        return any(self._chance_that_equal(condition, other, key) <= chance for other in others)

    def _chance_that_equal(self, slow: int, fast: int, key: Key) -> float:
        """That the one has lost to the other so often, were both equally fast."""
        mine, theirs = self._blocks[slow], self._blocks[fast]
        both = mine.keys() & theirs.keys()
        return _chance(sum(mine[number].layers[key] > theirs[number].layers[key] for number in both), len(both))


def _chance(successes: int, trials: int) -> float:
    """That a fair coin falls on one side so often or more."""
    return sum(math.comb(trials, number) for number in range(successes, trials + 1)) / 2**trials
