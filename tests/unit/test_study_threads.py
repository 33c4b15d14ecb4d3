"""What a study of thread counts recommends, from comparisons that are planted."""

from pathlib import Path
from typing import Any

import pytest

from tracekit.advice.entries import entries_of
from tracekit.analysis.report_schema import Advice, Gain
from tracekit.study.runs import Condition
from tracekit.study.statistics import Comparison
from tracekit.study.threads import conclude

PLAN: dict[str, Any] = {"threads.intra_op": 1, "threads.layers.wide": 2, "threads.measured_on.cpu": "this"}
CONDITIONS = [
    Condition("baseline"),
    Condition("fixed:1", {"threads.intra_op": 1}),
    Condition("fixed:2", {"threads.intra_op": 2}),
    Condition("fixed:1 compact", {"threads.intra_op": 1, "threads.affinity": "compact"}),
    Condition("dynamic", PLAN),
]


def concluded(*found: tuple[str, str, str, float], current: int = 2) -> Advice:
    """The advice after comparisons (a, b, verdict, expected gain); the first is of the best count."""
    floor = ("baseline", "baseline again", "same", 0.0)
    comparisons = [
        Comparison(a, b, Gain(gain - 0.02, gain, gain + 0.02), verdict, 9, 0.01)  # type: ignore[arg-type]
        for a, b, verdict, gain in (*found, floor)
    ]
    return conclude(comparisons, CONDITIONS, current, Path("/study"), ["python", "train.py"])


def values(advice: Advice) -> dict[str, Any]:
    return {entry.name: entry.value for entry in entries_of(advice)}


def test_a_plan_that_beat_the_best_count_is_recommended_with_its_gain_over_nothing_set() -> None:
    advice = concluded(
        ("baseline", "fixed:1", "faster", 0.1),
        ("baseline", "dynamic", "faster", 0.2),
        ("fixed:1", "dynamic", "faster", 0.12),
    )
    assert values(advice) == PLAN
    assert {each.gain.expected for each in advice.settings} == {0.2}
    assert "against fixed:1 it saves 12.0% (10.0% to 14.0%)" in advice.settings[0].why
    assert advice.settings[0].apply == "tracekit apply /study/settings.toml -- python train.py"


@pytest.mark.parametrize("verdict", ["same", "slower", "undecided"])
def test_a_plan_that_did_not_beat_it_gives_way_to_the_count(verdict: str) -> None:
    advice = concluded(
        ("baseline", "fixed:1", "faster", 0.1),
        ("baseline", "dynamic", "faster", 0.2),
        ("fixed:1", "dynamic", verdict, 0.0),
    )
    assert values(advice) == {"threads.intra_op": 1}


def test_of_two_that_beat_it_the_better_one_is_taken() -> None:
    advice = concluded(
        ("baseline", "fixed:1", "faster", 0.1),
        ("baseline", "fixed:1 compact", "faster", 0.3),
        ("fixed:1", "fixed:1 compact", "faster", 0.2),
        ("baseline", "dynamic", "faster", 0.2),
        ("fixed:1", "dynamic", "faster", 0.1),
    )
    assert values(advice) == {"threads.intra_op": 1, "threads.affinity": "compact"}
    assert [each.effect for each in advice.settings] == ["numerics", "identical"]


def test_nothing_that_was_certainly_faster_is_recommended_nothing() -> None:
    advice = concluded(("baseline", "fixed:1", "undecided", 0.1), ("baseline", "dynamic", "undecided", 0.2))
    assert values(advice) == {}
    assert "fixed:1 against baseline: undecided, dynamic against baseline: undecided" in advice.why


def test_the_count_that_the_program_has_is_no_recommendation() -> None:
    advice = concluded(("baseline", "fixed:2", "faster", 0.1))
    assert values(advice) == {}
    assert "is what the program has" in advice.why


def test_of_a_program_with_one_thread_two_may_be_recommended() -> None:
    advice = concluded(("baseline", "fixed:2", "faster", 0.1), current=1)
    (setting,) = advice.settings
    assert (setting.name, setting.current, setting.recommended) == ("threads.intra_op", 1, 2)
