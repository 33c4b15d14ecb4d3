"""Slower ranks: by how much one computes longer in every phase alike, as on a slower CPU."""

from dataclasses import dataclass

import numpy as np

from tracekit.analysis.meetings import Floats

# Steps that follow each other have much in common: so many blocks of them are drawn anew, so many times.
_BLOCKS, _RESAMPLES, _LEVEL = 20, 1000, 0.025
# Phases that are less than this part of the computing, all together, have no say: what is hardly computed, as a line
# that one rank logs, differs for reasons of its own. A phase that is nearly all of it has nothing in common with any.
_SMALL = 0.1


@dataclass(frozen=True)
class Throughout:
    """By what `factor` all phases of a rank are longer, and by what `share` of a step, at least, expected, at most
    (95 %); and the `whole` that it computes longer, likewise, with the factor that this would be (`of_whole`)."""

    factor: float
    share: tuple[float, float, float]
    whole: tuple[float, float, float]
    of_whole: float


def throughout(own: Floats, others: Floats) -> Throughout | None:
    """What a rank computes longer throughout, given what each phase took it and the others in each step, (step, phase),
    as shares of a step; None where it does not."""
    usual = others.mean(axis=0)
    computed = float(usual.sum())
    ratios = _ratios(own.mean(axis=0), usual)
    order = ratios.argsort()
    has_say = order[usual[order].cumsum() > _SMALL * computed]
    if not len(has_say) or usual.max() > (1 - _SMALL) * computed or (factor := float(ratios[has_say[0]])) <= 1:
        return None
    drawn = drawn_anew(others)
    least = _ratios(drawn_anew(own), drawn)[:, has_say].min(axis=1)
    low, high = np.quantile((least - 1) * drawn.sum(axis=1), [_LEVEL, 1 - _LEVEL])
    whole = interval((own - others).sum(axis=1))
    return Throughout(factor, (float(low), (factor - 1) * computed, float(high)), whole, 1 + whole[1] / computed)


def _ratios(own: Floats, others: Floats) -> Floats:
    return np.divide(own, others, out=np.full_like(own, np.inf), where=others > 0)


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
