"""Settings of threads: the grid that is tried, where they hold, and which CPUs a layout means."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.cli.options import Duration
from tracekit.collectors.thread_counts import Counts
from tracekit.errors import TracekitError
from tracekit.settings.affinity import choose_cpus, layouts_to_try
from tracekit.settings.catalogue import SettingsError, check_applicable
from tracekit.settings.exploration import thread_grid
from tracekit.settings.inside import mismatch
from tracekit.study.threads import control

NODES = [[0, 1, 2, 3], [8, 9, 10, 11]]
ALL = [*range(16)]


@given(st.integers(2, 300), st.integers(0, 300))
def test_the_grid_holds_one_the_cores_and_all_cpus(budget: int, cores: int) -> None:
    grid = thread_grid(budget, cores)
    assert grid == sorted(set(grid)) and grid[0] == 1 and grid[-1] == budget
    assert min(cores or budget, budget) in grid


def test_one_cpu_has_no_grid() -> None:
    with pytest.raises(TracekitError, match="only one CPU"):
        thread_grid(1, 1)


@pytest.mark.parametrize(
    ("value", "threads", "expected"),
    [
        ("compact", 4, [0, 1, 2, 3]),
        ("compact", 6, [0, 1, 2, 3, 8, 9]),
        ("compact", 9, ALL),
        ("scatter", 4, [0, 8, 1, 9]),
        ("cores", 2, [0, 1, 2, 3, 8, 9, 10, 11]),
        ("0-2,5", 1, [0, 1, 2, 5]),
    ],
)
def test_a_layout_means_these_cpus(value: str, threads: int, expected: list[int]) -> None:
    assert choose_cpus(value, threads, NODES, ALL) == expected


@pytest.mark.parametrize(
    ("threads", "expected"), [(1, []), (4, ["compact", "scatter", "cores"]), (8, ["compact"]), (16, ["cores"])]
)
def test_layouts_are_tried_that_mean_different_cpus(threads: int, expected: list[str]) -> None:
    """Of eight cores with two siblings each on two nodes: eight threads have one a core whatever the layout."""
    assert layouts_to_try(threads, NODES, ALL) == expected


def test_nothing_is_tried_where_all_cpus_are_alike() -> None:
    assert layouts_to_try(2, [[0, 1]], [0, 1]) == []


@pytest.mark.parametrize("value", ["0-99", "near", "", "3-", "-1"])
def test_cpus_that_are_not_there_are_refused_by_name(value: str) -> None:
    with pytest.raises(SettingsError, match=r"^threads\.affinity: "):
        choose_cpus(value, 1, NODES, ALL)


def test_a_plan_says_where_it_does_not_hold() -> None:
    plan = {"threads.layers.a": 1, "threads.measured_on.torch": "2.13.0"}
    assert mismatch(plan, {"torch": "2.13.0", "openmp": "libgomp"}) is None
    assert "torch '2.13.0' and this is '2.14.0'" in str(mismatch(plan, {"torch": "2.14.0"}))
    assert mismatch({"threads.intra_op": 2}, {"torch": "2.14.0"}) is None


def test_counts_are_taken_from_settings_by_layer_name() -> None:
    settings = {
        "threads.intra_op": 2,
        "threads.layers.a.b": 1,
        "threads.backward.a.b": 4,
        "threads.shapes.a.b": "float32 2x3; float32 4x3",
    }
    check_applicable(settings)
    counts = Counts.of(settings)
    assert (counts.common, counts.forward, counts.backward) == (2, {"a.b": 1}, {"a.b": 4})
    assert counts.shapes == {"a.b": frozenset({"float32 2x3", "float32 4x3"})}
    assert counts.is_by_layer() and not Counts.of({"threads.intra_op": 2}).is_by_layer()


def test_the_control_has_the_plan_s_layers_and_one_count() -> None:
    plan = {"threads.intra_op": 1, "threads.layers.a": 4, "threads.measured_on.cpu": "x"}
    assert control(plan, 2) == {"threads.intra_op": 2, "threads.layers.a": 2, "threads.measured_on.cpu": "x"}


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("5m", 300), ("1.5h", 5400)])
def test_a_duration_has_a_unit(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "0", "0s", "5 minutes", "-5m", "5d", "inf"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(Exception, match="is no time such as"):
        Duration().convert(text, None, None)
