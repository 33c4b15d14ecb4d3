"""Rounds of conditions, until the verdicts are settled or the time is up."""

import math
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from tracekit.settings.file import Entry
from tracekit.study.recording import StudyError
from tracekit.study.result import STUDY_VERSION, Study
from tracekit.study.runs import Condition, StudyRuns
from tracekit.study.statistics import (
    LEVEL,
    Comparison,
    ConditionSummary,
    compare,
    is_settled,
    level_among,
    look_level,
    noise_floor,
    rounds,
    summarise,
)

AGAIN = " again"  # behind the name of the condition that is run twice in each round: the noise floor
_FEWEST_ROUNDS = 3
_MOST_ROUNDS = 40
_LIKELY_ROUNDS = 6  # decide what is not too close
# Looks at the results are few: each costs certainty (`statistics.look_level`).
_ROUNDS_BETWEEN_LOOKS = 4


class Pair(NamedTuple):
    """Condition `b` is to be compared with `a`; it is the fastest of so many in these rounds, or not chosen by them."""

    a: str
    b: str
    among: int = 1


class Rounds:
    """The measuring part of a study: conditions in randomised rounds, and the comparisons that are asked for. A program
    that fails under one of the `ideas` goes on without it."""

    def __init__(
        self,
        runs: StudyRuns,
        conditions: Sequence[Condition],
        pairs: Callable[[], list[Pair]],
        seed: int,
        ideas: Collection[str] = (),
    ) -> None:
        self._runs = runs
        self._conditions = {condition.name: condition for condition in conditions}
        base = conditions[0]
        self._floor_pair = Pair(base.name, base.name + AGAIN)
        self._conditions[self._floor_pair.b] = Condition(self._floor_pair.b, base.settings)
        self._pairs = pairs
        self._seed = seed
        self._ideas = set(ideas)
        self._level = LEVEL
        self._dropped: set[str] = set()
        self.stopped = ""

    def measure(self, deadline: float, keep: Callable[[], object] = lambda: None) -> None:
        """Run to the end, or until interrupted. From the round on that may decide something `keep` is called after
        each, as a study may be killed by a batch system. Raises StudyError when a run fails before anything can be
        decided."""
        try:
            self.run(deadline, keep)
        except KeyboardInterrupt:
            self.stopped = "interrupted"
        except StudyError as error:
            done = len(self._runs.blocks.get(self._floor_pair.a, []))
            if done < _FEWEST_ROUNDS:
                raise
            self.stopped = f"a run failed after {done} rounds ({error})"

    def save(
        self, study: str, entries: list[Entry], why: str, within: Sequence[Comparison] = (), **found: Any
    ) -> Study:
        """Leave in the study's folder what came out, what was compared, here and `within` a process, and the settings
        to go on with."""
        folder = self._runs.folder
        *pairs, floor_pair = self.comparisons()
        result = Study(
            schema=STUDY_VERSION,
            study=study,
            path=str(folder),
            command=self._runs.command,
            conditions=self.summaries(),
            comparisons=[*pairs, *within, floor_pair],
            floor=self.floor(),
            level=self._level,
            stopped=self.stopped,
            blocks_ms=self._runs.blocks_ms,
            by_loop=self._runs.by_loop,
            by_mean=self._runs.by_mean,
            interleaved=self._runs.how() if self._runs.blocks else "",
            **found,
        )
        result.save(folder, entries, why)
        return result

    def run(self, deadline: float, keep: Callable[[], object] = lambda: None) -> None:
        """Measure until all comparisons are settled or the deadline (`time.monotonic`) would be passed."""
        self._runs.try_alone(self._conditions[self._floor_pair.a])
        began = time.monotonic()
        looks: list[int] = []  # after so many rounds; planned once, so that no look is taken for what it showed
        for order in rounds(list(self._conditions), self._seed):
            done = len(self._runs.blocks.get(self._floor_pair.a, []))  # not those in which a condition has failed
            each = (time.monotonic() - began) / done if done else self._runs.usual_seconds() * len(order)
            if done == _FEWEST_ROUNDS:
                last = min(_MOST_ROUNDS, int((deadline - began) / each))
                looks = [*range(_ROUNDS_BETWEEN_LOOKS, last, _ROUNDS_BETWEEN_LOOKS), last]
            if done in looks:
                self._level = look_level(looks.index(done) + 1, len(looks))
                # The last look is that at the end: where later rounds take less it comes after more of them.
                if done < looks[-1] and is_settled(self.comparisons()[:-1]):  # the floor itself need not be
                    self.stopped = f"every comparison was settled after {done} rounds"
                    return
            needed = max(_FEWEST_ROUNDS - done, 1) if done else 1  # what a round takes the first one tells
            if time.monotonic() + needed * each > deadline or done == _MOST_ROUNDS:
                more = "another round" if needed == 1 else f"{needed} more rounds"
                what = f"no time for {more}" if done < _MOST_ROUNDS else "the most that a study takes"
                self.stopped = f"{what} after {done} round{'' if done == 1 else 's'}"
                if done < _FEWEST_ROUNDS:
                    self.stopped += (
                        f"; at least {_FEWEST_ROUNDS} are needed to decide anything, of about {each:.0f} s each: give a"
                        f" larger --budget, such as {self._larger_budget(began, each)}s for {_LIKELY_ROUNDS}"
                    )
                return
            if done >= _FEWEST_ROUNDS:
                self.stopped = f"it was not through: what it had found after {done} rounds"
                keep()
                self.stopped = ""
                self._drop()
            self._runs.say(f"round {done + 1}")
            try:
                self._runs.measure_round([self._conditions[name] for name in order if name not in self._dropped])
            except StudyError as error:
                if error.condition not in self._ideas:
                    raise
                self._leave_out(error)
                if self._ideas <= self._dropped:
                    self.stopped = f"nothing is left to compare: {error}"
                    return

    def _leave_out(self, error: StudyError) -> None:
        """Go on without the condition under which the program has failed."""
        assert error.condition is not None
        self._runs.say(f"{error.condition} is left out: {error}")
        self._dropped.add(error.condition)
        self._runs.blocks.pop(error.condition, None)

    def _larger_budget(self, began: float, each_s: float) -> int:
        """Seconds in which a study like this may decide something: what came before the rounds, and enough of them."""
        return 10 * math.ceil((began - self._runs.began + _LIKELY_ROUNDS * each_s) / 10)

    def _drop(self) -> None:
        """Leave out of the rounds to come what no comparison is about and is slower than the fastest."""
        asked = {name for pair in [*self._pairs(), self._floor_pair] for name in (pair.a, pair.b)}
        best, floor = fastest(self._runs, list(self._conditions), self._floor_pair.a), self.floor()
        for name in self._conditions.keys() - asked - self._dropped:
            if compare(best, name, *self._paired(best, name), floor).verdict == "slower":
                self._runs.say(f"{name} is left out from here on: it is slower than {best}")
                self._dropped.add(name)

    def comparisons(self) -> list[Comparison]:
        """The comparisons asked for, with what has been measured so far, at the level of the last look."""
        floor = self.floor()
        return [
            compare(a, b, *self._paired(a, b), floor, level_among(among, self._level))
            for a, b, among in [*self._pairs(), self._floor_pair]
        ]

    def floor(self) -> float:
        """The gain that the first condition seems to have over itself."""
        return noise_floor(*self._paired(self._floor_pair.a, self._floor_pair.b))

    def summaries(self) -> list[ConditionSummary]:
        blocks_ms = self._runs.blocks_ms
        return [summarise(name, blocks_ms.get(name, [])) for name in self._conditions]

    def _paired(self, a: str, b: str) -> tuple[list[float], list[float]]:
        blocks_ms = self._runs.blocks_ms
        first, second = (blocks_ms.get(name, []) for name in (a, b))
        length = max(len(first), len(second))
        return ([*first, *[math.nan] * (length - len(first))], [*second, *[math.nan] * (length - len(second))])


def fastest(runs: StudyRuns, names: Sequence[str], base: str) -> str:
    """The condition with the shortest steps, in the rounds that it was in, beside those of `base`, which is in all.

    Of several that are equal it is the lucky one, so it is hard to beat.
    """
    blocks_ms = runs.blocks_ms

    def beside_base(name: str) -> float:
        pairs = zip(blocks_ms.get(name, []), blocks_ms.get(base, []), strict=False)  # some have left
        return float(np.median([own / of_base for own, of_base in pairs] or [math.inf]))

    return min(names, key=beside_base)
