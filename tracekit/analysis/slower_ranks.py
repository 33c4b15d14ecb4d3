"""Slower ranks: by how much one computes longer in every phase alike, as on a slower CPU."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Steps that follow each other have much in common: so many blocks of them are drawn anew, so many times.
_BLOCKS, _RESAMPLES, _LEVEL = 20, 1000, 0.025
# Phases that are less than this part of the computing, all together, have no say: what is hardly computed, as a line
# that one rank logs, differs for reasons of its own. A phase that is nearly all of it has nothing in common with any.
_SMALL = 0.1


@dataclass(frozen=True)
class Throughout:
    """By what `factor` (1 or more) all phases of a rank are longer; by what `share` of a step, at least, expected, at
    most (95 %); and what `part` that is of what each phase takes longer, (phase)."""

    factor: float
    share: tuple[float, float, float]
    part: Floats | float


NOTHING = Throughout(1.0, (0.0, 0.0, 0.0), 0.0)


def throughout(own: Floats, others: Floats) -> Throughout:
    """What a rank computes longer throughout, given what each phase took it and the others in each step, (step, phase),
    as shares of a step."""
    usual, drawn = others.mean(axis=0), drawn_anew(others)
    (factor,) = _common(own.mean(axis=0)[None], usual[None])
    low, high = np.quantile((_common(drawn_anew(own), drawn) - 1) * drawn.sum(axis=1), [_LEVEL, 1 - _LEVEL])
    alike, longer = (factor - 1) * usual, own.mean(axis=0) - usual
    part = np.divide(alike, longer, out=np.zeros_like(alike), where=longer > 0).clip(0, 1)
    return Throughout(float(factor), (float(low), float(alike.sum()), float(high)), part)


def _common(own: Floats, others: Floats) -> Floats:
    """The factor by which all phases are longer, (draw), given the times of each draw, (draw, phase): that of the phase
    that is the least longer."""
    computed = others.sum(axis=1)
    ratios = np.divide(own, others, out=np.full_like(own, np.inf), where=others > 0)
    order = ratios.argsort(axis=1)
    counts = np.take_along_axis(others, order, axis=1).cumsum(axis=1) > _SMALL * computed[:, None]
    least = np.take_along_axis(order, counts.argmax(axis=1)[:, None], axis=1)
    factor = np.take_along_axis(ratios, least, axis=1)[:, 0]
    tells = (computed > 0) & (others.max(axis=1) <= (1 - _SMALL) * computed)
    return np.maximum(factor, 1.0, out=np.ones_like(factor), where=tells)


def interval(values: Floats) -> tuple[float, float, float]:
    """The mean over steps and its 95 % interval, by blocks of steps drawn anew; rare large values leave it wide."""
    if not len(values):
        return 0.0, 0.0, 0.0
    low, high = np.quantile(drawn_anew(values), [_LEVEL, 1 - _LEVEL])
    return float(low), float(values.mean()), float(high)


def drawn_anew(values: Floats) -> Floats:
    """Means over the steps (the first axis), of blocks of them drawn anew: the same blocks of the same number of
    steps."""
    blocks = np.array([block.mean(axis=0) for block in np.array_split(values, min(_BLOCKS, len(values)))])
    picks = np.random.default_rng(0).integers(len(blocks), size=(_RESAMPLES, len(blocks)))
    return np.asarray(blocks[picks].mean(axis=1))
