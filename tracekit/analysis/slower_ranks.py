"""Slower ranks: by how much one computes longer in every phase alike, as on a slower CPU."""

from dataclasses import dataclass

import numpy as np

from tracekit.analysis.meetings import Floats
from tracekit.analysis.resampling import ends_of, interval, means_drawn_anew

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


def throughout(own: Floats, others: Floats, ranks: int) -> Throughout | None:
    """What one of so many ranks computes longer throughout, given what each phase took it and the others in each step,
    (step, phase), as shares of a step; None where it does not."""
    usual = others.mean(axis=0)
    computed = float(usual.sum())
    ratios = _ratios(own.mean(axis=0), usual)
    order = ratios.argsort()
    has_say = order[usual[order].cumsum() > _SMALL * computed]
    if not len(has_say) or usual.max() > (1 - _SMALL) * computed or (factor := float(ratios[has_say[0]])) <= 1:
        return None
    drawn = means_drawn_anew(others)
    least = _ratios(means_drawn_anew(own), drawn)[:, has_say].min(axis=1)
    low, high = ends_of((least - 1) * drawn.sum(axis=1), len(own), ranks)
    whole = interval((own - others).sum(axis=1), ranks)
    return Throughout(factor, (low, (factor - 1) * computed, high), whole, 1 + whole[1] / computed)


def _ratios(own: Floats, others: Floats) -> Floats:
    return np.divide(own, others, out=np.full_like(own, np.inf), where=others > 0)
