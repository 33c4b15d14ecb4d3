"""Verdicts on noise, over step times that drift and hang together, with a slowdown that is known."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import lfilter

from tracekit.analysis.noise import SILENCE, Block, less_sure, pair_with_silence, silence_with_silence
from tracekit.analysis.noise_verdicts import judge, tails

STEP_NS, STEPS, MARGIN = 5_000_000, 40, 0.02


def blocks(rng: np.random.Generator, slowdown: float, count: int = 60, level: float = 1.0) -> list[Block]:
    """`count` blocks with noise, and silence around each, of a program whose steps vary by 5 %, remember the last one
    (0.8), drift by 15 % in the course of the run and are now and then three times as long."""
    total = (2 * count + 1) * STEPS
    logs = lfilter([1.0], [1.0, -0.8], rng.normal(0, 0.05 * 0.6, total))
    phase = rng.uniform(0, 2 * np.pi)
    logs += 0.15 * np.sin(np.linspace(phase, phase + 4, total)) + np.where(rng.random(total) < 0.01, np.log(3), 0)
    noisy = np.arange(total) // STEPS % 2 == 1
    durations = (level * STEP_NS * np.exp(logs + noisy * np.log1p(slowdown))).astype(np.int64)
    ends = np.cumsum(durations)
    found = []
    for at in range(2 * count + 1):
        here = slice(at * STEPS, (at + 1) * STEPS)
        begin = int(ends[here][0] - durations[here][0])
        found.append(Block("cpu=1" if at % 2 else SILENCE, begin, int(ends[here][-1]), at * STEPS, durations[here]))
    return found


def verdicts(slowdown: float, tried: int = 1) -> list[str]:
    """Those of a hundred studies."""
    rng = np.random.default_rng(round(1e6 * slowdown) + 1)
    studies = [pair_with_silence(blocks(rng, slowdown)) for _ in range(100)]
    return [judge([each.log_ratio for each in study], MARGIN, tried).verdict for study in studies]


def test_of_a_hundred_studies_without_an_effect_at_most_five_call_unsafe() -> None:
    found = verdicts(0.0)
    assert found.count("unsafe") <= 5
    assert found.count("safe") >= 90


def test_three_percent_are_found_and_half_a_percent_is_safe() -> None:
    assert verdicts(0.03).count("unsafe") >= 90
    assert verdicts(0.005).count("safe") >= 90


def test_what_is_as_slow_as_the_margin_is_hardly_ever_called_safe() -> None:
    assert verdicts(MARGIN).count("safe") <= 10


def test_certainty_is_over_all_noises_that_were_tried() -> None:
    ratios = np.random.default_rng(3).normal(0.05, 0.1, 24)
    assert judge(ratios, MARGIN).verdict == "unsafe"
    assert judge(ratios, MARGIN, tried=18).verdict == "undecided"


def test_drift_cancels_and_runs_need_not_be_alike() -> None:
    rng = np.random.default_rng(5)
    first, second = blocks(rng, 0.04, 20), blocks(rng, 0.04, 20, level=3.0)
    both = [*first, *(Block(b.condition, b.start_ns, b.end_ns, b.first, b.durations_ns, 1) for b in second)]
    judged = judge([each.log_ratio for each in pair_with_silence(both)], MARGIN)
    assert judged.blocks == 40
    assert judged.slowdown.low < 0.04 < judged.slowdown.high
    assert judged.slowdown.high - judged.slowdown.low < 0.03


def test_silence_does_nothing_to_silence() -> None:
    pairs = silence_with_silence(blocks(np.random.default_rng(6), 0.3))
    judged = judge([each.log_ratio for each in pairs], MARGIN)
    assert judged.blocks == 30
    assert judged.slowdown.low < 0 < judged.slowdown.high


def test_neighbours_that_share_their_silence_tell_less() -> None:
    """Each of 60 blocks counts, and each silence but the two outer ones twice by half: the variance of the mean is
    (60 + 59 + 1/2) / (60 + 30) of that of independent ones. Other noises in between share nothing."""
    paired = pair_with_silence(blocks(np.random.default_rng(1), 0.0))
    assert less_sure(paired) == pytest.approx(np.sqrt(119.5 / 90), rel=1e-3)
    assert less_sure(paired[::2]) == 1.0 and less_sure([]) == 1.0
    ratios = [each.log_ratio for each in paired]
    independent, shared = judge(ratios), judge(ratios, wider=1.2)
    width, wider = (each.slowdown.high - each.slowdown.low for each in (independent, shared))
    assert wider == pytest.approx(1.2 * width, rel=0.01) and shared.detectable > independent.detectable


def test_a_day_of_blocks_is_judged_in_the_memory_of_a_study() -> None:
    ratios = np.random.default_rng(2).normal(0.03, 0.1, 43_200)
    tracemalloc.start()
    judged = judge(ratios)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 50e6 and judged.blocks == 43_200
    assert judged.slowdown.low < np.expm1(0.03) < judged.slowdown.high < judged.slowdown.low + 0.004


def test_too_few_blocks_decide_nothing_and_say_so() -> None:
    judged = judge([0.1, 0.11, 0.1], MARGIN)
    assert judged.verdict == "undecided"
    assert "at least" in judged.why
    assert judge([], MARGIN).verdict == "undecided"


def test_what_is_undecided_says_how_long_it_would_take() -> None:
    ratios = np.random.default_rng(7).normal(0.0, 0.08, 12)
    judged = judge(ratios - ratios.mean(), MARGIN, block_s=10.0)
    assert judged.verdict == "undecided"
    assert "blocks would probably decide it" in judged.why and "in all" in judged.why
    assert judged.detectable > MARGIN


def test_the_tail_tells_what_the_median_does_not() -> None:
    rng = np.random.default_rng(8)
    plain = blocks(rng, 0.0, 30)
    stretched = [
        Block(b.condition, b.start_ns, b.end_ns, b.first, np.where(np.arange(STEPS) % 8 == 0, 2, 1) * b.durations_ns)
        if b.condition
        else b
        for b in plain
    ]
    found = tails(pair_with_silence(stretched))
    assert found["p90"].low > 0.3
    assert abs(judge([each.log_ratio for each in pair_with_silence(stretched)], MARGIN).slowdown.expected) < 0.05
    assert tails(pair_with_silence(plain))["p90"].low < 0 < tails(pair_with_silence(plain))["p90"].high


@settings(deadline=None)
@given(st.lists(st.floats(-0.5, 0.5), max_size=30), st.floats(0.001, 0.3), st.integers(1, 30))
def test_a_verdict_is_never_both(ratios: list[float], margin: float, tried: int) -> None:
    """The interval holds the estimate; unsafe is by the margin at least, safe is below it."""
    judged = judge(ratios, margin, tried)
    slow = judged.slowdown
    assert slow.low <= slow.expected <= slow.high
    if judged.verdict == "safe":
        assert slow.expected < margin
    if judged.verdict == "unsafe":
        assert slow.expected >= margin * (1 - 1e-9) and slow.low > 0
    if judged.verdict == "undecided":
        assert judged.why
