"""Numbers as people read them, and names that are no markup."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.dashboards.figures import text


@pytest.mark.parametrize(
    ("ns", "shown"),
    [(0, "0 ns"), (999, "999 ns"), (1234, "1.23 µs"), (1_500_000, "1.50 ms"), (2e9, "2.00 s"), (-5e6, "−5.00 ms")],
)
def test_durations_have_three_digits_and_a_unit(ns: float, shown: str) -> None:
    assert text.duration(ns) == shown


def test_long_durations_count_minutes_and_hours() -> None:
    assert text.long_duration(12.34e9) == "12.3 s"
    assert text.long_duration(200e9) == "3 min 20 s"
    assert text.long_duration(3_725e9) == "1 h 02 min"


def test_counts_and_shares() -> None:
    assert [text.number(count) for count in (0, 9_812, 12_345, 5_030_000)] == ["0", "9,812", "12.3 k", "5.03 M"]
    assert [text.percent(share) for share in (0.0, 0.0004, 0.1234, -0.02)] == ["0.0 %", "< 0.1 %", "12.3 %", "−2.0 %"]


@given(st.text(max_size=300), st.integers(10, 100))
def test_labels_hold_no_markup_and_one_line(name: str, length: int) -> None:
    shown = text.label(name, length)
    assert "<" not in shown
    assert "\n" not in shown
    assert "\x1b" not in shown
    assert len(text.one_line(name, length)) <= length


def test_labels_keep_both_ends_of_long_names() -> None:
    assert text.one_line("encoder.layers.11.attention.output", 15) == "encoder….output"
    assert text.label("a<b>&amp;") == "a&lt;b&gt;&amp;amp;"
