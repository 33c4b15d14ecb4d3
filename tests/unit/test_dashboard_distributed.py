"""The page Distributed: whose delays the ranks waited for, their meetings, and how well they work together."""

import json
from pathlib import Path

import pytest
from ranks import STEP_MS, both, delay, noise, ranks_run
from synthetic import Tape, make_run

from tracekit.analysis.clocks import aligned
from tracekit.analysis.delays import causes
from tracekit.analysis.meetings import find_meetings
from tracekit.analysis.report_schema import BucketForecast, BucketSummary, Finding, WhatIf
from tracekit.dashboards.app import show
from tracekit.dashboards.figures.distributed import efficiency_figure, meetings_figure, middle_of
from tracekit.dashboards.library import Library
from tracekit.dashboards.queries import buckets_between

FORECAST = BucketForecast(25.0, 1, 9.0, 10.0, 11.0)


def test_a_run_of_ranks_shows_who_was_late_and_by_what(tmp_path: Path) -> None:
    ranks_run(tmp_path / "one", 2, longer=both(delay("forward", 0.1 * STEP_MS, lambda step: 1), noise(0.002)))
    with Library(tmp_path) as library:
        content = show(library, "/", "/distributed", "?run=one")[2]
    drawn = json.dumps(content.to_plotly_json(), default=lambda part: part.to_plotly_json())
    assert "rank 1's forward caused" in drawn
    assert "waiting for the last one" in drawn and "bucket 1" in drawn
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


def test_buckets_that_are_under_way_lie_below_their_ranks(tmp_path: Path) -> None:
    """GIVEN two hosts whose clocks are apart WHEN drawn THEN all buckets between two meetings are, by one clock, and
    each is back when its rank leaves the meeting."""
    run = ranks_run(tmp_path / "run", 2, 50, hosts=2, ahead_ms=50.0)
    (as_recorded,) = find_meetings(run)
    meetings, clocks = aligned(as_recorded)
    first, last = middle_of(meetings, 10)
    begin, end = int(meetings.left[:, first].min()), int(meetings.left[:, last].max())
    buckets = buckets_between(run, meetings, clocks, begin, end)
    assert buckets.groupby(["lane", "bucket"]).size().tolist() == [10] * 4
    for lane in range(2):
        its = buckets[(buckets["lane"] == lane) & (buckets["bucket"] == 1)]
        assert its["back_ns"].to_numpy() == pytest.approx(meetings.left[lane, first + 1 : last + 1], abs=1e3)
    figure = meetings_figure(meetings, causes(meetings), first, last, buckets)
    (drawn,) = [trace for trace in figure["data"] if "bucket" in trace["name"]]
    assert len(drawn["x"]) == 40 and max(drawn["y"]) < 1.6 and "or earlier by up to" in drawn["hovertext"][0]


def test_who_is_held_by_other_communication_is_drawn_waiting_and_not_at_work(tmp_path: Path) -> None:
    """GIVEN a rank 0 that loads for long and then gives its buffers WHEN rank 1 waits for these THEN that is drawn as
    waiting for rank 0, as the report counts it."""
    late = delay("loading", 10.0, lambda step: 0)
    (meetings,) = find_meetings(ranks_run(tmp_path / "run", longer=late, gives=True))
    first, last = middle_of(meetings, 10)
    drawn = {trace["name"]: trace for trace in meetings_figure(meetings, causes(meetings), first, last)["data"]}
    waiting, work = drawn["waiting, loading was late"], drawn["its own work"]
    waited = sum(length for lane, length in zip(waiting["y"], waiting["x"], strict=True) if lane == 1)
    assert waited == pytest.approx(meetings.waited[1, first + 1 : last + 1].sum() / 1e6) and waited > 90
    assert max(length for lane, length in zip(work["y"], work["x"], strict=True) if lane == 1) < STEP_MS


def test_the_clocks_of_hosts_do_not_change_who_is_drawn_late(tmp_path: Path) -> None:
    """GIVEN two hosts whose clocks are apart by more than all delays WHEN the page is drawn THEN the rank and the phase
    are those of one clock."""
    ranks_run(tmp_path / "one", 2, longer=delay("forward", 4.0, lambda step: 0), hosts=2, ahead_ms=50.0)
    with Library(tmp_path) as library:
        drawn = str(show(library, "/", "/distributed", "?run=one")[2])
    assert "waiting, forward was late" in drawn and "for rank 0" in drawn and "for rank 1" not in drawn
    assert "times are corrected" in drawn


def test_what_is_known_without_any_meeting_is_shown(tmp_path: Path) -> None:
    """GIVEN ranks that communicate and are never seen to meet THEN that is why the page is empty, unless one of them
    hung."""
    tapes = [Tape(process=rank, role=f"rank {rank}", rank=rank) for rank in range(2)]
    for tape in tapes:
        tape.met(0, 0, 1000, 0, op="send")
    make_run(tmp_path / "one", tapes)
    with Library(tmp_path) as library:
        assert "Its ranks communicated, but" in str(show(library, "/", "/distributed", "?run=one")[2])
        library.open("one").report().findings.append(Finding("distributed.never_ended", "rank 1 never came", {}))
        drawn = str(show(library, "/", "/distributed", "?run=one")[2])
        assert "rank 1 never came" in drawn and "Its ranks communicated" not in drawn


def test_of_ranks_that_never_met_nobody_is_said_not_to_be_late(tmp_path: Path) -> None:
    """GIVEN a run that has no meetings, and its buckets WHEN shown THEN nothing is said of who was late."""
    make_run(tmp_path / "one", [Tape(process=0, role="rank 0", rank=0)])
    with Library(tmp_path) as library:
        found = BucketSummary(25.0, 2, 8, 1 << 20, None, None, [FORECAST])
        library.open("one").report().buckets = found
        drawn = str(show(library, "/", "/distributed", "?run=one")[2])
        found.what_if = [
            WhatIf("", "half the latency", 8.0, 9.0, 10.0),
            WhatIf("numerics", "half the bytes", 7.0, 8.0, 9.0),
        ]
        with_others = str(show(library, "/", "/distributed", "?run=one")[2])
    assert "half the latency" in with_others and "results differ" in with_others and "results differ" not in drawn
    assert "other gradient buckets" in drawn and "kept the others" not in drawn and "Whose delays" not in drawn


def test_a_look_for_unused_parameters_is_no_delay(tmp_path: Path) -> None:
    ranks_run(tmp_path / "one", 2, longer=noise(0.002))
    with Library(tmp_path) as library:
        library.open("one").report().findings.append(Finding("ddp.unused_parameters", "looked, and found none", {}))
        drawn = str(show(library, "/", "/distributed", "?run=one")[2])
    assert "looked, and found none" in drawn and "may leave unused" in drawn and "kept the others waiting" in drawn


def test_that_nothing_is_known_of_the_ways_is_no_news_of_nobody_being_late(tmp_path: Path) -> None:
    ranks_run(tmp_path / "one", 2, longer=delay("forward", 4.0, lambda step: 0), left_out=lambda step: step % 2 == 0)
    with Library(tmp_path) as library:
        drawn = str(show(library, "/", "/distributed", "?run=one")[2])
    assert "is not known, so nobody is named" in drawn and "kept the others waiting" not in drawn


def test_efficiencies_are_shown_in_percent() -> None:
    tree = {"parallel": 0.5, "load balance": 0.8, "communication": 0.625, "serialization": 0.9, "transfer": 0.694}
    (bars,) = efficiency_figure(tree)["data"]
    assert list(bars["x"]) == pytest.approx([50, 80, 62.5, 90, 69.4])
