"""Guidelines: sentences with numbers in them, whatever the times are."""

import numpy as np
import pytest

from tracekit.analysis.exploration import REST, Exploration, Section
from tracekit.models.guidelines import guidelines
from tracekit.models.switching import Pool, SwitchCosts

MS = 1e6


def measured(times: dict[str, tuple[float, float]]) -> Exploration:
    """Sections with ms at 1 and at 2 threads, the same in every round."""
    matrix = np.repeat(MS * np.array([list(times.values())]), 4, axis=0)
    return Exploration(
        process=0,
        counts=(1, 2),
        current=2,
        sections=[Section(name, "" if name == REST else "forward", 1.0) for name in times],
        times=matrix,
        step_ns=matrix.sum(axis=1),
        switch=np.zeros((2, 2)),
        change=0.0,
        shapes={},
        openmp="libgomp",
        blocks=8,
        disturbed=0,
        kept=np.zeros(2),
        drift=None,
        trials=[],
        problem=None,
    )


REST_TIMES = [(-0.3, -0.1), (-0.1, -0.3), (0.0, 0.0), (0.5, 0.6)]


def sentences(times: dict[str, tuple[float, float]]) -> list[str]:
    costs = SwitchCosts((1, 2), Pool.LIBGOMP, np.zeros((2, 2)), 0.0)
    return [guideline.sentence for guideline in guidelines(measured(times), costs)]


@pytest.mark.parametrize("rest", REST_TIMES)
def test_the_limit_is_one_between_layers(rest: tuple[float, float]) -> None:
    said = sentences({"narrow": (1.0, 1.5), "wide": (4.0, 2.0), REST: rest})
    assert any("less than 2 ms" in sentence for sentence in said), said


@pytest.mark.parametrize("rest", REST_TIMES)
def test_layers_that_are_all_alike_have_no_limit_whatever_the_rest_of_the_step_seems_to_take(
    rest: tuple[float, float],
) -> None:
    """GIVEN a step that is faster than its layers, each looked at, add up to THEN its rest is below nothing."""
    said = sentences({"wide": (4.0, 2.0), "wider": (9.0, 5.0), REST: rest})
    assert not any("less than" in sentence for sentence in said), said
