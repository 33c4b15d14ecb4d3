"""How unsure a mean over steps is, by steps drawn anew (the block bootstrap)."""

import math

import numpy as np
from scipy.special import ndtri, stdtrit

from tracekit.analysis.meetings import Floats

# Steps that follow each other have much in common: so many blocks of them are drawn anew, so many times.
_BLOCKS, _RESAMPLES, _LEVEL = 20, 1000, 0.025
# What is looked for is large enough that none of so many ranks has it by accident (`delays.NOTABLE`, as measured); of
# more ranks more are to seem slow.
_RANKS = 4


def interval(values: Floats, ranks: int) -> tuple[float, float, float]:
    """The mean over steps of one of so many ranks, and its interval, low, mean, high; rare large values leave it wide.
    It holds at 95 %, and of more than 4 ranks for as many together as it does of 4 (Bonferroni)."""
    if not len(values):
        return 0.0, 0.0, 0.0
    low, high = ends_of(means_drawn_anew(values), len(values), ranks)
    return low, float(values.mean()), high


def means_drawn_anew(values: Floats) -> Floats:
    """Means over the steps (the first axis), of blocks of them drawn anew: the same blocks of the same number of
    steps."""
    blocks = np.array([block.mean(axis=0) for block in np.array_split(values, min(_BLOCKS, len(values)))])
    picks = np.random.default_rng(0).integers(len(blocks), size=(_RESAMPLES, len(blocks)))
    return np.asarray(blocks[picks].mean(axis=1))


def ends_of(drawn: Floats, steps: int, ranks: int) -> tuple[float, float]:
    """The interval that means over so many steps drawn anew tell. Few blocks vary by less than what they are drawn
    from: it is as much wider as Student's is (Efron and Tibshirani, An Introduction to the Bootstrap, 12.5)."""
    blocks = max(min(_BLOCKS, steps), 2)
    low, high = np.quantile(drawn, [_LEVEL, 1 - _LEVEL])
    probability = 1 - _LEVEL * min(_RANKS / ranks, 1)
    wider = math.sqrt(blocks / (blocks - 1)) * stdtrit(blocks - 1, probability) / ndtri(1 - _LEVEL)
    middle = drawn.mean()
    return float(middle - wider * (middle - low)), float(middle + wider * (high - middle))
