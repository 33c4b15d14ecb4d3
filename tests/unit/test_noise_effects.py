"""What is said of noise beside a run: doses, blocks, verdict and blame, of runs in which all of that was planted."""

from pathlib import Path

import numpy as np
import pytest
from synthetic import Tape, make_manifest, make_run

from tracekit.analysis.noise import SILENCE, doses, noise_blocks, noise_log
from tracekit.analysis.noise_effects import Blocks, noise_effects
from tracekit.analysis.report import analyze
from tracekit.analysis.steps import find_steps
from tracekit.analysis.text import text_report
from tracekit.dashboards.app import show
from tracekit.dashboards.library import Library
from tracekit.run.reader import Run, open_run

BLOCK_MS = 300.0
# By noise: what a step gets longer by in each phase, ms, and what of that is CPU time and waiting for a CPU.
Plan = dict[str, tuple[dict[str, float], float, float]]


def planted(
    path: Path, plan: Plan, rounds: int = 10, achieved: float = 1.0, silence: bool = True, counted: bool = False
) -> Run:
    """A run with blocks of each noise in turn, and silence before each; steps of 15 ms that vary by 1 %. Where cache
    misses are `counted`, noise makes half as many more."""
    tape, rng = Tape(), np.random.default_rng(1)
    tape.gap(500)
    for _ in range(rounds):
        for noise in plan:
            if silence:
                block(tape, rng, "", ({}, 0.0, 0.0), achieved, counted)
            block(tape, rng, noise, plan[noise], achieved, counted)
    if silence:
        block(tape, rng, "", ({}, 0.0, 0.0), achieved, counted)
    make_run(path, [tape], manifest=make_manifest(noise=list(plan)))
    return open_run(path)


def block(
    tape: Tape,
    rng: np.random.Generator,
    noise: str,
    effect: tuple[dict[str, float], float, float],
    achieved: float,
    counted: bool = False,
) -> None:
    longer, cpu, delay = effect
    begin = tape.now / 1e6
    while tape.now / 1e6 < begin + BLOCK_MS:
        start = tape.now / 1e6
        usual = float(rng.normal(1.0, 0.01))
        tape.batch(2.0 * usual + longer.get("loading", 0.0))
        tape.call("Model", 4.0 * usual + longer.get("forward", 0.0))
        with tape.backward(6.0 * usual + longer.get("backward", 0.0)):
            pass
        tape.collective(1.0 * usual + longer.get("communication", 0.0))
        tape.optimizer(2.0 * usual + longer.get("optimizer", 0.0))
        length = tape.now / 1e6 - start
        tape.counter("process.cpu_ns", round(1e6 * (12.0 * usual + cpu)), start, length)
        tape.counter("thread.run_delay_ns", round(1e6 * delay), start, length)
        if counted:
            tape.counter("perf.cache_misses", 1500 if noise else 1000, start, length)
        tape.counter("cpu.0.busy_ns", round(1e6 * 0.9 * length), start, length, machine=True)
    end = tape.now / 1e6
    for edge in np.arange(begin, end, 100.0) if noise else ():
        length = min(100.0, end - edge)
        for what, share in (("asked", 1.0), ("done", achieved)):
            tape.counter(f"noise.{noise}.{what}_bytes", round(4e6 * length * share), edge, length, machine=True)


MEMORY, DISK, CPU, NETWORK, HARMLESS = "memory=4GB/s", "disk=50MB/s@/x.y", "cpu=1@0", "network=1Gb/s", "cache=1GB/s"
PLAN: Plan = {
    MEMORY: ({"forward": 0.6, "backward": 0.9}, 1.5, 0.0),
    DISK: ({"loading": 3.0}, 0.0, 0.0),
    CPU: ({"forward": 1.0, "backward": 1.0, "optimizer": 0.4}, 0.0, 2.4),
    NETWORK: ({"communication": 1.5}, 0.0, 0.0),
    HARMLESS: ({}, 0.0, 0.0),
}


def test_each_noise_has_its_verdict_and_its_blame(tmp_path: Path) -> None:
    run = planted(tmp_path / "run", PLAN)
    effects = {each.noise: each for each in noise_effects(run, find_steps(run))}
    assert {name: each.verdict for name, each in effects.items()} == {
        MEMORY: "unsafe", DISK: "unsafe", CPU: "unsafe", NETWORK: "unsafe", HARMLESS: "safe",
    }  # fmt: skip
    for name, (longer, _, _) in PLAN.items():
        slow = effects[name].slowdown
        assert slow.low - 0.003 <= sum(longer.values()) / 15.0 <= slow.high + 0.003
    most = {name: (each.blame[0].phase, each.blame[0].resource) for name, each in effects.items() if each.blame}
    assert most[MEMORY] == ("backward", "memory")
    assert most[DISK] == ("loading", "disk")
    assert most[NETWORK] == ("communication", "network")
    assert most[CPU][1] == "cpu"
    assert {name: each.shared_cpus for name, each in effects.items() if each.shared_cpus} == {CPU: [0]}
    for each in effects.values():
        assert sum(part.share for part in each.blame) <= 1 + 1e-9
    assert effects[MEMORY].blame[0].share == pytest.approx(0.6, abs=0.06)


def test_the_dose_that_was_achieved_is_told(tmp_path: Path) -> None:
    run = planted(tmp_path / "run", {DISK: PLAN[DISK]}, achieved=0.5)
    dose = doses(noise_log(run))[DISK]
    assert (dose.asked, dose.done) == pytest.approx((4e9, 2e9))
    assert dose.unit == "bytes/s"
    (effect,) = noise_effects(run, find_steps(run))
    assert effect.share == pytest.approx(0.5)
    report = analyze(run)
    (finding,) = [each for each in report.findings if each.id == "noise.verdict"]
    assert "of the dose 50% was achieved" in finding.title and "in loading, by disk" in finding.title
    assert {"kind", "dose", "achieved", "verdict", "slowdown", "blame"} <= finding.evidence.keys()
    assert "NOISE" in text_report(report) and DISK in text_report(report)


@pytest.mark.parametrize(("counted", "more"), [(True, pytest.approx(0.5)), (False, None)])
def test_cache_misses_are_told_where_the_machine_counts_them(counted: bool, more: object, tmp_path: Path) -> None:
    run = planted(tmp_path / "run", {MEMORY: PLAN[MEMORY]}, counted=counted)
    (effect,) = noise_effects(run, find_steps(run))
    assert effect.cache_misses == more
    (finding,) = [each for each in analyze(run).findings if each.id == "noise.verdict"]
    assert ("+50% cache misses" in finding.title) == counted


def test_blocks_hold_whole_steps_of_one_noise_or_none(tmp_path: Path) -> None:
    run = planted(tmp_path / "run", {DISK: PLAN[DISK], CPU: PLAN[CPU]}, rounds=4)
    steps = find_steps(run)
    blocks = noise_blocks(noise_log(run), steps)
    assert [block.condition for block in blocks] == [SILENCE, DISK, SILENCE, CPU] * 4 + [SILENCE]
    table = steps.of(steps.main)
    for each in blocks:
        mine = table.iloc[each.first : each.first + len(each.durations_ns)]
        assert mine["start_ns"].iloc[0] >= each.start_ns
        assert mine["start_ns"].iloc[-1] + mine["duration_ns"].iloc[-1] <= each.end_ns
        assert list(mine["duration_ns"]) == list(each.durations_ns)


def test_noise_without_silence_is_compared_with_nothing(tmp_path: Path) -> None:
    run = planted(tmp_path / "run", {DISK: PLAN[DISK]}, silence=False)
    (effect,) = noise_effects(run, find_steps(run))
    assert (effect.verdict, effect.blocks) == ("undecided", 0)
    assert "no silence" in effect.why
    (finding,) = [each for each in analyze(run).findings if each.id == "noise.verdict"]
    assert "longer" not in finding.title


def test_a_run_in_silence_has_no_noise(tmp_path: Path) -> None:
    tape = Tape()
    tape.batch(1.0)
    make_run(tmp_path / "run", [tape])
    assert analyze(open_run(tmp_path / "run")).noise == []
    with Library(tmp_path) as library:
        assert "No noise was made" in str(show(library, "/", "/noise", "?run=run")[2])


def test_the_dashboard_shows_verdicts_doses_and_blame(tmp_path: Path) -> None:
    planted(tmp_path / "run", PLAN)
    with Library(tmp_path) as library:
        content = str(show(library, "/", "/noise", "?run=run")[2])
    for words in ("Steps over time", "Verdicts", "Slowdown against dose", "Which phase got longer", MEMORY):
        assert words in content
    assert "cannot be shown" not in content


def test_a_cpu_is_spare_where_it_was_seen_to_be() -> None:
    """GIVEN CPUs that were idle, busy, not read in some run or in none THEN only what was seen to be idle is spare."""
    blocks = Blocks(busy=[{0: 0.1, 1: 0.9, 2: 0.2}, {0: 0.3, 1: 0.9, 2: float("nan")}])
    assert blocks.spare([0, 1, 2, 3]) == [0, 2]
    assert Blocks().spare([0, 1]) == []
