"""Intervals of what log-ratios of times say, from few of them and with outliers among them."""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

Floats = NDArray[np.float64]

# No bound is farther than 1000-fold from the estimate: without two pairs, what JSON can hold.
UNKNOWN = math.log(1000)
# More would say the same, and what they take grows with their square, in time with their cube.
_MOST_PAIRS = 400


def log_interval(ratios: Floats, level: float) -> tuple[float, float, float]:
    """The lower bound, the pseudo-median and the upper bound of paired log-ratios.

    The estimate is the Hodges-Lehmann pseudo-median, the interval inverts the Wilcoxon signed-rank test (Hollander,
    Wolfe and Chicken, Nonparametric Statistical Methods, 3.3) as soon as its bounds need not be the two extreme ratios;
    fewer get Student's t. `study.statistics.paired_gain` says how well that covers. Of very many the means of
    successive ones are taken.
    """
    ratios = _averaged(ratios)
    pairs = len(ratios)
    first, second = np.triu_indices(pairs)
    means = np.sort((ratios[first] + ratios[second]) / 2)  # Walsh averages
    estimate = float(np.median(means)) if pairs else 0.0
    outside = _signed_rank_quantile(pairs, (1 - level) / 2)
    if outside > 0:
        return float(means[outside]), estimate, float(means[-1 - outside])
    low, high = student(ratios, level)
    return max(min(low, estimate), estimate - UNKNOWN), estimate, min(max(high, estimate), estimate + UNKNOWN)


def _averaged(ratios: Floats) -> Floats:
    parts = np.array_split(ratios, min(len(ratios), _MOST_PAIRS) or 1)
    return np.array([part.mean() for part in parts if len(part)])


@lru_cache
def _signed_rank_quantile(pairs: int, probability: float) -> int:
    """The largest k for which the signed-rank statistic is at most k with this probability or less; -1 for none."""
    density = np.ones(1)
    for rank in range(1, pairs + 1):  # each rank counts with probability 1/2
        density = (np.pad(density, (0, rank)) + np.pad(density, (rank, 0))) / 2
    return int(np.searchsorted(np.cumsum(density), probability, side="right")) - 1


def student(values: Floats, level: float) -> tuple[float, float]:
    """Student's interval for the mean; unbounded for less than two values."""
    if len(values) < 2:
        return -math.inf, math.inf
    half = float(stdtrit(len(values) - 1, (1 + level) / 2)) * float(values.std(ddof=1)) / math.sqrt(len(values))
    mean = float(values.mean())
    return mean - half, mean + half
