"""Figures are pure: frames in, a figure out, the frames as they were."""

import pandas as pd
import pytest

from tracekit.dashboards.figures.colors import COLORS, LABELS, PHASE_COLORS
from tracekit.dashboards.figures.counters import Panel, counters_figure
from tracekit.dashboards.figures.ranking import Part, ranking_figure
from tracekit.dashboards.figures.steps import POINTS, phases_figure, steps_figure, thinned
from tracekit.dashboards.figures.timeline import Row, timeline_figure
from tracekit.dashboards.pages.time_range import after_button, after_drag, asked, clamped, next_view

ATTACK = "<img src=x onerror=alert(1)>%{x}\n"
ORIGIN = 1_750_000_000_000_000_000
MS = 1_000_000


def marks() -> pd.DataFrame:
    """A step, an event of an attacker and a bucket that is covered by half."""
    return pd.DataFrame(
        {
            "row": [1, 2, 2],
            "start_ns": [ORIGIN, ORIGIN, ORIGIN + 50 * MS],
            "duration_ns": [100 * MS, 40 * MS, 50 * MS],
            "name": ["step 7", ATTACK, "aten::mm"],
            "colour": ["step", "operator", "operator"],
            "count": [1, 1, 1000],
            "covered_ns": [100 * MS, 40 * MS, 25 * MS],
            "name_covered_ns": [100 * MS, 40 * MS, 20 * MS],
            "bucket": [False, False, True],
            "bottom": 0.0,
            "height": 1.0,
        }
    )


def test_the_timeline_draws_each_mark_once_in_its_colour_with_time_in_seconds() -> None:
    frame, before = marks(), marks()
    rows = [Row("main <b>", title=True), Row("steps", "step"), Row("operators", "operator")]
    figure = timeline_figure(frame, rows, ORIGIN, ORIGIN + 100 * MS, ORIGIN)
    pd.testing.assert_frame_equal(frame, before)
    traces = {trace["name"]: trace for trace in figure["data"]}
    assert set(traces) == {LABELS["step"], LABELS["operator"]}
    operators = traces[LABELS["operator"]]
    assert operators["base"] == [0.0, 0.05]
    assert operators["x"] == pytest.approx([0.04, 0.05])
    assert operators["marker"]["color"] == COLORS["operator"]  # type: ignore[index]
    assert operators["marker"]["opacity"] == [1.0, 0.5]  # type: ignore[index]
    assert figure["layout"]["xaxis"]["range"] == [0.0, 0.1]
    assert "(s)" in figure["layout"]["xaxis"]["title"]["text"]
    assert "1,000 × operator" in operators["hovertext"][1]  # type: ignore[index]
    assert "50.0 % of it, 80.0 % of that aten::mm" in operators["hovertext"][1]  # type: ignore[index]
    assert "<img" not in str(figure)
    assert "main &lt;b&gt;" in str(figure["layout"]["annotations"])


def test_stacked_parts_of_a_bucket_fill_their_part_of_the_row() -> None:
    frame = (
        marks()
        .iloc[[2, 2]]
        .assign(
            colour=["forward", "backward"], bottom=[0.0, 0.25], height=[0.25, 0.75], covered_ns=[12.5 * MS, 37.5 * MS]
        )
    )
    traces = timeline_figure(frame, [Row("phases")] * 3, ORIGIN, ORIGIN + 100 * MS, ORIGIN)["data"]
    lower, upper = traces
    assert lower["marker"]["opacity"] == upper["marker"]["opacity"] == [1.0]  # type: ignore[index]
    tops = [each["y"][0] - each["width"][0] / 2 for each in (lower, upper)]  # type: ignore[index]
    bottoms = [each["y"][0] + each["width"][0] / 2 for each in (lower, upper)]  # type: ignore[index]
    assert tops[0] == pytest.approx(bottoms[1])  # rows count downwards
    assert bottoms[0] - tops[1] == pytest.approx(0.82)


def test_steps_keep_their_extremes_when_thinned() -> None:
    steps = pd.DataFrame(
        {"process": 0, "step": range(20_000), "start_ns": range(0, 20_000 * MS, MS), "duration_ns": MS}
    )
    steps.loc[12_345, "duration_ns"] = 90 * MS
    shown = thinned(steps, "start_ns", "duration_ns")
    assert len(shown) <= POINTS
    assert shown["duration_ns"].max() == 90 * MS
    figure = steps_figure(steps, 0)
    assert len(figure.data[0].x) <= POINTS
    assert figure.layout.yaxis.title.text == "step (ms)"


def test_phases_over_time_add_up_to_the_mean_step() -> None:
    rows = [(0, step, phase, ns) for step in range(500) for phase, ns in (("forward", 3 * MS), ("backward", 5 * MS))]
    figure = phases_figure(pd.DataFrame(rows, columns=["process", "step", "phase", "duration_ns"]))
    assert [trace.name for trace in figure.data] == ["forward", "backward"]
    assert [trace.marker.color for trace in figure.data] == [PHASE_COLORS["forward"], PHASE_COLORS["backward"]]
    for forward, backward in zip(figure.data[0].y, figure.data[1].y, strict=True):
        assert forward + backward == pytest.approx(8.0)


def test_figures_of_nothing_are_empty_figures() -> None:
    none = pd.DataFrame({"process": [], "step": [], "phase": [], "start_ns": [], "duration_ns": []})
    assert not steps_figure(none, 0).data
    assert not phases_figure(none).data
    assert not ranking_figure([], [], "own time").data
    assert timeline_figure(marks().head(0), [], ORIGIN, ORIGIN + 1, ORIGIN)["data"] == []


def test_a_ranking_takes_a_unit_that_fits_and_escapes_names() -> None:
    figure = ranking_figure([ATTACK, "b"], [Part("forward", "#123456", [2e9, 1e9])], "own time")
    assert figure.layout.xaxis.title.text == "own time (s)"
    assert list(figure.data[0].x) == [2.0, 1.0]
    assert "<img" not in figure.to_json()


def test_counters_share_the_axis_and_gaps_stay_gaps() -> None:
    times, values = [ORIGIN, ORIGIN + MS, ORIGIN + 2 * MS], [1.0, float("nan"), 3.0]
    line = (pd.Series(times, dtype="float64").to_numpy(), pd.Series(values).to_numpy())
    panels = [Panel(f"process.cpu_ns {ATTACK}", "CPUs", {ATTACK: line}), Panel("rss", "B", {"main": line})]
    figure = counters_figure(panels, marks().head(1).assign(row=0), ORIGIN, ORIGIN + 100 * MS, ORIGIN)
    lines = [trace for trace in figure.data if trace.type == "scatter"]
    assert [str(value) for value in lines[0].y] == ["1.0", "nan", "3.0"]
    assert figure.layout.xaxis3.title.text == "time since the start of the run (s)"
    assert figure.layout.yaxis2.title.text == "CPUs"
    assert all("%{x}" not in trace.hovertemplate for trace in lines)
    assert "<img" not in figure.to_json()


WHOLE = (ORIGIN, ORIGIN + 1000 * MS)


def test_buttons_and_drags_stay_inside_the_run() -> None:
    assert after_button("closer", WHOLE, WHOLE) == (ORIGIN + 250 * MS, ORIGIN + 750 * MS)
    assert after_button("wider", WHOLE, WHOLE) == WHOLE
    assert after_button("later", (ORIGIN + 900 * MS, ORIGIN + 1000 * MS), WHOLE)[1] == WHOLE[1]
    assert after_drag({"xaxis.range[0]": 0.1, "xaxis.range[1]": 0.2}, WHOLE, WHOLE) == (
        ORIGIN + 100 * MS,
        ORIGIN + 200 * MS,
    )
    assert after_drag({"xaxis3.range": [-5.0, 0.5]}, WHOLE, WHOLE) == (ORIGIN, ORIGIN + 1000 * MS)
    assert after_drag({"xaxis.autorange": True}, (ORIGIN, ORIGIN + 1), WHOLE) == WHOLE
    assert after_drag({"autosize": True}, WHOLE, WHOLE) is None
    assert after_drag({"xaxis.range[0]": "<b>", "xaxis.range[1]": None}, WHOLE, WHOLE) is None
    assert clamped(ORIGIN + 5, ORIGIN + 5, WHOLE) == (ORIGIN + 5, ORIGIN + 1005)


def test_a_link_may_ask_for_a_part_of_the_run() -> None:
    assert asked({"from": str(ORIGIN + MS), "to": str(ORIGIN + 2 * MS)}, WHOLE) == (ORIGIN + MS, ORIGIN + 2 * MS)
    assert asked({"from": "x", "to": "1"}, WHOLE) == asked({}, WHOLE) == WHOLE
    assert next_view("timeline", None, None, None, {"query": {}}, WHOLE) == WHOLE
