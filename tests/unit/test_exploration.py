"""Explorations on tapes: planted times per thread count are found, and turned into the advice that they call for."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from synthetic import MS, Tape, make_manifest, make_run

from tracekit.advice import analyze
from tracekit.advice.entries import settings_entries
from tracekit.advice.thread_plan import BETWEEN_PROCESSES
from tracekit.analysis.exploration import REST, Exploration, _pace, condition_times, explore, median_interval
from tracekit.analysis.report_schema import Report
from tracekit.analysis.steps import find_steps
from tracekit.analysis.text import text_report
from tracekit.run.reader import open_run
from tracekit.settings.file import load_settings, write_settings

COUNTS = (1, 2)
STEPS = 4  # of a block, the first of transition
Times = dict[str, dict[int, float]]  # ms by layer and count

NARROW_AND_WIDE: Times = {"narrow": {1: 2.0, 2: 3.0}, "wide": {1: 6.0, 2: 3.0}}


def one_step(
    tape: Tape, times: Times, counts: dict[str, int], factor: float = 1.0, more: float = 0.0, is_plain: bool = False
) -> None:
    with tape.layer("Model"):
        for layer, by_count in times.items():
            taken = by_count[counts[layer]] * factor
            tape.gap(taken) if is_plain else tape.call(layer, taken)
        tape.gap(0.5 + more)


def explored(
    path: Path,
    times: Times,
    rounds: int = 12,
    noise: float = 0.01,
    disturbed: int = -1,
    drift: float = 0.0,
    kept: float = 0.001,
    others: float = 0.0,
    detail: float = 0.3,
    plans: Sequence[dict[str, int]] = (),
    beside: float = 0.0,
) -> Path:
    """A run that tried both counts in turn, in detail and plainly, the first round not counted. `disturbed`: a block of
    waiting. `kept`: the share of the time for which a thread waited for a CPU; `others`: the CPUs that other programs
    kept busy. `detail`: ms that a step in detail takes more. `plans`: counts that are tried together from round 3 on,
    each as long as the others, when a step takes `beside` ms more than its layers among their like."""
    tape, rng = Tape(), np.random.default_rng(5)
    tape.gap(100)
    for _ in range(10):
        one_step(tape, times, dict.fromkeys(times, 2))
    number = 0
    conditions = {f"threads.intra_op={count}": dict.fromkeys(times, count) for count in COUNTS}
    for at, plan in enumerate(plans):
        conditions[f"plan {at}"] = dict.fromkeys(times, 2) | plan
        for layer, count in {"": 2, **plan}.items():
            direction = "forward" if layer else ""
            tape.add("spans", 0, 0, kind="planned", name=layer, step=count, depth=at, direction=direction)
    for round_ in range(2 * (rounds + 1)):
        is_plain = round_ % 2 == 1
        tried = list(conditions)[: len(COUNTS)]
        if plans and is_plain and round_ > 6:
            tried.append(f"plan {(round_ - 7) * len(plans) // (2 * rounds - 5)}")
        for name in rng.permutation(tried):
            start = tape.now
            factor = (1 + noise * rng.standard_normal()) * (1 + drift * round_ / max(2 * rounds, 1))
            factor *= 5 if number == disturbed else 1
            more = (0 if is_plain else detail) + (beside if name.startswith("plan") else 0)
            for _ in range(STEPS):
                one_step(tape, times, conditions[name], factor, more, is_plain)
            waited = (tape.now - start) / MS * (0.8 if number == disturbed else kept + 0.001 * rng.random())
            tape.counter("thread.run_delay_ns", round(waited * MS), start / MS, (tape.now - start) / MS, thread=1)
            tape.add(
                "spans", start, tape.now, kind="plain block" if is_plain else "block", name=name, layer=number,
                step=round_, depth=1, watched=round_ == 0,
            )  # fmt: skip
            number += 1
    whole = tape.now / MS
    tape.counter("process.cpu_ns", round(1.5 * whole * MS), 0, whole)
    tape.counter("host.cpu_busy_ns", round((1.5 + others) * whole * MS), 0, whole, machine=True)
    for name, cost in (("switch 1>2", 20_000), ("switch 2>2", 15_000), ("change", 2_000)):
        tape.add("spans", 0, cost, kind="probe", name=name)
    tape.add("spans", 0, 0, kind="shape", name="narrow = float32 2x8", layer=1)
    return make_run(path, [tape], manifest=make_manifest(cpus=2, physical_cores=2, intra_op=2))


def found(path: Path) -> Exploration:
    run = open_run(path)
    exploration = explore(run, find_steps(run))
    assert exploration is not None
    return exploration


def advised(path: Path) -> tuple[dict[str, object], Report]:
    report = analyze(open_run(path))
    return {entry.name: entry.value for entry in settings_entries(report)}, report


def test_planted_times_are_found_layer_by_layer(tmp_path: Path) -> None:
    exploration = found(explored(tmp_path / "run", NARROW_AND_WIDE, noise=0.0))

    assert (exploration.counts, exploration.current, exploration.rounds) == (COUNTS, 2, 12)
    assert [section.name for section in exploration.sections] == ["narrow", "wide", REST]
    medians = np.nanmedian(exploration.times, axis=0) / MS
    assert medians == pytest.approx(np.array([[2, 3], [6, 3], [0.5, 0.5]]))
    assert exploration.switch[0, 1] == 20_000 and exploration.change == 2_000
    assert exploration.shapes == {"narrow": ["float32 2x8"]}
    assert exploration.problem is None


def test_a_run_without_blocks_is_no_exploration(tmp_path: Path) -> None:
    tape = Tape()
    one_step(tape, NARROW_AND_WIDE, dict.fromkeys(NARROW_AND_WIDE, 1))
    run = open_run(make_run(tmp_path / "run", [tape]))
    assert explore(run, find_steps(run)) is None


def test_a_block_that_was_kept_from_the_cpu_is_left_out(tmp_path: Path) -> None:
    exploration = found(explored(tmp_path / "run", NARROW_AND_WIDE, disturbed=7))
    assert exploration.disturbed == 1
    assert np.nanmax(exploration.step_ns) < 1.2 * 8.5 * MS


def test_a_run_that_ended_in_its_first_round_advises_nothing_and_says_why(tmp_path: Path) -> None:
    settings, report = advised(explored(tmp_path / "run", NARROW_AND_WIDE, rounds=0))
    assert not settings
    assert "too short" in report.advice


def test_drift_is_told(tmp_path: Path) -> None:
    exploration = found(explored(tmp_path / "run", NARROW_AND_WIDE, drift=0.5))
    assert exploration.drift == pytest.approx(0.31, abs=0.1)


def test_the_plan_of_planted_times_is_advised_with_its_gain(tmp_path: Path) -> None:
    """GIVEN 6.5 ms at 2 threads and 5.5 with a plan THEN that plan, a gain of 1/6.5, and a file that loads again."""
    settings, report = advised(explored(tmp_path / "run", NARROW_AND_WIDE, plans=[{"narrow": 1}]))

    common = settings["threads.intra_op"]
    assert settings.get("threads.layers.narrow", common) == 1
    assert settings.get("threads.layers.wide", common) == 2
    [plan] = [each for each in report.settings if each.name == "threads.layers"]
    assert plan.gain.low <= plan.gain.expected <= plan.gain.high
    assert plan.gain.expected == pytest.approx(1 / 6.5, abs=0.02)
    assert settings["threads.measured_on.cpu"] == "synthetic"
    file = tmp_path / "settings.toml"
    write_settings(file, settings_entries(report), report.advice)
    assert load_settings(file) == settings


def test_what_recording_layers_costs_is_in_no_gain(tmp_path: Path) -> None:
    """GIVEN steps that take a third longer in detail THEN times and gains are those of plain steps."""
    path = explored(tmp_path / "run", NARROW_AND_WIDE, detail=2.5, plans=[{"narrow": 1}])
    assert np.nanmedian(found(path).step_ns, axis=0) / MS == pytest.approx([8.5, 6.5], rel=0.01)
    _, report = advised(path)
    assert report.settings[0].gain.expected == pytest.approx(1 / 6.5, abs=0.01)


@pytest.mark.parametrize("beside", [0.0, 0.6])
def test_a_plan_saves_what_it_was_seen_to_save(tmp_path: Path, beside: float) -> None:
    """GIVEN layers that take longer in a plan than among their like THEN the gain is what is left, as measured."""
    path = explored(tmp_path / "run", NARROW_AND_WIDE, plans=[{"narrow": 1}], beside=beside, rounds=20)
    [plan] = [each for each in advised(path)[1].settings if each.name == "threads.layers"]
    assert plan.gain.low <= (1 - beside) / 6.5 <= plan.gain.high
    assert plan.gain.expected == pytest.approx((1 - beside) / 6.5, abs=0.01)
    others = 2 * 1.96 * BETWEEN_PROCESSES  # as wide as it is where this process is known exactly
    assert others < plan.gain.high - plan.gain.low < others + 0.03
    assert plan.basis == "measured"
    assert "these counts together in" in plan.why


def test_a_plan_that_saves_nothing_as_a_whole_is_not_advised(tmp_path: Path) -> None:
    settings, _ = advised(explored(tmp_path / "run", NARROW_AND_WIDE, plans=[{"narrow": 1}], beside=1.0))
    assert settings == {}


def test_a_plan_that_may_save_nothing_is_not_advised_and_that_is_said(tmp_path: Path) -> None:
    """GIVEN a plan that saves some percent in rounds that differ by 15 % THEN only a study puts it to the test."""
    path = explored(tmp_path / "run", NARROW_AND_WIDE, plans=[{"narrow": 1}], beside=0.4, noise=0.15)
    settings, report = advised(path)
    assert settings == {}
    assert "counts by layer that were tried together saved" in report.advice
    assert "no gain is certain; let it run more steps, or put them to the test" in report.advice
    assert report.exploration is not None and report.exploration.candidate


def test_what_was_tried_is_advised_though_no_layer_is_certain_by_itself(tmp_path: Path) -> None:
    """GIVEN layers that show no difference, and counts that together spare 0.4 of 8.5 ms THEN these are advised."""
    times: Times = {"narrow": {1: 2.0, 2: 2.0}, "wide": {1: 6.0, 2: 6.0}}
    settings, report = advised(explored(tmp_path / "run", times, plans=[{"narrow": 1}], beside=-0.4))
    assert settings["threads.layers.narrow"] == 1
    gain = report.settings[0].gain
    assert 0 < gain.low <= 0.4 / 8.5 <= gain.high


def test_of_the_plans_that_were_tried_the_one_that_most_surely_gains_is_advised(tmp_path: Path) -> None:
    """GIVEN a plan that spares 1.0 ms and one that spares 1.2 THEN the latter, with its own gain."""
    times = NARROW_AND_WIDE | {"last": {1: 1.0, 2: 1.2}}
    plans = [{"narrow": 1}, {"narrow": 1, "last": 1}]
    settings, report = advised(explored(tmp_path / "run", times, rounds=20, plans=plans))
    common = settings["threads.intra_op"]
    assert settings.get("threads.layers.last", common) == settings.get("threads.layers.narrow", common) == 1
    assert settings.get("threads.layers.wide", common) == 2
    assert report.settings[0].gain.expected == pytest.approx(1.2 / 7.7, abs=0.01)


def test_a_plan_that_came_up_again_is_known_by_all_its_rounds(tmp_path: Path) -> None:
    """GIVEN few rounds of a plan, then some of a useless one, then the first again THEN it is judged by both parts."""
    plans = [{"narrow": 1}, {"wide": 1}, {"narrow": 1}]
    path = explored(tmp_path / "run", NARROW_AND_WIDE, rounds=20, plans=plans)
    rounds = {trial.choice[:2]: trial.rounds for trial in found(path).trials}
    assert rounds == {(1, 2): 12, (2, 1): 6}
    _, report = advised(path)
    assert report.settings[0].gain.expected == pytest.approx(1 / 6.5, abs=0.01)
    assert "these counts together in 12 of them" in report.settings[0].why


def test_a_plan_that_was_not_tried_as_a_whole_is_not_advised(tmp_path: Path) -> None:
    settings, report = advised(explored(tmp_path / "run", NARROW_AND_WIDE))
    assert settings == {}
    assert "were not tried together often enough; let it run more steps, or" in report.advice


def test_the_text_names_the_first_layers_of_a_plan(tmp_path: Path) -> None:
    _, report = advised(explored(tmp_path / "run", NARROW_AND_WIDE, plans=[{"narrow": 1}]))
    plan = next(each for each in report.settings if each.name == "threads.layers")
    plan.recommended = {f"layer\x1b{number}" + "x" * 80: 1 for number in range(1000)}
    text = text_report(report)
    assert "and 988 more, saves" in " ".join(text.split())
    assert "\x1b" not in text
    assert all(len(line) <= 100 for line in text.rsplit("next: ", 1)[0].splitlines())


def test_one_count_is_advised_where_all_layers_want_it(tmp_path: Path) -> None:
    narrow = {"first": {1: 2.0, 2: 3.0}, "second": {1: 1.0, 2: 1.2}}
    settings, report = advised(explored(tmp_path / "run", narrow))
    assert settings == {"threads.intra_op": 1}
    assert report.settings[0].basis == "measured"
    assert report.settings[0].gain.expected == pytest.approx(1.2 / 4.7, abs=0.03)


def test_nothing_is_advised_where_nothing_helps(tmp_path: Path) -> None:
    same = {"first": {1: 2.0, 2: 2.0}, "second": {1: 6.0, 2: 3.0}}
    settings, report = advised(explored(tmp_path / "run", same))
    assert settings == {}
    assert "as fast as it was seen to be" in report.advice


def test_a_gain_that_may_be_the_doing_of_other_programs_is_not_advised(tmp_path: Path) -> None:
    """GIVEN threads that wait for a CPU a fifth of the time THEN a gain of 15 % is advised where they crowd themselves
    (loader workers, other ranks) and not where another program had the CPUs; nor is one of 60 %, for a team may lose
    many times what one thread lost."""
    crowded = explored(tmp_path / "crowded", NARROW_AND_WIDE, plans=[{"narrow": 1}], kept=0.2)
    assert advised(crowded)[0]
    beside = explored(tmp_path / "beside", NARROW_AND_WIDE, plans=[{"narrow": 1}], kept=0.2, others=0.9)
    settings, report = advised(beside)
    assert settings == {}
    assert "other programs kept the threads from their CPUs for 20" in report.advice
    assert found(beside).kept == pytest.approx([0.2, 0.2], abs=0.002)
    assert found(explored(tmp_path / "little", NARROW_AND_WIDE, plans=[{"narrow": 1}], kept=0.2, others=0.05)).kept[
        0
    ] == pytest.approx(0.05)
    large = {"first": {1: 2.0, 2: 5.0}}
    assert advised(explored(tmp_path / "large", large, kept=0.2, others=0.9))[0] == {}
    assert advised(explored(tmp_path / "less", large, kept=0.05, others=0.9))[0] == {"threads.intra_op": 1}


def test_a_gain_below_the_cost_of_switching_is_not_advised(tmp_path: Path) -> None:
    settings, _ = advised(
        explored(tmp_path / "run", {"first": {1: 0.050, 2: 0.055}, "second": {1: 6.0, 2: 3.0}}, noise=0.0)
    )
    assert settings == {}


def test_too_few_rounds_say_so(tmp_path: Path) -> None:
    settings, report = advised(explored(tmp_path / "run", NARROW_AND_WIDE, rounds=2))
    assert settings == {}
    assert report.advice.startswith("No thread count is recommended: the run was too short: 2 rounds")


def test_every_layer_has_a_finding_with_its_times(tmp_path: Path) -> None:
    _, report = advised(explored(tmp_path / "run", NARROW_AND_WIDE, noise=0.0))
    evidence = {each.evidence["layer"]: each.evidence for each in report.findings if each.id == "threads.layer_times"}
    assert evidence["narrow"]["times"] == pytest.approx({"1": 2.0, "2": 3.0})
    assert set(evidence) == {"narrow", "wide", REST}


def test_guidelines_are_judged_against_all_configurations(tmp_path: Path) -> None:
    _, report = advised(explored(tmp_path / "run", NARROW_AND_WIDE, noise=0.0))
    assert report.exploration is not None
    beats = {guideline.sentence: guideline.beats for guideline in report.exploration.guidelines}
    grid = report.exploration.guidelines[0]
    assert grid.configurations == 8 and "3 groups" in grid.grid
    assert beats["Give every layer the count that is best for it alone."] == max(beats.values())
    assert beats["Run everything with 1 thread."] < beats["Run everything with 2 threads."] < max(beats.values())


def test_blocks_of_any_condition_give_their_mean_step(tmp_path: Path) -> None:
    run = open_run(explored(tmp_path / "run", NARROW_AND_WIDE, noise=0.0))
    table = condition_times(run, find_steps(run))
    assert table.groupby("name")["step_ns"].median().to_dict() == pytest.approx(
        {"threads.intra_op=1": 8.8 * MS, "threads.intra_op=2": 6.8 * MS}
    )
    assert len(table) == 24


@pytest.mark.parametrize("count", [1, 3, 5, 6, 20, 61])
def test_the_interval_of_a_median_holds_it(count: int) -> None:
    rng = np.random.default_rng(count)
    inside = 0
    for _ in range(300):
        low, middle, high = median_interval(rng.lognormal(np.log(2), size=count))
        assert low <= middle <= high
        inside += low <= 2 <= high
    assert count == 1 or inside / 300 > 0.92


def test_a_count_that_has_left_is_compared_in_the_rounds_that_it_was_in() -> None:
    """GIVEN steps that become three times as long, and a count, the slowest, which only early rounds had THEN at the
    pace of the usual round all counts are as far apart as they are within each round."""
    rounds = 40
    grown = np.linspace(1.0, 3.0, rounds)
    step_ns = np.outer(grown, [1.0, 1.2, 1.5]) * np.random.default_rng(0).normal(1, 0.01, (rounds, 3))
    step_ns[8:, 2] = np.nan
    medians = np.nanmedian(step_ns / _pace(step_ns)[:, None], axis=0)
    assert medians / medians[0] == pytest.approx([1.0, 1.2, 1.5], rel=0.02)
    assert np.nanmedian(step_ns, axis=0)[2] < np.nanmedian(step_ns, axis=0)[0]  # as it would have seemed
