"""The page Distributed: whose delays the ranks waited for, their meetings, and how well they work together."""

import json
from pathlib import Path

import pytest
from ranks import STEP_MS, both, delay, noise, ranks_run
from synthetic import Tape, make_run

from tracekit.analysis.delays import causes
from tracekit.analysis.meetings import find_meetings
from tracekit.dashboards.app import show
from tracekit.dashboards.figures.distributed import efficiency_figure, meetings_figure, middle_of
from tracekit.dashboards.library import Library


def test_a_run_of_ranks_shows_who_was_late_and_by_what(tmp_path: Path) -> None:
    ranks_run(tmp_path / "one", 2, longer=both(delay("forward", 0.1 * STEP_MS, lambda step: 1), noise(0.002)))
    with Library(tmp_path) as library:
        content = show(library, "/", "/distributed", "?run=one")[2]
    drawn = json.dumps(content.to_plotly_json(), default=lambda part: part.to_plotly_json())
    assert "rank 1's forward caused" in drawn
    assert "waiting, forward was late" in drawn and "load balance" in drawn and "critical path" in drawn
    assert "cannot be shown" not in drawn


def test_a_run_without_ranks_says_so(tmp_path: Path) -> None:
    make_run(tmp_path / "one", [Tape(process=0, role="main")])
    with Library(tmp_path) as library:
        assert "No ranks that wait" in str(show(library, "/", "/distributed", "?run=one")[2])


def test_each_rank_has_a_lane_that_its_work_waiting_and_transfer_fill(tmp_path: Path) -> None:
    (meetings,) = find_meetings(ranks_run(tmp_path / "run", 3, 50, delay("backward", 4.0, lambda step: 2)))
    first, last = middle_of(meetings, 10)
    figure = meetings_figure(meetings, causes(meetings), first, last)
    filled = dict.fromkeys(range(3), 0.0)
    for trace in figure["data"]:
        for lane, length in zip(trace["y"], trace["x"], strict=True):
            filled[lane] += length
    for lane in range(3):
        whole = (meetings.left[lane, last] - meetings.left[lane, first]) / 1e6
        assert filled[lane] == pytest.approx(whole)
    assert [trace["name"] for trace in figure["data"] if "waiting" in trace["name"]] == ["waiting, backward was late"]


def test_efficiencies_are_shown_in_percent() -> None:
    tree = {"parallel": 0.5, "load balance": 0.8, "communication": 0.625, "serialization": 0.9, "transfer": 0.694}
    (bars,) = efficiency_figure(tree)["data"]
    assert list(bars["x"]) == pytest.approx([50, 80, 62.5, 90, 69.4])
