"""What module calls are taken to cost, before anything is recorded."""

from types import SimpleNamespace

import pytest

from tracekit.collectors.layers import Layers


@pytest.mark.parametrize("steps", [1, 16])
def test_the_calls_of_a_stretch_are_those_of_its_steps(steps: int) -> None:
    """GIVEN detail that is so cheap that a stretch of it has many steps THEN a step has its part of the calls."""
    governor = SimpleNamespace(settled_steps=steps, plain_steps=0, steps=steps, with_calls=True)
    layers = Layers()
    layers._agent = SimpleNamespace(governor=governor)  # type: ignore[assignment]
    layers._calls, layers._outermost = 27 * steps, 3 * steps
    layers._settle()
    assert (layers._calls_in_step, layers._outermost_in_step) == (27, 3)
    assert (layers._calls, layers._outermost) == (0, 0)
