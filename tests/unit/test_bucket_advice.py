"""What is told of gradient buckets, of runs whose buckets are known."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import Longer, delay, nothing, ranks_run
from synthetic import Tape, make_run

from tracekit.advice import analyze
from tracekit.advice.buckets import _behind, best_cap, effect_on, gain_over
from tracekit.advice.unused_parameters import SETTING as LOOK
from tracekit.analysis.report_schema import BucketForecast, BucketSummary, Gain
from tracekit.analysis.text import text_report
from tracekit.dashboards.figures.distributed import buckets_figure
from tracekit.models.ddp_replay import MIB
from tracekit.run.manifest import Wrapped
from tracekit.run.reader import Run, open_run
from tracekit.study.ddp import VIEW, _conclude, candidates, usual_caps
from tracekit.study.statistics import Comparison

FIRST, SECOND = MIB + 1024, 4 * MIB


def wrapped(*sizes: int) -> Wrapped:
    """A model under torch's own cap whose gradients come in this order."""
    return Wrapped(bucket_cap_mb=25.0, parameters=len(sizes), bytes=sum(sizes), sizes=list(sizes[::-1]))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Two ranks, two buckets in each pass."""
    return two_ranks(tmp_path / "run")


def two_ranks(path: Path, longer: Longer = nothing, kept: Longer = nothing) -> Run:
    found = ranks_run(path, 2, 60, longer, kept, computes=True, bucket_bytes=(FIRST, SECOND))
    assert found.manifest.torch is not None
    found.manifest.torch.intra_op = 1
    return found


def test_each_cap_that_makes_other_buckets_has_a_forecast(run: Run) -> None:
    run.manifest.ddp = [wrapped(1024, MIB, 2 * MIB, 2 * MIB)]
    report = analyze(run)
    assert report.buckets is not None, report.advice
    own, *others = report.buckets.forecasts
    assert own.expected_ms == pytest.approx(report.steps.median_ms)
    assert own.buckets == 2 and len({each.buckets for each in others}) == len(others)
    assert "BUCKETS  of 5.2 MB of gradients" in text_report(report)


def test_waiting_for_a_late_rank_is_no_cost_of_the_network(tmp_path: Path) -> None:
    """GIVEN a rank that comes a step's time later THEN other caps save as many ms as if it did not."""
    saved = []
    for late_ms in (0.0, 20.0):
        found = two_ranks(tmp_path / f"{late_ms:g}", delay("forward", late_ms, lambda step: 1))
        found.manifest.ddp = [wrapped(1024, MIB, 2 * MIB, 2 * MIB)]
        report = analyze(found)
        assert report.buckets is not None and report.steps.median_ms is not None
        own, *others = report.buckets.forecasts
        saved.append([own.expected_ms - each.expected_ms for each in others])
        assert report.buckets.ideal_ms == pytest.approx(report.steps.median_ms - 1.0, abs=0.1)  # the transfer
    assert saved[0] == pytest.approx(saved[1], abs=0.5)


def test_gradients_of_some_ranks_are_those_of_the_group_that_they_meet_in(tmp_path: Path) -> None:
    """GIVEN two groups of two ranks each, whose buckets have the same numbers THEN what is told is of one of them."""
    found = ranks_run(
        tmp_path / "run", 4, 60, computes=True, bucket_bytes=(FIRST, SECOND), group=lambda rank: "ab"[rank % 2]
    )
    found.manifest.ddp = [wrapped(1024, MIB, 2 * MIB, 2 * MIB)]
    asked: list[str] = []

    def cpu_per_byte(here: Run, ranks: str, sent: float) -> float:
        asked.append(ranks)
        return 0.0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tracekit.analysis.gradient_passes._cpu_per_byte", cpu_per_byte)
        report = analyze(found)
    assert report.buckets is not None and report.buckets.ranks == 2, report.advice
    assert asked == ["0, 2"]  # what sends the gradients of the others is no part of it


def test_where_others_have_buckets_and_the_first_rank_none_nothing_is_told(tmp_path: Path) -> None:
    """GIVEN a first rank of which no bucket was recorded, as where that has switched itself off."""
    found = ranks_run(
        tmp_path / "run", 3, 60, computes=True, bucket_bytes=(FIRST, SECOND), missing=lambda rank, step: rank == 0
    )
    found.manifest.ddp = [wrapped(1024, MIB, 2 * MIB, 2 * MIB)]
    report = analyze(found)
    assert report.buckets is None and "no gradient bucket was seen" in report.advice


@pytest.mark.parametrize("away_ms", [0.5, 6.0])
def test_a_pass_that_was_off_its_cpu_is_no_cost_of_the_network(away_ms: float, tmp_path: Path) -> None:
    """GIVEN ranks that something else keeps from their CPUs in each backward pass, as a loader on the same CPU does, or
    a hook that sleeps THEN nothing is told of other caps, unless it is so short that the model's error covers it."""
    found = two_ranks(tmp_path / "run", kept=lambda rank, step, phase: away_ms if phase == "backward" else 0.0)
    found.manifest.ddp = [wrapped(1024, MIB, 2 * MIB, 2 * MIB)]
    report = analyze(found)
    assert (report.buckets is None) == ("was off its CPU" in report.advice) == (away_ms > 1)


@pytest.mark.parametrize(("hook", "threads", "world", "why"), [
    (True, 1, 2, "a communication hook"),
    (False, 4, 2, "each operator has 4 threads"),
    (False, 1, 4, "2 of 4 ranks were seen"),
])  # fmt: skip
def test_where_a_replay_would_be_wrong_there_is_none(hook: bool, threads: int, world: int, why: str, run: Run) -> None:
    model = wrapped(1024, MIB, 2 * MIB, 2 * MIB)
    model.hook = hook
    run.manifest.ddp = [model]
    assert run.manifest.torch is not None
    run.manifest.torch.intra_op = threads
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tracekit.analysis.gradient_passes.world_of", lambda ranks: world)
        report = analyze(run)
    assert report.buckets is None and why in report.advice


@pytest.mark.parametrize(
    ("models", "why"),
    [
        ([wrapped(MIB, 2 * MIB)], "not those that its parameters make"),
        ([wrapped(MIB), wrapped(MIB)], "several models"),
        ([Wrapped(parameters=5000, sizes=[4] * 4000)], "5000 parameters"),
        ([Wrapped()], "not those that its parameters make"),
        ([Wrapped(bucket_cap_mb=float("nan"), parameters=1, sizes=[-5])], "not those that its parameters make"),
    ],
)
def test_what_cannot_be_told_is_said(models: list[Wrapped], why: str, run: Run) -> None:
    run.manifest.ddp = models
    report = analyze(run)
    assert report.buckets is None and not [each for each in report.settings if each.name.startswith("ddp.")]
    assert why in report.advice


def test_a_model_whose_gradients_never_met_is_told(tmp_path: Path) -> None:
    found = open_run(make_run(tmp_path / "run", [Tape(process=0, role="rank 0", rank=0)]))
    found.manifest.ddp = [wrapped(MIB)]
    assert "no gradient bucket was seen" in analyze(found).advice


def explored(
    path: Path,
    step_ms: dict[str, float],
    rounds: int,
    noise: float = 0.05,
    seldom: str = "",
    slow: tuple[str, int] = ("", 0),
) -> Run:
    """Two ranks that tried these caps in turn, one of them in every fourth round: 3 steps of each block belong to the
    change, and are ten times as long. So many steps of each block of one cap take twice as long as the others. The
    machine is up to twice as slow in some rounds as in others."""
    random, tapes = np.random.default_rng(1), [Tape(process=rank, role=f"rank {rank}", rank=rank) for rank in (0, 1)]
    for tape in tapes:
        tape.gap(100)
    blocks = [(round_, cap) for round_ in range(rounds) for cap in step_ms if cap != seldom or round_ % 4 == 3]
    for number, (round_, cap) in enumerate(blocks):
        factor = (1 + round_ % 3 / 2) * np.exp(noise * random.standard_normal())
        for tape in tapes:
            start = tape.now
            for step in range(11):
                with tape.backward():
                    twice = 1 + (cap == slow[0] and 3 <= step < 3 + slow[1])
                    tape.gap(step_ms[cap] * twice * (10 if step < 3 else factor))
                tape.optimizer(0.001)
            name = f"ddp.bucket_cap_mb={cap}"
            tape.add("spans", start, tape.now, kind="block", name=name, layer=number, step=round_, depth=3)
    run = open_run(make_run(path, tapes))
    run.manifest.ddp = [wrapped(1024, MIB, 2 * MIB, 2 * MIB)]
    return run


def test_caps_that_were_tried_are_measured(tmp_path: Path) -> None:
    """GIVEN a cap that is 10 % faster and one that is 10 % slower THEN the first is recommended, with what it saved."""
    report = analyze(explored(tmp_path / "run", {"25": 10.0, "1": 9.0, "4": 11.0}, rounds=20))
    assert report.buckets is not None and report.buckets.rounds == 20 and report.buckets.ideal_ms is None
    own, first, second = report.buckets.forecasts
    assert (own.cap_mb, first.cap_mb, second.cap_mb) == (25.0, 1.0, 4.0)
    assert (own.buckets, first.buckets, second.buckets) == (2, 3, 1)
    assert first.low_ms / own.expected_ms < 0.9 < first.high_ms / own.expected_ms < 1
    assert 1 < second.low_ms / own.expected_ms < 1.1 < second.high_ms / own.expected_ms
    (setting,) = [each for each in report.settings if each.name == "ddp.bucket_cap_mb"]
    assert (setting.recommended, setting.basis, setting.effect) == (1.0, "measured", "identical")
    assert setting.gain.low < 0.1 < setting.gain.high and "in up to 20 rounds" in setting.why
    assert "measured in up to 20 rounds" in text_report(report)
    assert buckets_figure(report.buckets).data


def test_steps_of_two_kinds_count_as_often_as_they_are(tmp_path: Path) -> None:
    """GIVEN a cap with which most steps are 20 % faster and 3 of the 8 that count take twice as long THEN the run would
    take longer with it: it is not recommended."""
    report = analyze(explored(tmp_path / "run", {"25": 10.0, "1": 8.0}, rounds=20, slow=("1", 3)))
    assert report.buckets is not None and not report.settings
    own, other = report.buckets.forecasts
    assert other.low_ms < 8.0 / 10.0 * (8 + 3) / 8 * own.expected_ms < other.high_ms


def test_a_cap_that_was_tried_seldom_is_compared_in_its_own_rounds(tmp_path: Path) -> None:
    """GIVEN a slow cap that was tried in a quarter of the rounds THEN the other one is measured in all of them, and
    what is told of the slow one is no less true, but wider."""
    caps = {"25": 10.0, "1": 9.0, "4": 13.0}
    report = analyze(explored(tmp_path / "run", caps, rounds=24, seldom="4"))
    assert report.buckets is not None and report.buckets.rounds == 24
    own, first, second = ((each.low_ms, each.expected_ms, each.high_ms) for each in report.buckets.forecasts)
    assert first[0] / own[1] < 0.9 < first[2] / own[1] < 1
    assert second[0] / own[1] < 1.3 < second[2] / own[1]
    assert second[2] / second[0] > first[2] / first[0]
    short = analyze(explored(tmp_path / "short", caps, rounds=8, seldom="4"))
    assert short.buckets is None and "2 rounds of blocks" in short.advice


def test_caps_that_may_be_no_faster_are_not_recommended(tmp_path: Path) -> None:
    """GIVEN twelve caps that all are as fast as the program's own THEN none is recommended: of so many some look faster
    by chance."""
    caps = {f"{cap:g}": 10.0 for cap in (25, *range(1, 12))}
    report = analyze(explored(tmp_path / "run", caps, rounds=12))
    assert not report.settings and "undecided" in report.advice


def test_an_exploration_that_was_too_short_tells_nothing(tmp_path: Path) -> None:
    report = analyze(explored(tmp_path / "run", {"25": 10.0, "1": 5.0}, rounds=2))
    assert report.buckets is None and "2 rounds of blocks" in report.advice


def test_what_was_measured_of_a_part_of_the_program_is_not_recommended(tmp_path: Path) -> None:
    """GIVEN a cap that was faster for one of two models, or until others were trained THEN it is not for all."""
    run = explored(tmp_path / "first", {"25": 10.0, "1": 9.0}, rounds=20)
    run.manifest.ddp *= 2
    report = analyze(run)
    assert not report.settings and "several models are wrapped" in report.advice
    run = explored(tmp_path / "second", {"25": 10.0, "1": 9.0}, rounds=20)
    run.manifest.add_missing("an exploration of gradient buckets", "other parameters are trained")
    report = analyze(run)
    assert not report.settings and "other parameters are trained" in report.advice


def test_what_other_processes_have_ended_is_not_heeded(tmp_path: Path) -> None:
    """GIVEN notes of the process that started the ranks, or of those of an attempt before THEN what the ranks measured
    counts, unless a rank of theirs ended it."""
    for number, (process, is_heeded) in enumerate(((7, False), (1, True))):
        run = explored(tmp_path / f"{number}", {"25": 10.0, "1": 9.0}, rounds=4, noise=0.001)
        run.manifest.add_missing("an exploration of gradient buckets", "it wrapped no model", process=process)
        assert (analyze(run).buckets is None) == is_heeded


def test_a_run_that_explores_without_a_model_says_so(tmp_path: Path) -> None:
    run = open_run(make_run(tmp_path / "run", [Tape()]))
    assert "gradient buckets" not in analyze(run).advice
    run.manifest.add_missing("collectives", "left out in an exploration of buckets: to see one takes time")
    assert "wrapped no model" in analyze(run).advice


def test_a_list_of_caps_is_told_as_it_is(tmp_path: Path) -> None:
    """GIVEN a program with a cap for each bucket THEN that list is what a cap is compared with, and not its largest;
    and how many buckets there are the ranks have told."""
    run = explored(tmp_path / "run", {"1,4,25": 10.0, "25": 9.0}, rounds=4, noise=0.001)
    model = run.manifest.ddp[0]
    model.bucket_caps_mb, model.buckets = [1.0, 4.0, 25.0], {"ddp.bucket_cap_mb=1,4,25": 7, "ddp.bucket_cap_mb=25": 5}
    report = analyze(run)
    assert report.buckets is not None and [each.buckets for each in report.buckets.forecasts] == [7, 5]
    (setting,) = report.settings
    assert (setting.current, setting.recommended) == ("1, 4, 25", 25.0)
    assert "5 buckets of 25 MiB in place of 7" in setting.why and "torch's own" not in setting.why
    assert "1, 4, 25 (now)" in text_report(report)
    assert {each["ddp.bucket_cap_mb"] for each in usual_caps([model]).values()} >= {25.0}


@pytest.mark.parametrize(("told", "counts", "words"), [
    ({}, (2, 3), "3 buckets of 1 MiB in place of 2 (torch's own)"),
    ({"is_default_cap": False}, (1, 3), "in place of 1 took"),  # 25 MiB that the program asks for
    ({"find_unused_parameters": True}, (2, 4), "4 buckets of 1 MiB in place of 2"),  # from the other end
    ({"parameters": 5000}, (0, 0), "buckets of 1 MiB in place of those of 25"),
])  # fmt: skip
def test_buckets_that_were_not_told_are_counted_as_torch_fills_them(
    told: dict[str, Any], counts: tuple[int, ...], words: str, tmp_path: Path
) -> None:
    run = explored(tmp_path / "run", {"25": 10.0, "1": 9.0}, rounds=4, noise=0.001)
    for name, value in told.items():
        setattr(run.manifest.ddp[0], name, value)
    report = analyze(run)
    assert report.buckets is not None and tuple(each.buckets for each in report.buckets.forecasts) == counts
    (setting,) = report.settings
    assert words in setting.why


def test_of_many_rounds_some_are_averaged(tmp_path: Path) -> None:
    report = analyze(explored(tmp_path / "run", {"25": 1.0, "1": 0.9}, rounds=900))
    assert report.buckets is not None and report.buckets.rounds == 900
    assert report.buckets.forecasts[1].expected_ms == pytest.approx(
        0.9 * report.buckets.forecasts[0].expected_ms, rel=0.02
    )


def test_a_study_tries_what_may_be_best() -> None:
    """GIVEN caps of which one is certainly slower than another THEN that one is not tried, nor the run's own."""
    told = [(25.0, 10.0, 10.0, 10.0), (1.0, 7.0, 8.0, 9.0), (2.0, 8.5, 9.5, 10.5), (50.0, 11.0, 12.0, 13.0)]
    forecasts = [BucketForecast(cap, 2, low, expected, high) for cap, low, expected, high in told]
    summary = BucketSummary(25.0, 2, 100, 1 << 20, 5.0, 0.0, forecasts)
    assert candidates(summary) == {"1 MiB": {"ddp.bucket_cap_mb": 1.0}, "2 MiB": {"ddp.bucket_cap_mb": 2.0}}
    gain = gain_over(forecasts[0], forecasts[1])
    assert (gain.low, gain.expected, gain.high) == pytest.approx((0.1, 0.2, 0.3))


def test_a_certain_gain_is_better_than_a_larger_one_that_may_be_a_loss() -> None:
    """GIVEN a cap that is expected to be the fastest and may be slower than the run's own THEN it is best only where no
    other is certain to be a gain."""
    own, daring = BucketForecast(25.0, 2, 10.0, 10.0, 10.0), BucketForecast(1.0, 12, 7.0, 8.0, 10.5)
    certain, slower = BucketForecast(2.0, 6, 7.5, 8.5, 9.5), BucketForecast(50.0, 1, 11.0, 12.0, 13.0)

    def best_of(*forecasts: BucketForecast) -> BucketForecast:
        return best_cap(BucketSummary(25.0, 2, 100, 1 << 20, 5.0, 0.0, list(forecasts)))

    assert best_of(own, daring, certain, slower) is certain
    assert best_of(own, daring, slower) is daring
    assert best_of(own, slower) is own


def test_a_gain_that_batches_may_eat_up_is_not_certain() -> None:
    """GIVEN a cap that is a gain of 1 ms at least, and one that may be a loss THEN with 0.5 ms of waiting for batches
    the first is one of 0.5, with 3 ms of none at least; and the other is what it was."""
    for awaited_ms, least in ((0.5, 9.5), (3.0, 10.0)):
        own, certain = BucketForecast(25.0, 2, 10.0, 10.0, 10.0), BucketForecast(1.0, 4, 7.0, 8.0, 9.0)
        daring = BucketForecast(2.0, 3, 8.0, 9.0, 11.0)
        found = _behind(BucketSummary(25.0, 2, 100, MIB, 5.0, 0.0, [own, certain, daring]), awaited_ms)
        assert [each.high_ms for each in found.forecasts] == [10.0, least, 11.0]


def test_where_nothing_is_told_of_caps_a_study_tries_those_that_differ() -> None:
    """GIVEN models of 300, 30 and 3 MiB of gradients on a GPU."""
    caps = [
        [each["ddp.bucket_cap_mb"] for each in usual_caps([Wrapped(bucket_cap_mb=own, bytes=size * MIB)]).values()]
        for own, size in ((25.0, 300), (4.0, 30), (25.0, 3))
    ]
    assert caps == [[4.0, 100.0], [25.0, 100.0], []]
    assert usual_caps([]) == {}


def test_what_a_program_has_to_know_of_a_setting_is_said() -> None:
    faster = Comparison("nothing set", "tried", Gain(0.1, 0.2, 0.3), "faster", 8, 0.01)
    for setting, value, effect, words in (
        (VIEW, True, "numerics", "zero_grad"),
        (LOOK, False, "identical", "an error"),
    ):
        (told,) = _conclude([faster, faster], {"tried": {setting: value}}, 25.0, "identical", []).settings
        assert told.effect == effect and words in told.why and told.current is not value
    (told,) = _conclude([faster, faster], {"tried": {"ddp.bucket_cap_mb": 4.0}}, 25.0, "identical", []).settings
    assert (told.current, told.recommended, told.effect) == (25.0, 4.0, "identical")


def test_only_two_ranks_are_sure_of_the_same_bits() -> None:
    assert [effect_on(ranks, [Wrapped()]) for ranks in (2, 3, 4)] == ["identical", "numerics", "numerics"]
    assert effect_on(2, [Wrapped(hook=True)]) == effect_on(2, [Wrapped(compiled=True)]) == "numerics"
