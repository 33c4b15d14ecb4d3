"""What may share the node: the largest doses that are safe, and guests that stand back where none is."""

import os
from collections.abc import Sequence

import pytest

from tracekit.advice.noise import CORES, NOISE, harvest
from tracekit.analysis.noise_effects import NoiseEffect
from tracekit.analysis.noise_verdicts import Slowdown, Verdict
from tracekit.models.noise import gentler, largest_safe, predict
from tracekit.noise.spec import Spec, parse

SLOWDOWNS: dict[Verdict, Slowdown] = {
    "safe": Slowdown(-0.005, 0.002, 0.01),
    "unsafe": Slowdown(0.1, 0.2, 0.3),
    "undecided": Slowdown(-0.01, 0.02, 0.05),
}
MARGIN, CPU = 0.02, min(os.sched_getaffinity(0))


def effect(noise: str, verdict: Verdict, share: float = 1.0) -> NoiseEffect:
    dose = parse(noise).dose if "+" not in noise else 1.0
    return NoiseEffect(noise, dose, share * dose, "CPUs", verdict, SLOWDOWNS[verdict], 0.01, 20)


def tried(*effects: NoiseEffect) -> tuple[list[Spec], dict[str, NoiseEffect]]:
    return [parse(each.noise) for each in effects if "+" not in each.noise], {each.noise: each for each in effects}


def labels(specs: Sequence[Spec]) -> list[str]:
    return [spec.label for spec in specs]


def test_a_dose_above_one_that_is_not_safe_is_not_taken() -> None:
    specs, effects = tried(effect("cpu=0.5", "safe"), effect("cpu=1", "undecided"), effect("cpu=2", "safe"))
    assert labels(largest_safe(specs, effects)) == ["cpu=0.5"]


def test_the_least_unsafe_dose_of_each_is_tried_again_standing_back() -> None:
    """GIVEN two kinds with doses that are unsafe, and one without THEN each of the two stands back at its least one."""
    specs, effects = tried(
        effect("cpu=0.5", "safe"), effect("cpu=1", "unsafe"), effect("cpu=2", "unsafe"),
        effect("memory=1GB/s", "undecided"), effect("disk=10MB/s@/", "unsafe"),
    )  # fmt: skip
    assert labels(gentler(specs, effects, [])) == ["cpu=1@nice19", "disk=10MB/s@/@nice19@ionice3"]
    again = gentler(specs, effects, [])
    effects |= {each.label: effect(each.label, "unsafe") for each in again}
    assert gentler(again, effects, []) == []


@pytest.mark.parametrize(("share", "wins"), [(0.9, "cpu=1@nice19"), (0.3, "cpu=0.5")])
def test_of_two_that_are_safe_the_one_that_does_more_is_taken(share: float, wins: str) -> None:
    specs, effects = tried(effect("cpu=0.5", "safe"), effect("cpu=1", "unsafe"))
    specs += gentler(specs, effects, [])
    effects["cpu=1@nice19"] = effect("cpu=1@nice19", "safe", share)
    assert labels(largest_safe(specs, effects)) == [wins]


def test_the_plan_tells_how_to_start_the_guest_and_what_it_had() -> None:
    """GIVEN a guest that was safe standing back with a third of its CPU THEN it is told so, and no core is spare."""
    specs, effects = tried(effect("cpu=1", "unsafe"))
    specs += gentler(specs, effects, [CPU])
    (gentle,) = specs[1:]
    effects[gentle.label] = effect(gentle.label, "safe", 1 / 3)
    plan = harvest(specs, list(effects.values()), [], MARGIN)
    (setting,) = plan.settings
    assert (setting.name, setting.recommended) == (NOISE, gentle.label)
    assert setting.apply == f"taskset -c {CPU} nice -n 19 GUEST..."
    assert "33%" in setting.why


@pytest.mark.parametrize(("share", "spare"), [(0.98, 2), (0.9, 1), (0.4, None)])
def test_a_core_is_spare_where_a_guest_had_it(share: float, spare: int | None) -> None:
    specs, effects = tried(effect("cpu=2", "safe", share))
    settings = {each.name: each.recommended for each in harvest(specs, list(effects.values()), [], MARGIN).settings}
    assert settings[NOISE] == "cpu=2" and settings.get(CORES) == spare


@pytest.mark.parametrize(("verdict", "count"), [("safe", 2), ("undecided", 0), (None, 0)])
def test_a_mix_is_recommended_where_it_was_safe_itself(verdict: Verdict | None, count: int) -> None:
    specs, effects = tried(effect("cpu=1", "safe"), effect("memory=1GB/s", "safe"))
    if verdict:
        effects["cpu=1 + memory=1GB/s"] = effect("cpu=1 + memory=1GB/s", verdict)
    everything = list(effects.values())
    plan = harvest(specs, everything, predict(everything), MARGIN)
    assert len(plan.settings) == count


def test_nothing_is_recommended_where_nothing_is_safe() -> None:
    specs, effects = tried(effect("cpu=1", "unsafe"), effect("memory=1GB/s", "undecided"))
    plan = harvest(specs, list(effects.values()), [], MARGIN)
    assert plan.settings == [] and "cpu=1: unsafe" in plan.why
