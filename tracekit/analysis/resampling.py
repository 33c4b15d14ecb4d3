"""How unsure a mean over steps is, by steps drawn anew (the block bootstrap)."""

import numpy as np

from tracekit.analysis.meetings import Floats

# Steps that follow each other have much in common: so many blocks of them are drawn anew, so many times.
_BLOCKS, _RESAMPLES, _LEVEL = 20, 1000, 0.025


def interval(values: Floats) -> tuple[float, float, float]:
    """The mean over steps and its 95 % interval, low, mean, high; rare large values leave it wide."""
    if not len(values):
        return 0.0, 0.0, 0.0
    low, high = ends_of(means_drawn_anew(values))
    return low, float(values.mean()), high


def means_drawn_anew(values: Floats) -> Floats:
    """Means over the steps (the first axis), of blocks of them drawn anew: the same blocks of the same number of
    steps."""
    blocks = np.array([block.mean(axis=0) for block in np.array_split(values, min(_BLOCKS, len(values)))])
    picks = np.random.default_rng(0).integers(len(blocks), size=(_RESAMPLES, len(blocks)))
    return np.asarray(blocks[picks].mean(axis=1))


def ends_of(drawn: Floats) -> tuple[float, float]:
    """Between which 95 % of what was drawn lie."""
    low, high = np.quantile(drawn, [_LEVEL, 1 - _LEVEL])
    return float(low), float(high)
