"""When a window of the profiler may begin and end."""

from types import SimpleNamespace
from typing import Any

import pytest

from tracekit.collectors.operators import Operators


def open_window(
    monkeypatch: pytest.MonkeyPatch, steps: int, typical_ns: int, lasted_ns: int, ranges: int = 0
) -> Operators:
    operators: Any = Operators()
    operators._agent = SimpleNamespace(
        asks_for_batch=False, governor=SimpleNamespace(steps=5 + steps, typical_step_ns=typical_ns)
    )
    operators._full = operators._is_last = False
    operators._opened_at_step, operators._opened, operators._ranges = 5, 0, ranges
    monkeypatch.setattr("tracekit.collectors.operators.clock", lambda: lasted_ns)
    return operators


@pytest.mark.parametrize(
    ("steps", "typical_ns", "lasted_ns", "ends"),
    [
        (1, 10_000_000, 20_000_000, False),
        (2, 10_000_000, 20_000_000, True),
        (1, 10_000_000, 300_000_000, True),  # an evaluation, which counts no steps
        (1, 200_000_000, 300_000_000, False),
        (1, 200_000_000, 1_700_000_000, True),
        (1, 0, 60_000_000_000, False),  # the first steps, of which nobody knows how long they take
    ],
)
def test_a_window_ends_after_its_steps_or_long_after_they_should_have_passed(
    monkeypatch: pytest.MonkeyPatch, steps: int, typical_ns: int, lasted_ns: int, ends: bool
) -> None:
    assert open_window(monkeypatch, steps, typical_ns, lasted_ns)._is_long_enough() is ends


@pytest.mark.parametrize(("lasted_ns", "ends"), [(300_000_000, False), (2_100_000_000, True)])
def test_a_window_ends_in_a_range_that_began_in_it_much_later(
    monkeypatch: pytest.MonkeyPatch, lasted_ns: int, ends: bool
) -> None:
    assert open_window(monkeypatch, 2, 10_000_000, lasted_ns, ranges=1)._is_long_enough() is ends


def test_no_window_ends_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would wait for the GPU, which spoils the graph."""
    operators: Any = open_window(monkeypatch, 9, 10_000_000, 90_000_000)
    closed: list[bool] = []
    operators._window, operators._thread = object(), __import__("threading").get_ident()
    operators._close = lambda save: closed.append(save)
    operators._may_open = lambda: False
    operators._is_compiling, operators._is_capturing = lambda: False, lambda: True
    assert operators._turn() and not closed
    operators._is_capturing = lambda: False
    operators._turn()
    assert closed == [True]
