"""The statistics of a study, against simulated studies whose truth is known."""

import itertools
import math
from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from tracekit.analysis.report_schema import Gain
from tracekit.study.statistics import (
    Comparison,
    compare,
    drop_warm_up,
    is_settled,
    look_level,
    noise_floor,
    paired_gain,
    rounds,
    summarise,
    tell_another_gain,
)

NOISES = ["gauss", "laplace", "outliers"]
times = st.floats(1, 1000)
studies = st.lists(st.tuples(times, times), min_size=0, max_size=14)
margins = st.floats(0.001, 0.5)


def blocks(rng: np.random.Generator, count: int, noise: str = "gauss", spread: float = 0.03) -> NDArray[np.float64]:
    """Block times around 100 ms; of outliers, one block in ten takes 20 % more."""
    if noise == "laplace":
        return 100 * np.exp(rng.laplace(0, spread / math.sqrt(2), count))
    slow = rng.random(count) < (0.1 if noise == "outliers" else 0)
    return 100 * np.exp(rng.normal(0, spread, count) + math.log(1.2) * slow)


def columns(study: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [a for a, _ in study], [b for _, b in study]


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("pairs", [4, 6, 7, 10])
def test_interval_covers_the_planted_gain(pairs: int, noise: str) -> None:
    # GIVEN a gain of 10 %; at a true coverage of 95 %, 600 studies give 91.4 % or more but for one time in 10,000
    rng = np.random.default_rng(pairs)
    gains = [paired_gain(blocks(rng, pairs, noise), 0.9 * blocks(rng, pairs, noise)) for _ in range(600)]
    covered = [(gain.low <= 0.1, gain.high >= 0.1) for gain in gains]
    assert np.mean([below and above for below, above in covered]) >= 0.914
    # AND it misses on either side about as often: 2.5 %
    assert np.mean(covered, axis=0).min() >= 0.945


def test_interval_is_the_one_of_the_signed_rank_test() -> None:
    # scipy rejects a shift just outside of the interval, and none just inside it
    rng = np.random.default_rng(3)
    for pairs in (7, 9, 12):
        a, b = blocks(rng, pairs), blocks(rng, pairs)
        gain = paired_gain(a, b)
        ratios = np.log(b / a)
        for bound, inwards in ((math.log(1 - gain.high), 1e-9), (math.log(1 - gain.low), -1e-9)):
            assert stats.wilcoxon(ratios - bound - inwards, method="exact").pvalue > 0.05
            assert stats.wilcoxon(ratios - bound + inwards, method="exact").pvalue <= 0.05


@pytest.mark.parametrize(("pairs", "level"), [(3, 0.95), (6, 0.95), (5, 0.9), (8, 0.99)])
def test_interval_of_few_pairs_is_students(pairs: int, level: float) -> None:
    rng = np.random.default_rng(4)
    a, b = blocks(rng, pairs), blocks(rng, pairs)
    expected = stats.ttest_1samp(np.log(b / a), 0).confidence_interval(level)
    gain = paired_gain(a, b, level)
    assert (gain.low, gain.high) == pytest.approx((1 - math.exp(expected.high), 1 - math.exp(expected.low)))


@given(studies)
def test_interval_is_ordered_and_survives_json(study: list[tuple[float, float]]) -> None:
    gain = paired_gain(*columns(study))
    assert gain.low <= gain.expected <= gain.high < 1
    assert msgspec.json.decode(msgspec.json.encode(gain), type=Gain) == gain


def test_pairs_that_are_not_complete_are_dropped() -> None:
    a = [100.0, math.nan, 101.0, 99.0, 100.0, 100.0, math.inf]
    b = [90.0, 91.0, 92.0, math.nan, 0.0, 89.0, 90.0]
    assert paired_gain(a, b) == paired_gain([100.0, 101.0, 100.0], [90.0, 92.0, 89.0])
    assert compare("a", "b", a, b, 0.01).pairs == 3
    with pytest.raises(ValueError, match="not 1 and 3"):
        paired_gain([100.0], [90.0, 90.0, 90.0])


@given(studies, margins)
def test_exchanging_the_conditions_mirrors_the_verdict(study: list[tuple[float, float]], margin: float) -> None:
    a, b = columns(study)
    there, back = compare("a", "b", a, b, margin), compare("b", "a", b, a, margin)
    mirrored = {"faster": "slower", "slower": "faster"}
    assert back.verdict == mirrored.get(there.verdict, there.verdict)
    assert back.why == there.why
    assert bool(there.why) == (there.verdict == "undecided")
    assert [1 / (1 - g) for g in (back.gain.low, back.gain.expected, back.gain.high)] == pytest.approx(
        [1 - g for g in (there.gain.high, there.gain.expected, there.gain.low)]
    )


@given(studies, margins, st.integers(-20, 20))
def test_the_unit_of_time_does_not_matter(study: list[tuple[float, float]], margin: float, power: int) -> None:
    a, b = (np.array(column) for column in columns(study))
    one, other = compare("a", "b", a, b, margin), compare("a", "b", a * 2.0**power, b * 2.0**power, margin)
    assert [other.gain.low, other.gain.expected, other.gain.high] == pytest.approx(
        [one.gain.low, one.gain.expected, one.gain.high], rel=1e-6, abs=1e-9
    )
    assert noise_floor(a * 2.0**power, b * 2.0**power) == pytest.approx(noise_floor(a, b), rel=1e-6)


@given(studies, margins)
def test_a_verdict_is_what_its_interval_says(study: list[tuple[float, float]], margin: float) -> None:
    result = compare("a", "b", *columns(study), margin)
    if result.verdict == "faster":
        assert result.gain.low > 0 and result.gain.expected > margin - 1e-9
    if result.verdict == "slower":
        assert result.gain.high < 0 and result.gain.expected < 0
    if result.verdict == "same":
        assert abs(result.gain.expected) < margin / (1 - margin)


@pytest.mark.parametrize("pairs", [4, 8])
@pytest.mark.parametrize(("level", "of_both_sides"), [(0.95, 0.9), (0.99, 0.98)])
def test_same_is_two_one_sided_tests(pairs: int, level: float, of_both_sides: float) -> None:
    rng = np.random.default_rng(7)
    for _ in range(20):
        a, b = (blocks(rng, pairs) ** 0.1 for _ in range(2))  # so calm that 5 % is no bound
        narrow = paired_gain(a, b, of_both_sides)
        farther = max(narrow.high, 1 - 1 / (1 - narrow.low))
        assert compare("a", "b", a, b, farther + 1e-6, level).verdict == "same"
        assert compare("a", "b", a, b, farther - 1e-6, level).verdict != "same"


@pytest.mark.parametrize(
    ("ratio", "margin", "verdict"),
    [
        (0.9, 0.05, "faster"),
        (1 / 0.9, 0.05, "slower"),
        (0.97, 0.04, "same"),
        (1 / 0.97, 0.2, "same"),
        (0.9, 0.2, "undecided"),  # so much noise that neither can be said
        (1 / 0.9, 0.2, "undecided"),
        (0.999, 0.0, "faster"),  # without a margin every gain matters
        (0.9, 1.0, "undecided"),
        (0.9, math.nan, "undecided"),
    ],
)
def test_verdicts_on_a_machine_without_noise(ratio: float, margin: float, verdict: str) -> None:
    a = np.linspace(100, 110, 8)
    assert compare("a", "b", a, ratio * a, margin).verdict == verdict


def test_less_than_three_pairs_decide_nothing() -> None:
    for pairs in (0, 1, 2):
        for ratio in (0.5, 1.0):
            result = compare("a", "b", [100.0] * pairs, [100.0 * ratio] * pairs, 0.9)
            assert result.verdict == "undecided" and "at least 3 pairs" in result.why
    assert compare("a", "b", [100.0] * 3, [100.0] * 3, 0.9).verdict == "same"


def test_undecided_says_how_many_pairs_it_takes() -> None:
    # GIVEN a gain of 3 %, but a noise of 3 %
    rng = np.random.default_rng(0)
    a, b = blocks(rng, 8), 0.97 * blocks(rng, 8)
    first = compare("a", "b", a, b, 0.01)
    assert first.verdict == "undecided"
    needed = int(first.why.split()[1])
    # THEN it is the number that makes the interval as narrow as the gain
    half_width = math.log((1 - first.gain.low) / (1 - first.gain.high)) / 2
    assert needed == math.ceil(8 * (half_width / -math.log(1 - first.gain.expected)) ** 2) > 8
    # AND studies of that size are mostly decided
    decided = [compare("a", "b", blocks(rng, needed), 0.97 * blocks(rng, needed), 0.01).verdict for _ in range(50)]
    assert Counter(decided)["faster"] >= 25
    # AND a gain just below the margin is never told from it
    close = 1 - math.exp(math.log(1 - first.gain.expected) * 1.0001)
    assert "too close" in compare("a", "b", a, b, close).why


@pytest.mark.parametrize("noise", NOISES)
def test_a_gain_above_the_noise_is_found(noise: str) -> None:
    rng = np.random.default_rng(1)
    pairs = 8 if noise != "outliers" else 16
    verdicts = []
    for _ in range(200):
        floor = noise_floor(blocks(rng, pairs, noise), blocks(rng, pairs, noise))
        verdicts.append(compare("a", "b", blocks(rng, pairs, noise), 0.9 * blocks(rng, pairs, noise), floor).verdict)
    assert Counter(verdicts)["faster"] >= 180
    assert Counter(verdicts)["slower"] == 0


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("floor", ["measured", "tiny"])
@pytest.mark.parametrize("looks", [(8,), (4, 6, 8, 10, 12)])
def test_equal_conditions_are_rarely_called_different(looks: tuple[int, ...], floor: str, noise: str) -> None:
    # GIVEN 400 A/A studies, that stop at the first look that settles them
    wrong = 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        a, again, b = (blocks(rng, looks[-1], noise) for _ in range(3))
        for look, pairs in enumerate(looks, 1):
            margin = noise_floor(a[:pairs], again[:pairs]) if floor == "measured" else 0.001
            result = compare("a", "b", a[:pairs], b[:pairs], margin, look_level(look, len(looks)))
            if is_settled([result]):
                break
        wrong += result.verdict in ("faster", "slower")
    # THEN at most 5 of 100 are wrong; were it 10 of 100, 27 would be left of 400 one time in 100
    assert wrong <= 27 if floor == "tiny" else wrong <= 8


def test_equal_conditions_are_called_the_same() -> None:
    rng = np.random.default_rng(2)
    verdicts = [compare("a", "b", blocks(rng, 10), blocks(rng, 10), 0.05).verdict for _ in range(200)]
    assert Counter(verdicts)["same"] >= 160
    # AND what differs by just the margin is called the same in 5 of 100
    verdicts = [compare("a", "b", blocks(rng, 10), 0.95 * blocks(rng, 10), 0.05).verdict for _ in range(400)]
    assert Counter(verdicts)["same"] <= 32


def test_noise_floor_holds_spread_and_bias() -> None:
    rng = np.random.default_rng(5)
    a = np.full(8, 100.0)
    assert noise_floor(a, a) == 0.001
    assert noise_floor(a, 0.95 * a) == pytest.approx(0.05)
    assert noise_floor(0.95 * a, a) == pytest.approx(0.05)
    quiet, loud = (
        np.median([noise_floor(blocks(rng, 8, spread=s), blocks(rng, 8, spread=s)) for _ in range(50)])
        for s in (0.005, 0.05)
    )
    assert 0.003 < quiet < 0.012 and 0.03 < loud < 0.12
    assert noise_floor([100.0, 101.0, math.nan], [100.0, math.nan, 100.0]) == 1.0
    assert noise_floor([], []) == 1.0


def test_looks_share_the_error_of_one() -> None:
    assert look_level(1, 1) == 0.95
    for looks in (2, 3, 7):
        levels = [look_level(look, looks) for look in range(1, looks + 1)]
        assert sum(1 - level for level in levels) == pytest.approx(0.05)
        assert levels[-1] == pytest.approx(0.975) and max(levels) < 1
    for look, looks in ((0, 3), (4, 3)):
        with pytest.raises(ValueError, match="look"):
            look_level(look, looks)


def test_settled_needs_every_comparison_decided_and_narrow() -> None:
    narrow = Comparison("a", "b", Gain(0.08, 0.1, 0.12), "faster", 6, 0.02)
    assert is_settled([narrow, narrow])
    assert not is_settled([])
    for change in (
        {"verdict": "undecided"},
        {"pairs": 4},
        {"gain": Gain(0.04, 0.1, 0.16)},
    ):
        assert not is_settled([narrow, msgspec.structs.replace(narrow, **change)])
    assert is_settled([msgspec.structs.replace(narrow, gain=Gain(0.04, 0.1, 0.16), margin=0.07)])
    # of a large gain nobody needs to know each percent
    assert is_settled([msgspec.structs.replace(narrow, gain=Gain(0.41, 0.5, 0.59))])
    assert is_settled([msgspec.structs.replace(narrow, gain=Gain(-0.009, 0.0, 0.009), verdict="same", margin=0.001)])


@given(st.lists(st.text(max_size=3), unique=True, max_size=6), st.integers(0, 1000))
def test_rounds_hold_each_condition_once_and_mirror(conditions: list[str], seed: int) -> None:
    drawn = list(itertools.islice(rounds(conditions, seed), 8))
    assert all(sorted(order) == sorted(conditions) for order in drawn)
    assert all(there == back[::-1] for there, back in zip(drawn[::2], drawn[1::2], strict=True))
    assert drawn == list(itertools.islice(rounds(conditions, seed), 8))


def test_rounds_are_random() -> None:
    drawn = {tuple(order) for order in itertools.islice(rounds(["a", "b", "c"], 0), 100)}
    assert len(drawn) == 6
    assert len({tuple(next(rounds(list("abcdef"), seed))) for seed in range(10)}) > 5


@pytest.mark.parametrize("warm_up", [1, 7, 20, 45])
def test_a_planted_warm_up_is_dropped(warm_up: int) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        steps = rng.normal(10e6, 0.3e6, 100)
        steps[:warm_up] *= np.linspace(3, 1.5, warm_up)
        steps[0] *= 100
        kept = drop_warm_up(steps.astype(np.int64))
        assert 50 <= len(kept) <= 100 - warm_up
        assert len(kept) % 5 == 4  # whole batches after the first step
        assert kept.tolist() == steps.astype(np.int64)[-len(kept) :].tolist()


@pytest.mark.parametrize("noise", ["gauss", "laplace"])
def test_a_run_without_warm_up_keeps_most_of_its_steps(noise: str) -> None:
    rng = np.random.default_rng(6)
    kept = [len(drop_warm_up((1e5 * blocks(rng, 100, noise)).astype(np.int64))) for _ in range(100)]
    assert np.median(kept) >= 90


@given(st.lists(st.integers(1, 10**12), max_size=80))
def test_at_least_the_first_step_and_at_most_half_is_dropped(steps: list[int]) -> None:
    kept = drop_warm_up(steps).tolist()
    dropped = len(steps) - len(kept)
    assert kept == steps[dropped:]
    assert (1 <= dropped <= len(steps) // 2) if len(steps) >= 3 else dropped == 0


@given(st.integers(3, 80), st.integers(1, 2**45))
def test_of_a_constant_run_only_the_first_step_is_dropped(count: int, step: int) -> None:
    assert drop_warm_up([step] * count).tolist() == [step] * (count - 1)
    assert drop_warm_up([1000 * step, *[step] * (count - 1)]).tolist() == [step] * (count - 1)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(("pairs", "conditions"), [(3, 1), (6, 1), (6, 5), (12, 5)])
def test_medians_count_unless_means_refute_them(pairs: int, conditions: int, noise: str) -> None:
    """GIVEN conditions whose median steps are 10 % shorter WHEN their mean steps are too, and less sure THEN these
    refute them in no more than one study of twenty; WHEN the mean ones are as long as before, in most of those with 6
    pairs and more."""

    def drawn(gain: float, of_means: float) -> list[tuple[float, float]]:
        medians = blocks(rng, pairs, noise, 0.01)
        return list(zip((1 - gain) * medians, (1 - of_means) * medians * blocks(rng, pairs, noise) / 100, strict=True))

    rng = np.random.default_rng(pairs)
    right, wrong = (
        np.mean([tell_another_gain([drawn(0, 0), *(drawn(0.1, mean) for _ in range(conditions))]) for _ in range(300)])
        for mean in (0.1, 0.0)
    )
    assert right <= 0.08  # of 300 studies; 5 % would give more but for one time in a hundred
    assert wrong >= 0.5 or pairs < 6


def test_nothing_is_refuted_by_few_pairs_or_one_condition() -> None:
    two = [(10.0, 10.0), (10.0, 10.0)]
    assert not tell_another_gain([])
    assert not tell_another_gain([two * 3])
    assert not tell_another_gain([two, [(5.0, 10.0), (5.0, 10.0)]])
    assert tell_another_gain([two * 3, [(5.0, 10.0)] * 3])


@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_left_early_hides_no_other_gain(place: int) -> None:
    """GIVEN a condition that left after three rounds, the first one or not THEN the others are compared in all."""
    rng = np.random.default_rng(0)
    told = []
    for _ in range(100):
        base, gains = ([(100.0, mean) for mean in factor * blocks(rng, 20, spread=0.05)] for factor in (1.0, 0.85))
        conditions = [base, gains]
        conditions.insert(place, [(120.0, mean) for mean in 1.2 * blocks(rng, 3, spread=0.05)])
        told.append(tell_another_gain(conditions))
    assert np.mean(told) >= 0.95


@pytest.mark.parametrize("count", [3, 5, 6, 9])
def test_summary_covers_the_median(count: int) -> None:
    rng = np.random.default_rng(count)
    summaries = [summarise("a", blocks(rng, count)) for _ in range(400)]
    assert np.mean([s.ci[0] <= 100 <= s.ci[1] for s in summaries]) >= 0.91
    assert all(s.ci[0] <= s.median_ms <= s.ci[1] and s.blocks == count for s in summaries)


def test_summary_of_few_blocks() -> None:
    assert summarise("a", [math.nan, 3.0, 1.0]).ci == (1.0, 3.0)
    assert summarise("a", [2.0]).ci == (2.0, 2.0)
    assert summarise("a", []).blocks == 0
    six = summarise("a", [6.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    assert (six.median_ms, six.ci) == (3.5, (1.0, 6.0))
    assert b"null" not in msgspec.json.encode([six, summarise("a", [math.nan])])
