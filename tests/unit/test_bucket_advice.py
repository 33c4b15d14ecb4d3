"""What is told of gradient buckets, of runs whose buckets are known."""

from pathlib import Path

import pytest
from ranks import ranks_run
from synthetic import Tape, make_run

from tracekit.advice import analyze
from tracekit.advice.buckets import best_cap, effect_on, gain_over
from tracekit.analysis.report_schema import BucketForecast, BucketSummary
from tracekit.analysis.text import text_report
from tracekit.models.ddp_replay import MIB
from tracekit.run.manifest import Wrapped
from tracekit.run.reader import Run, open_run
from tracekit.study.ddp import candidates

FIRST, SECOND = MIB + 1024, 4 * MIB


def wrapped(*sizes: int) -> Wrapped:
    """A model under torch's own cap whose gradients come in this order."""
    return Wrapped(bucket_cap_mb=25.0, parameters=len(sizes), bytes=sum(sizes), sizes=list(sizes[::-1]))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Two ranks, two buckets in each pass."""
    return ranks_run(tmp_path / "run", 2, 60, computes=True, bucket_bytes=(FIRST, SECOND))


def test_each_cap_that_makes_other_buckets_has_a_forecast(run: Run) -> None:
    run.manifest.ddp = [wrapped(1024, MIB, 2 * MIB, 2 * MIB)]
    report = analyze(run)
    assert report.buckets is not None, report.advice
    own, *others = report.buckets.forecasts
    assert own.expected_ms == pytest.approx(report.steps.median_ms)
    assert own.buckets == 2 and len({each.buckets for each in others}) == len(others)
    assert "BUCKETS  of 5.2 MB of gradients" in text_report(report)


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


def test_only_two_ranks_are_sure_of_the_same_bits() -> None:
    assert [effect_on(ranks) for ranks in (2, 3, 4)] == ["identical", "numerics", "numerics"]
