"""Slower ranks: what is longer in every phase alike, and what is not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.analysis.meetings import Floats
from tracekit.analysis.slower_ranks import throughout

USUAL = np.array([0.1, 0.3, 0.45, 0.15])  # what phases take, shares of a step


def times(usual: Floats = USUAL, spread: float = 0.02, seed: int = 0, steps: int = 100) -> Floats:
    random = np.random.default_rng(seed)
    return usual * (1 + spread * random.standard_normal((steps, len(usual))))


@given(st.floats(1.0, 3.0), st.permutations(USUAL.tolist()), st.integers(0, 3))
def test_a_factor_of_all_phases_is_told_and_what_is_more_is_not_in_it(
    factor: float, usual: list[float], longer: int
) -> None:
    """GIVEN a rank that takes a factor longer for everything, and yet more for one phase."""
    own = factor * np.array(usual) + 0.2 * (np.arange(4) == longer)
    told = throughout(times(own, 0.0), times(np.array(usual), 0.0), 2)
    assert (told is None) == (factor <= 1 + 1e-12)
    if told:
        assert told.factor == pytest.approx(factor)
        assert told.share == pytest.approx((factor - 1,) * 3)
        assert told.whole == pytest.approx((factor - 0.8,) * 3) and told.of_whole == pytest.approx(factor + 0.2)


@pytest.mark.parametrize("seed", range(20))
def test_the_interval_holds_what_is_longer(seed: int) -> None:
    told = throughout(times(1.1 * USUAL, 0.05, seed), times(USUAL, 0.05, 100 + seed), 2)
    assert told
    low, _, high = told.share
    assert low < 0.105 and high > 0.09 and 0.05 < low <= high < 0.15


def test_what_is_hardly_computed_has_no_say() -> None:
    """GIVEN a rank that is slower, while the other ones log, and collect garbage, which it does not."""
    usual = np.append(USUAL, [0.01, 0.005, 0.0])
    own = np.append(1.2 * USUAL, [0.001, 0.0, 0.0])
    told = throughout(times(own), times(usual), 2)
    assert told and told.factor == pytest.approx(1.2, abs=0.02) and told.share[0] > 0.15


@pytest.mark.parametrize("small", [0.0999, 0.1, 0.1001])
@pytest.mark.parametrize("seed", range(5))
def test_a_phase_at_the_edge_of_having_a_say_does_not_hide_a_slower_rank(small: float, seed: int) -> None:
    usual = np.array([small, 0.4, 0.5 - small])
    told = throughout(times(usual * [1.2, 1.2, 1.2], 0.05, seed), times(usual, 0.05, 100 + seed), 2)
    assert told and told.share[0] > 0.1


def test_of_a_phase_that_is_nearly_all_nothing_is_told_in_common() -> None:
    usual = np.array([0.95, 0.02, 0.0])
    assert throughout(times(1.3 * usual), times(usual), 2) is None
    assert throughout(np.zeros((20, 3)), np.zeros((20, 3)), 2) is None


@pytest.mark.parametrize("seed", range(20))
def test_a_steady_phase_among_unsteady_ones_is_not_taken_for_all(seed: int) -> None:
    """GIVEN few steps, in which all but one phase vary widely, and that one is longer THEN it is not certain that all
    are."""
    usual = times(USUAL, 0.4, seed, 12)
    own = times(USUAL, 0.4, 50 + seed, 12)
    usual[:, 2], own[:, 2] = USUAL[2], 1.17 * USUAL[2]
    told = throughout(own, usual, 2)
    assert not told or told.share[0] < 0.05
