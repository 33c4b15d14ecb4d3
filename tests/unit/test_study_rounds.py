"""The rounds of a study, on conditions whose times are drawn: when it stops, and what it says then."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tracekit.study import rounds as module
from tracekit.study.matched import StepTime
from tracekit.study.recording import StudyError
from tracekit.study.result import Study, text_of
from tracekit.study.rounds import AGAIN, Pair, Rounds, fastest
from tracekit.study.runs import Condition, StudyRuns
from tracekit.study.statistics import look_level, paired_gain


class Drawn(StudyRuns):
    """Takes no runs: each block is drawn, and a second passes on the clock. `means`: how many times as long as the
    median step the mean one is."""

    means: Mapping[str, float] = {}

    def __init__(self, times: dict[str, float], noise: float, seed: int, pass_time: Callable[[float], None]) -> None:
        super().__init__(Path(), [], lambda text: None)
        self._times, self._noise, self._rng, self._pass = times, noise, np.random.default_rng(seed), pass_time

    def try_alone(self, condition: Condition) -> None:
        self._pass(1.0)

    def measure_round(self, conditions: Sequence[Condition]) -> None:
        for condition in conditions:
            self._pass(1.0)
            name = condition.name.removesuffix(AGAIN)
            time_ms = self._times[name] * float(np.exp(self._noise * self._rng.normal()))
            self.blocks.setdefault(condition.name, []).append(StepTime(time_ms, time_ms * self.means.get(name, 1.0)))
            self.seconds.append(1.0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def study(
    times: dict[str, float], clock: list[float], noise: float = 0.01, seed: int = 0, budget: float = 200
) -> tuple[Rounds, Drawn]:
    def pass_time(seconds: float) -> None:
        clock[0] += seconds

    runs = Drawn(times, noise, seed, pass_time)
    names = list(times)
    made = Rounds(runs, [Condition(name) for name in names], lambda: [Pair(names[0], name) for name in names[1:]], seed)
    made.run(clock[0] + budget)
    return made, runs


@pytest.mark.parametrize("fails_after", [2, 5])
def test_what_was_measured_outlives_a_run_that_fails(fails_after: int, clock: list[float]) -> None:
    """GIVEN a program that fails late THEN the rounds before it decide, where there are enough."""

    class Fails(Drawn):
        def measure_round(self, conditions: Sequence[Condition]) -> None:
            if len(self.blocks.get("a", [])) == fails_after:
                raise StudyError("exit code 1")
            super().measure_round(conditions)

    def pass_time(seconds: float) -> None:
        clock[0] += seconds

    runs = Fails({"a": 10.0, "b": 9.9}, 0.05, 0, pass_time)
    made = Rounds(runs, [Condition("a"), Condition("b")], lambda: [Pair("a", "b")], 0)
    if fails_after < 3:
        with pytest.raises(StudyError):
            made.measure(clock[0] + 200)
        return
    made.measure(clock[0] + 200)
    assert made.stopped == "a run failed after 5 rounds (exit code 1)"
    assert made.comparisons()[0].pairs == 5


def test_what_was_found_so_far_outlives_a_study_that_is_killed(clock: list[float], tmp_path: Path) -> None:
    """GIVEN a study that is killed in its sixth round THEN what its folder holds is of five rounds, and says so."""

    class Killed(Drawn):
        def measure_round(self, conditions: Sequence[Condition]) -> None:
            if len(self.blocks.get("a", [])) == 5:
                raise SystemExit
            super().measure_round(conditions)

    def pass_time(seconds: float) -> None:
        clock[0] += seconds

    runs = Killed({"a": 10.0, "b": 9.99}, 0.05, 0, pass_time)
    runs.folder = tmp_path
    made = Rounds(runs, [Condition("a"), Condition("b")], lambda: [Pair("a", "b")], 0)
    with pytest.raises(SystemExit):
        made.measure(clock[0] + 200, lambda: made.save("verify", [], ""))
    found = Study.load(tmp_path)
    assert found.stopped == "it was not through: what it had found after 5 rounds"
    assert found.comparisons[0].pairs == 5 and (tmp_path / "settings.toml").exists()


@pytest.mark.parametrize(("fails", "ideas"), [({"b"}, {"b", "c"}), ({"b", "c"}, {"b", "c"}), ({"b"}, set())])
def test_an_idea_that_the_program_fails_under_is_left_out(fails: set[str], ideas: set[str], clock: list[float]) -> None:
    """GIVEN a condition under which the program fails THEN the others are compared, if there are any."""

    class Fails(Drawn):
        def measure_round(self, conditions: Sequence[Condition]) -> None:
            for name in sorted(fails & {each.name for each in conditions}):
                raise StudyError(f"exit code 1 under {name}", name)
            super().measure_round(conditions)

    def pass_time(seconds: float) -> None:
        clock[0] += seconds

    runs = Fails({"a": 10.0, "b": 9.0, "c": 8.0}, 0.01, 0, pass_time)
    conditions = [Condition(name) for name in ("a", "b", "c")]
    made = Rounds(runs, conditions, lambda: [Pair("a", "c")], 0, ideas)
    if not ideas:
        with pytest.raises(StudyError, match="under b"):
            made.measure(clock[0] + 200)
        return
    made.measure(clock[0] + 200)
    assert made.comparisons()[0].verdict == ("faster" if len(fails) == 1 else "undecided")
    assert made.stopped.startswith("nothing is left to compare") == (len(fails) > 1)


def test_a_round_in_which_an_idea_fails_is_none(clock: list[float]) -> None:
    """GIVEN a condition under which the program fails in the first round THEN at least three others are made."""

    class Fails(Drawn):
        def measure_round(self, conditions: Sequence[Condition]) -> None:
            if "b" in {each.name for each in conditions}:
                raise StudyError("exit code 1 under b", "b")
            super().measure_round(conditions)

    def pass_time(seconds: float) -> None:
        clock[0] += seconds

    runs = Fails({"a": 10.0, "b": 9.0, "c": 8.0}, 0.01, 0, pass_time)
    made = Rounds(runs, [Condition(name) for name in ("a", "b", "c")], lambda: [Pair("a", "c")], 0, {"b", "c"})
    made.measure(clock[0] + 12.5)
    assert made.comparisons()[0].pairs == len(runs.blocks["a"]) >= 3
    assert f"after {len(runs.blocks['a'])} rounds" in made.stopped


@pytest.mark.parametrize("fails_alone", [True, False])
def test_turns_go_on_where_a_condition_has_failed_and_not_they(fails_alone: bool) -> None:
    class Fails(StudyRuns):
        def _measure(self, conditions: Sequence[Condition], turn_s: float | None) -> None:
            if turn_s is not None or fails_alone:
                raise StudyError("exit code 1", conditions[-1].name)

    runs = Fails(Path(), [], lambda text: None)
    runs.turn_s = 0.5
    with pytest.raises(StudyError) if fails_alone else nullcontext():
        runs.measure_round([Condition("a"), Condition("b")])
    assert (runs.turn_s is not None) == fails_alone and ("in turns" in runs.how()) == (not fails_alone)


def test_a_clear_gain_is_settled_early(clock: list[float]) -> None:
    made, runs = study({"a": 10.0, "b": 8.0}, clock)
    assert made.stopped.startswith("every comparison was settled after")
    assert clock[0] < 200
    verdicts = {(each.a, each.b): each.verdict for each in made.comparisons()}
    assert verdicts["a", "b"] == "faster"
    assert made.comparisons()[0].gain.low <= 0.2 <= made.comparisons()[0].gain.high
    assert fastest(runs, ["a", "b"], "a") == "b"


def test_the_budget_is_kept_and_said(clock: list[float]) -> None:
    made, _ = study({"a": 10.0, "b": 9.99}, clock, noise=0.1, budget=31)
    assert clock[0] <= 31
    assert "no time for another round after" in made.stopped


def test_a_budget_for_less_than_three_rounds_decides_nothing(clock: list[float]) -> None:
    """GIVEN time for two rounds, which the first one shows THEN the second is not run for nothing."""
    made, runs = study({"a": 10.0, "b": 5.0}, clock, budget=7)
    assert made.stopped.startswith("no time for 2 more rounds after 1 round; at least 3 are needed")
    assert "larger --budget" in made.stopped and len(runs.blocks["a"]) == 1
    assert {each.verdict for each in made.comparisons()} == {"undecided"}


def test_what_is_slow_and_not_asked_about_is_dropped(clock: list[float]) -> None:
    """GIVEN a slow condition that no comparison is about THEN it is not measured to the end; what is asked about is."""

    def pass_time(seconds: float) -> None:
        clock[0] += seconds

    runs = Drawn({"a": 10.0, "slow": 14.0, "near": 10.001, "b": 9.999}, 0.01, 0, pass_time)
    made = Rounds(runs, [Condition(name) for name in ("a", "slow", "near", "b")], lambda: [Pair("a", "b")], 0)
    made.run(100)
    blocks = {name: len(times) for name, times in runs.blocks.items()}
    assert blocks["slow"] == 3 < blocks["near"] == blocks["a"] == blocks["b"] == blocks["a" + AGAIN]


@pytest.mark.long
def test_equal_conditions_are_called_different_in_few_of_a_hundred_studies(clock: list[float]) -> None:
    """Early stopping, the measured floor and both directions included: at most 5 of 100."""
    wrong = 0
    for seed in range(200):
        made, _ = study({"a": 10.0, "b": 10.0}, clock, noise=0.03, seed=seed, budget=90)
        wrong += any(each.verdict in ("faster", "slower") for each in made.comparisons())
    assert wrong <= 10


def test_what_was_chosen_as_the_fastest_has_to_be_surer(clock: list[float]) -> None:
    """GIVEN the same two conditions WHEN one was chosen among five by these rounds THEN its interval is the wider one
    that holds for all five."""

    def pass_time(seconds: float) -> None:
        clock[0] += seconds

    runs = Drawn({"a": 10.0, "b": 9.9}, 0.03, 0, pass_time)
    conditions = [Condition("a"), Condition("b")]
    made = Rounds(runs, conditions, lambda: [Pair("a", "b"), Pair("a", "b", 5)], 0)
    made.run(clock[0] + 37)
    given, chosen, _ = made.comparisons()
    times = runs.blocks_ms["a"], runs.blocks_ms["b"]
    last = look_level(3, 3)
    assert given.gain == paired_gain(*times, last)
    assert chosen.gain == paired_gain(*times, 1 - (1 - last) / 5)
    assert chosen.gain.low < given.gain.low < given.gain.high < chosen.gain.high


@pytest.mark.parametrize(("mean", "verdict", "gain"), [(1.5, "slower", -0.2), (1.0, "faster", 0.2)])
def test_where_the_mean_step_tells_another_gain_it_counts(
    mean: float, verdict: str, gain: float, clock: list[float], tmp_path: Path
) -> None:
    """GIVEN a condition whose median step is 20 % shorter WHEN its mean step is half as long again THEN what counts is
    that all of its steps together take longer, and the study says so."""

    def pass_time(seconds: float) -> None:
        clock[0] += seconds

    runs = Drawn({"a": 10.0, "b": 8.0}, 0.01, 0, pass_time)
    runs.folder, runs.means = tmp_path, {"b": mean}
    made = Rounds(runs, [Condition("a"), Condition("b")], lambda: [Pair("a", "b")], 0)
    made.run(clock[0] + 200)
    study = made.save("verify", [], "")
    found = study.comparisons[0]
    assert found.verdict == verdict
    assert found.gain.expected == pytest.approx(gain, abs=0.02)
    assert study.by_mean == ("mean step" in text_of(study)) == (mean != 1)


def test_what_left_early_is_compared_in_its_rounds() -> None:
    """GIVEN a machine that got slower after a condition had left THEN that condition is not the fastest for it."""
    runs = StudyRuns(Path(), [], lambda text: None)
    times_ms = {"base": [10, 10, 20, 20], "stays": [8, 8, 16, 16], "left": [9, 9]}
    runs.blocks = {name: [StepTime(each, each) for each in times] for name, times in times_ms.items()}
    assert fastest(runs, ["stays", "left"], "base") == "stays"
