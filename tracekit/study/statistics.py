"""The statistics of a study: which of two conditions has the shorter steps, by how much, and whether that is certain.

Every run is one block and gives one number, its median step time, or its mean one where all medians together tell
another gain (`tell_another_gain`); but see `switchback`: there blocks are of one run.
Blocks of the same round stand close in time, so they are compared in pairs: whatever drifts from round to round cancels
in log(b_i / a_i). All decisions are taken on log-ratios, which makes them symmetric in a and b; what is reported is the
gain, 1 - b/a.
"""

import math
import random
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from tracekit.analysis.log_ratios import Floats, log_interval, student
from tracekit.analysis.report_schema import Gain

Verdict = Literal["faster", "same", "slower", "undecided"]

LEVEL = 0.95
FEWEST_PAIRS = 3  # for a verdict; the interval from two is a guess about the shape of the noise
FEWEST_SETTLED = 5  # pairs before a study may stop early
RESOLUTION = 0.01  # an interval with a half-width of 1 % is narrow enough, whatever the margin
RELATIVE_RESOLUTION = 0.25  # and so is one with a quarter of the gain it is about
WIDEST_SAME = 0.05  # on a machine that cannot tell 5 % "the same" would say nothing: gains of 5 to 20 % are looked for
LEAST_FLOOR = 0.001  # no machine repeats itself better than this for long, even if a few A/A pairs say so
HOPELESS_PAIRS = 1000  # a study that needs more will not be run
BATCH = 5  # steps in a batch of MSER-5
FEWEST_BATCHES = 10  # a shorter run is cut by single steps: of few batches some tail looks quiet by chance


class Comparison(msgspec.Struct):
    """Condition `b` against condition `a`; "faster" means that b is faster than a."""

    a: str
    b: str
    gain: Gain
    verdict: Verdict
    pairs: int
    margin: float  # the smallest gain that matters
    why: str = ""  # what an undecided comparison lacks
    in_one_process: bool = False  # pairs are blocks of steps of one process, not runs


class ConditionSummary(msgspec.Struct):
    """One condition over its blocks; without any block all numbers are 0."""

    name: str
    blocks: int
    median_ms: float
    ci: tuple[float, float]  # of the median over blocks, at 95 %


def summarise(name: str, times_ms: ArrayLike) -> ConditionSummary:
    """The median over blocks with its 95 % interval; blocks that are NaN are dropped.

    From 6 blocks on the interval is the exact one between order statistics (binomial), from 3 to 5, where that cannot
    reach 95 %, Student's t on the logarithms, and below 3 the range.
    """
    times = np.asarray(times_ms, dtype=np.float64)
    times = times[np.isfinite(times) & (times > 0)]
    if not len(times):
        return ConditionSummary(name, 0, 0.0, (0.0, 0.0))
    median = float(np.median(times))
    from scipy.stats import quantile_test  # half a second of importing, for studies alone

    low, high = quantile_test(times, q=median, p=0.5).confidence_interval(LEVEL)
    if len(times) < FEWEST_PAIRS:
        low, high = times.min(), times.max()
    elif not math.isfinite(low + high):
        low, high = (math.exp(bound) for bound in student(np.log(times), LEVEL))
    return ConditionSummary(name, len(times), median, (min(float(low), median), max(float(high), median)))


def paired_gain(a: ArrayLike, b: ArrayLike, level: float = LEVEL) -> Gain:
    """The gain of b over a, from block times paired by round; pairs that are not two positive numbers are dropped.

    The estimate is the Hodges-Lehmann pseudo-median of the log-ratios (the median of all means of two). The interval
    inverts the Wilcoxon signed-rank test, whose bounds are order statistics of the same means (Hollander, Wolfe and
    Chicken, Nonparametric Statistical Methods, 3.3), as soon as they need not be the two extreme pairs: from 7 pairs
    on at 95 %, 9 at 99 %. Fewer pairs get Student's t on the log-ratios. Below 2 pairs the bounds are 1000-fold.

    Chosen for its coverage at 95 %, simulated 8000 times each with 4-12 pairs, Gaussian noise, Laplace noise, and 5 or
    10 % of the blocks 20 % slower: Wilcoxon 94.8-97.2 % where it exists, t 94.6-98.5 % and narrower for up to 6 pairs,
    percentile bootstrap of the median 83-96 %. With such outliers in one condition alone it falls to 93 %.
    """
    return _gain(*log_interval(_log_ratios(a, b), level))


def compare(a_name: str, b_name: str, a: ArrayLike, b: ArrayLike, margin: float, level: float = LEVEL) -> Comparison:
    """The verdict on b against a, from block times paired by round and the smallest gain that matters (`noise_floor`).

    faster     the whole interval of the gain is positive, and the expected gain is at least the margin;
    slower     the same with a and b exchanged;
    same       the interval at 2 level - 1 (90 % by default) lies inside the margin, or inside 5 % where that is less:
               two one-sided tests, TOST;
    undecided  otherwise, with the number of pairs that would probably decide it.

    Inside the margin means that b/a is between 1 - margin and 1 / (1 - margin). The expected gain is either inside or
    not, so no two of these meet. A margin of 1 is a floor that is not known: undecided.
    """
    ratios = _log_ratios(a, b)
    low, estimate, high = log_interval(ratios, level)
    narrow_low, _, narrow_high = log_interval(ratios, 2 * level - 1)
    verdict: Verdict = "undecided"
    why = ""
    if len(ratios) < FEWEST_PAIRS:
        why = f"at least {FEWEST_PAIRS} pairs are needed"
    elif not margin < 1:
        why = "the noise floor is not known"
    else:
        bound, near = -math.log1p(-margin), -math.log1p(-min(margin, WIDEST_SAME))
        if high < 0 and estimate <= -bound:
            verdict = "faster"
        elif low > 0 and estimate >= bound:
            verdict = "slower"
        elif -near < narrow_low and narrow_high < near:
            verdict = "same"
        elif abs(estimate) >= bound:
            why = _pairs_needed(len(ratios), (high - low) / 2, abs(estimate))
        elif abs(estimate) < near:
            why = _pairs_needed(len(ratios), (narrow_high - narrow_low) / 2, near - abs(estimate))
        else:
            why = f"the noise floor, {margin:.0%}, hides such a gain"
    return Comparison(a_name, b_name, _gain(low, estimate, high), verdict, len(ratios), margin, why)


def tell_another_gain(blocks: Sequence[Sequence[tuple[float, float]]]) -> bool:
    """Whether, of the median and the mean step of each block of some conditions, the medians tell another gain of any
    condition over one that was in all rounds than the means, for certain and by more than 1 % (`RESOLUTION`).

    As they do where steps are of several kinds, of which a setting makes one more frequent. Medians are surer, and may
    be wrong about what a run gains; means are not, and are unsure: so medians count unless the difference of the two
    refutes them (the test of Hausman, Specification tests in econometrics, Econometrica 46(6), 1978; here by pairs).
    """
    if len(blocks) < 2:
        return False
    first, *others = sorted(blocks, key=len, reverse=True)  # some have left
    level = level_among(len(others))
    for other in others:
        pairs = min(len(first), len(other))
        if pairs < FEWEST_PAIRS:
            continue
        (old, old_mean), (new, new_mean) = (np.array(each[:pairs], dtype=np.float64).T for each in (first, other))
        low, _, high = log_interval(_log_ratios(old, new) - _log_ratios(old_mean, new_mean), level)
        if low > RESOLUTION or high < -RESOLUTION:
            return True
    return False


def noise_floor(a: ArrayLike, a_again: ArrayLike) -> float:
    """The gain that one condition seems to have over itself: the farther bound of the 95 % interval from A/A pairs.

    It holds both the half-width and the bias, is never 0, and is 1 (not known) for less than 3 pairs.
    """
    ratios = _log_ratios(a, a_again)
    if len(ratios) < FEWEST_PAIRS:
        return 1.0
    low, _, high = log_interval(ratios, LEVEL)
    return max(-math.expm1(-max(abs(low), abs(high))), LEAST_FLOOR)


def look_level(look: int, looks: int, level: float = LEVEL) -> float:
    """The level for look number `look` (from 1) of a study that may stop after any of `looks` looks at its results.

    Every look is another chance to err, so they share what one look may err: the last takes one half, the earlier
    ones the other half in equal parts (Bonferroni). Whatever the looks have in common, the sum holds.
    """
    if not 1 <= look <= looks:
        raise ValueError(f"look {look} of {looks}")
    if looks == 1:
        return level
    share = 0.5 if look == looks else 0.5 / (looks - 1)
    return 1 - (1 - level) * share


def level_among(choices: int, level: float = LEVEL) -> float:
    """The level for the fastest of so many conditions, in the blocks that it was chosen by: each was another chance to
    seem fast, so they share what one may err (Bonferroni). At it all of their intervals hold together, and with them
    that of the one chosen.

    Of equal conditions, 12 blocks each, simulated 1500 times: the fastest of 2, 3 and 5 was certainly faster than the
    base in 3.6, 4.7 and 6.6 % of studies at 95 %, and in 1.9, 2.1 and 1.6 % at this level; 2.5 % are meant.
    """
    return 1 - (1 - level) / choices


def is_settled(comparisons: Sequence[Comparison]) -> bool:
    """Whether more rounds would change nothing of use: every comparison is decided, has 5 pairs and is narrow enough.

    Narrow enough is a half-width of at most the margin, 1 %, or a quarter of the expected gain. Give it comparisons
    made at the `look_level` of this look, and report these: one made again at 95 % after stopping errs more often.
    """
    return bool(comparisons) and all(
        c.verdict != "undecided"
        and c.pairs >= FEWEST_SETTLED
        and (c.gain.high - c.gain.low) / 2 <= max(c.margin, RESOLUTION, RELATIVE_RESOLUTION * abs(c.gain.expected))
        for c in comparisons
    )


def rounds(conditions: Sequence[str], seed: int) -> Iterator[list[str]]:
    """Endless rounds of all conditions: one in random order, then the same reversed, so that steady drift cancels."""
    shuffler = random.Random(seed)
    while True:
        order = list(conditions)
        shuffler.shuffle(order)
        yield order
        yield order[::-1]


def drop_warm_up(times_ns: ArrayLike) -> NDArray[np.int64]:
    """The step times of a run, ns, without its warm-up: between the first step and half of the run.

    The first step compiles, allocates and opens files, and always goes (of 3 steps or more). The rest is cut where the
    standard error of the mean of what remains is smallest, over batches of 5 steps: MSER-5 (White, An effective
    truncation heuristic for bias reduction in simulation output, Simulation 69(6), 1997). Short runs take single steps.
    """
    times = np.asarray(times_ns, dtype=np.int64)
    if len(times) < 3:
        return times
    rest = times[1:]
    size = BATCH if len(rest) >= FEWEST_BATCHES * BATCH else 1
    batches = rest[: len(rest) // size * size].reshape(-1, size).mean(axis=1)
    cuts = range((len(times) // 2 - 1) // size + 1)
    errors = [float(batches[cut:].var()) / (len(batches) - cut) for cut in cuts]
    return times[1 + size * int(np.argmin(errors)) :]


def _gain(low: float, estimate: float, high: float) -> Gain:
    return Gain(1 - math.exp(high), 1 - math.exp(estimate), 1 - math.exp(low))


def _log_ratios(a: ArrayLike, b: ArrayLike) -> Floats:
    """log(b_i / a_i) of the pairs that are complete."""
    old, new = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if old.shape != new.shape:
        raise ValueError(f"pairs need as many blocks of one condition as of the other, not {len(old)} and {len(new)}")
    complete = np.isfinite(old) & np.isfinite(new) & (old > 0) & (new > 0)
    return np.log(new[complete]) - np.log(old[complete])


def _pairs_needed(pairs: int, half_width: float, target: float) -> str:
    """In words, how many pairs bring the half-width down to the target, as it shrinks with their square root."""
    if pairs * half_width**2 > HOPELESS_PAIRS * target**2:
        return "the difference is too close to the margin for more pairs to decide it"
    return f"about {max(math.ceil(pairs * (half_width / target) ** 2), pairs + 1)} pairs would probably decide it"
