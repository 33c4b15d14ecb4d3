"""Whether a noise is harmless: a verdict on each, from how much longer steps were than in silence.

safe       steps are longer by less than the margin: a one-sided test at 95 % (the harm is tested, not the good)
unsafe     they are longer, with certainty over all noises that were tried (Bonferroni), and by the margin at least
undecided  otherwise, with how long it would take to decide

Certain of a slowdown is the interval at 1 - 0.05/k of k noises; "safe" is said of each by itself.
"""

import math
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from tracekit.analysis.log_ratios import UNKNOWN, Floats, log_interval
from tracekit.analysis.noise import Block, Paired

Verdict = Literal["safe", "unsafe", "undecided"]

MARGIN = 0.02
FEWEST_BLOCKS = 6
_ERROR, _POWER = 0.05, 0.8
_HOPELESS = 100  # times as long: nobody will wait for that
_RESAMPLES = 200
_MOST_STEPS = 200  # of a block, for the tails of all
_STEPS_BEYOND = 5  # a percentile: with fewer it is an accident


class Slowdown(msgspec.Struct):
    """By how much longer, new/old - 1: 0.03 is 3 % longer."""

    low: float
    expected: float
    high: float


class Judged(msgspec.Struct):
    """A verdict, the slowdown of the median step with its 95 % interval, and the least slowdown that so many blocks
    would find four times out of five; 0 where they are too few to know."""

    verdict: Verdict
    slowdown: Slowdown
    detectable: float
    blocks: int
    why: str = ""


def judge(
    log_ratios: ArrayLike, margin: float = MARGIN, tried: int = 1, block_s: float = 0.0, wider: float = 1.0
) -> Judged:
    """The verdict on a noise from its blocks' log-ratios to silence; `tried` noises are judged together, and a block
    with its silence takes `block_s`. `wider`: their mean is less sure by so much than that of independent ones."""
    ratios = np.asarray(log_ratios, dtype=np.float64)
    ratios = ratios[np.isfinite(ratios)]
    low, expected, high = _widened(log_interval(ratios, 1 - _ERROR), wider)
    certain_low = _widened(log_interval(ratios, 1 - _ERROR / max(tried, 1)), wider)[0]
    not_more = _widened(log_interval(ratios, 1 - 2 * _ERROR), wider)[2]
    bound = math.log1p(margin)
    verdict: Verdict = "undecided"
    why = ""
    if len(ratios) < FEWEST_BLOCKS:
        why = f"{len(ratios)} blocks; at least {FEWEST_BLOCKS} are needed, of a longer run or study"
    elif not_more < bound:
        verdict = "safe"
    elif certain_low > 0 and expected >= bound:
        verdict = "unsafe"
    else:
        why = _needed(len(ratios), expected, certain_low, not_more, bound, block_s)
    slowdown = Slowdown(math.expm1(low), math.expm1(expected), math.expm1(high))
    return Judged(verdict, slowdown, _detectable(ratios, wider), len(ratios), why)


def _widened(interval: tuple[float, float, float], wider: float) -> tuple[float, float, float]:
    low, expected, high = interval
    below, above = (min(wider * each, UNKNOWN) for each in (expected - low, high - expected))
    return expected - below, expected, expected + above


def _detectable(ratios: Floats, wider: float) -> float:
    count = len(ratios)
    if count < 2:
        return 0.0
    quantiles = stdtrit(count - 1, [1 - _ERROR / 2, _POWER]).sum()
    return math.expm1(float(wider * quantiles * ratios.std(ddof=1) / math.sqrt(count)))


def _needed(count: int, expected: float, certain_low: float, not_more: float, bound: float, block_s: float) -> str:
    """How long it would probably take: intervals shrink with the root of the number of blocks."""
    if expected < bound:
        times = ((not_more - expected) / (bound - expected)) ** 2
    else:
        times = ((expected - certain_low) / expected) ** 2
    if times > _HOPELESS:
        return f"the slowdown is too close to the margin of {math.expm1(bound):.1%} for more blocks to decide it"
    blocks = max(math.ceil(count * times), count + 1)
    lasts = f", {_in_words(blocks * block_s)} in all" if block_s else ""
    return f"about {blocks} blocks would probably decide it{lasts}"


def _in_words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def tails(paired: Sequence[Paired], seed: int = 0) -> dict[str, Slowdown]:
    """By how much longer the slow steps are than those of silence: the 90th and the 99th percentile over all blocks.

    Each step is taken over the median of its own block, on both sides alike, so that drift cancels; by how much the
    medians differ comes on top. 95 % intervals by resampling blocks.
    """
    if len(paired) < FEWEST_BLOCKS:
        return {}
    drawer = np.random.default_rng(seed)
    noisy = [_relative(each.block, drawer) for each in paired]
    around = {id(block): block for each in paired for block, share in each.silence if share}
    silent = [_relative(block, drawer) for block in around.values()]
    log_ratios = np.array([each.log_ratio for each in paired])
    found = {}
    for name, percent in (("p90", 90), ("p99", 99)):
        if min(sum(map(len, noisy)), sum(map(len, silent))) < _STEPS_BEYOND * 100 / (100 - percent):
            continue
        ratios = []
        for _ in range(_RESAMPLES):
            drawn = drawer.integers(len(noisy), size=len(noisy))
            others = drawer.integers(len(silent), size=len(silent))
            longer = _beyond([noisy[at] for at in drawn], percent) / _beyond([silent[at] for at in others], percent)
            ratios.append(longer * math.exp(np.median(log_ratios[drawn])))
        expected = _beyond(noisy, percent) / _beyond(silent, percent) * math.exp(np.median(log_ratios))
        low, high = map(float, np.percentile(ratios, [2.5, 97.5]))
        found[name] = Slowdown(min(low, expected) - 1, expected - 1, max(high, expected) - 1)
    return found


def _relative(block: Block, drawer: np.random.Generator) -> Floats:
    """Its steps over their median; some of very many."""
    steps = np.asarray(block.durations_ns / math.exp(block.log_median), dtype=np.float64)
    return steps if len(steps) <= _MOST_STEPS else drawer.choice(steps, _MOST_STEPS, replace=False)


def _beyond(blocks: Sequence[Floats], percent: float) -> float:
    return float(np.percentile(np.concatenate(blocks), percent))
