"""The page Threads: explorations and studies as figures, rows and sentences."""

import json
import math
from pathlib import Path

import msgspec
import pytest
from synthetic import Tape, make_manifest, make_run, training_run

from tracekit.analysis.report_schema import Gain, Guideline, LayerThreadTimes, Setting, ThreadExploration
from tracekit.dashboards.app import show
from tracekit.dashboards.exploring import Segment, by_difference, in_words, planned_step, step_at, without_slivers
from tracekit.dashboards.figures.colors import count_colors
from tracekit.dashboards.figures.plan import plan_figure
from tracekit.dashboards.figures.study import blocks_figure
from tracekit.dashboards.figures.threads import Line, times_figure
from tracekit.dashboards.library import Library
from tracekit.dashboards.pages.exploration import exploration_parts
from tracekit.dashboards.pages.runs import study_row
from tracekit.dashboards.pages.study import comparison_row, words
from tracekit.errors import RunError
from tracekit.run.folder import create_study
from tracekit.study.result import STUDY_VERSION, Study
from tracekit.study.statistics import Comparison, compare, summarise

ATTACK = '<img src=x onerror=alert(1)>"%{x}"\'\n&amp;'
ADVISED = Setting(
    "ddp.gradient_as_bucket_view",
    False,
    True,
    Gain(0.1, 0.2, 0.3),
    "measured",
    "numerics",
    "6 pairs",
    "tracekit apply y",
)
NAN = Gain(math.nan, math.nan, math.nan)


def around(ms: float) -> Gain:
    return Gain(0.9 * ms, ms, 1.2 * ms)


def explored(**changes: object) -> ThreadExploration:
    """A wide layer that gains from threads, a small one that loses, and the rest; 2 threads now."""
    layers = [
        LayerThreadTimes("small", "forward", 2.0, {"1": around(1.0), "2": around(1.5)}, 1),
        LayerThreadTimes(ATTACK, "backward", 1.0, {"1": around(8.0), "2": around(5.0)}, 2),
        LayerThreadTimes("the rest of the step", "", 1.0, {"1": around(1.0), "2": NAN}, 1),
    ]
    step = {"1": around(10.0), "2": around(7.5)}
    found = ThreadExploration([1, 2], 2, 12, 26, 2, 0.034, step, layers, None)
    return msgspec.structs.replace(found, **changes)


def studied(**changes: object) -> Study:
    blocks = {"baseline": [10.0, 10.1, 9.9, 10.0, 10.2], ATTACK: [8.0, 8.08, 7.92, 8.0, 8.16]}
    study = Study(
        schema=STUDY_VERSION,
        study="threads",
        path="/elsewhere/study",
        command=["python", ATTACK],
        conditions=[summarise(name, times) for name, times in blocks.items()],
        comparisons=[compare("baseline", ATTACK, blocks["baseline"], blocks[ATTACK], 0.02)],
        floor=0.02,
        level=0.95,
        stopped="every comparison was settled after 5 rounds",
        blocks_ms=blocks,
        guidelines=[Guideline(ATTACK, 0.75, 4, ATTACK)],
        advice=ATTACK,
    )
    return msgspec.structs.replace(study, **changes)


def test_layers_whose_time_depends_most_on_the_count_come_first() -> None:
    found = explored()
    assert [layer.layer for layer in by_difference(found.layers)] == [ATTACK, "small", "the rest of the step"]


def test_the_plan_and_the_step_now_are_in_the_order_of_the_layers() -> None:
    layers = explored().layers
    assert [(each.count, each.ms) for each in planned_step(layers)] == [(1, 1.0), (2, 5.0), (1, 1.0)]
    assert [(each.label, each.ms) for each in step_at(layers, 2)] == [("small forward", 1.5), (f"{ATTACK} backward", 5)]
    for layer in layers:
        layer.planned = None
    assert planned_step(layers) == []


def test_slivers_are_merged_with_neighbours_of_the_same_count_only() -> None:
    thin = [Segment(str(number), 1 if number < 6 else 2, 0.01) for number in range(10)]
    strip = [*thin, Segment("wide", 2, 5.0), Segment("last", 2, 0.01)]
    merged = without_slivers(strip, 0.1)
    assert [(each.label, each.count) for each in merged] == [
        ("6 short layers", 1), ("4 short layers", 2), ("wide", 2), ("last", 2)
    ]  # fmt: skip
    assert sum(each.ms for each in merged) == pytest.approx(sum(each.ms for each in strip))
    assert sum(each.layers for each in merged) == 12


def test_lines_over_counts_have_intervals_and_leave_out_what_is_not_known() -> None:
    lines = [Line(each.layer, each.times, each.planned) for each in explored().layers]
    figure = times_figure(lines, [1, 2], "time")
    small, attack, rest = figure.data
    assert list(small.y) == [1.0, 1.5]
    assert list(small.error_y.array) == pytest.approx([0.2, 0.3])
    assert list(small.error_y.arrayminus) == pytest.approx([0.1, 0.15])
    assert list(small.marker.symbol) == ["diamond", "circle"]
    assert list(rest.y) == [1.0]
    assert len({trace.line.color for trace in figure.data}) == 3
    assert figure.layout.yaxis.title.text == "time (ms)"
    assert list(figure.layout.xaxis.ticktext) == ["1", "2"]
    assert "5.00 ms (4.50 ms to 6.00 ms)" in attack.hovertext[1]
    assert "<img" not in figure.to_json()
    assert all("%{x}" not in trace.hovertemplate for trace in figure.data)


def test_the_strip_of_a_plan_is_as_long_as_its_layers_and_coloured_by_count() -> None:
    layers = explored().layers
    strips = {"planned": planned_step(layers), "now, 2": step_at(layers, 2)}
    figure = plan_figure(strips, [1, 2])
    one, two = figure.data
    assert (one.name, two.name) == ("1 thread", "2 threads")
    assert [one.marker.color, two.marker.color] == list(count_colors([1, 2]).values())
    assert list(zip(one.y, one.base, one.x, strict=True)) == [(0, 0.0, 1.0), (0, 6.0, 1.0)]
    assert list(zip(two.y, two.base, two.x, strict=True)) == [(0, 1.0, 5.0), (1, 0.0, 1.5), (1, 1.5, 5.0)]
    assert "<img" not in figure.to_json()


@pytest.mark.parametrize("counts", [[], [4], [1, 2], [1, 2, 4, 8, 16, 32, 64, 96]])
def test_every_count_has_a_colour_and_few_counts_have_different_ones(counts: list[int]) -> None:
    colors = count_colors(counts)
    assert list(colors) == counts
    assert len(set(colors.values())) == min(len(counts), 7)


@pytest.mark.parametrize("by_mean", [False, True])
def test_a_study_shows_every_block_and_the_interval_of_the_median(by_mean: bool) -> None:
    study = studied(conditions=[*studied().conditions, summarise("never run", [])], by_mean=by_mean)
    figure = blocks_figure(study.conditions, study.blocks_ms, study.step)
    boxes = [trace for trace in figure.data if trace.type == "box"]
    assert [list(box.x) for box in boxes] == list(study.blocks_ms.values())
    medians = figure.data[-1]
    assert list(medians.x) == [10.0, 8.0]
    assert all(bound >= 0 for bound in [*medians.error_x.array, *medians.error_x.arrayminus])
    assert len(figure.layout.yaxis.ticktext) == 3
    assert figure.layout.xaxis.title.text == f"{'mean' if by_mean else 'median'} step of a block (ms)"
    assert by_mean == any("by the mean step" in each for each in words(study))
    assert "<img" not in figure.to_json()


def test_figures_of_nothing_are_empty_figures() -> None:
    assert not times_figure([], [], "time").data
    assert not plan_figure({}, []).data
    assert not plan_figure({"planned": []}, [1, 2]).data
    assert not blocks_figure([], {}, "step").data


def test_what_was_measured_is_said_in_words() -> None:
    assert in_words(explored()) == [
        "26 blocks of steps ran with 1 and 2 threads in turn, each round with every count once, in random order;"
        " 12 rounds can be used.",
        "2 blocks were left out: something kept the program from its CPUs.",
        "From the first third of the run to the last, steps with 2 threads became 3.4 % slower; every round meets that"
        " alike.",
    ]
    assert in_words(explored(disturbed=0, drift=-0.002, blocks=1, rounds=1, counts=[1], current=1)) == [
        "1 block of steps ran with 1 threads in turn, each round with every count once, in random order;"
        " 1 round can be used.",
        "No block was disturbed.",
        "From the first third of the run to the last, steps with 1 thread stayed as fast.",
    ]
    assert "too few steps" in in_words(explored(drift=None))[2]


def test_an_exploration_without_any_round_says_its_problem_and_draws_nothing() -> None:
    layers = [LayerThreadTimes("a", "forward", 1.0, {})]
    found = explored(step={}, layers=layers, rounds=0, blocks=3, drift=None, problem="the run was too short")
    shown = json.dumps([part.to_plotly_json() for part in exploration_parts(found)], default=str)
    assert "the run was too short" in shown
    assert "Graph(" not in shown


def test_a_comparison_of_too_few_pairs_shows_no_interval() -> None:
    row = comparison_row(compare("a", "b", [10.0], [8.0], 0.1))
    assert row["expected"] == pytest.approx(0.2)
    assert (row["low"], row["high"], row["verdict"]) == (None, None, "undecided")
    assert "at least 3 pairs" in str(row["why"])
    assert (
        comparison_row(Comparison("a", "b", compare("a", "b", [], [], 1).gain, "undecided", 0, 1))["expected"] is None
    )


def test_a_study_says_its_floor_and_why_it_ended() -> None:
    assert "The noise floor is 2.0 %" in words(studied())[0]
    assert words(studied())[1] == "The study ended: every comparison was settled after 5 rounds."
    assert words(studied(floor=1.0, stopped="")) == ["The noise floor is not known: that takes at least three rounds."]


def saved(folder: Path, study: Study) -> Path:
    create_study(folder).joinpath("runs").mkdir()
    study.save(folder)
    return folder


def test_studies_are_listed_beside_the_runs_and_lead_to_the_run_they_explored(tmp_path: Path) -> None:
    directory = tmp_path / "runs"
    training_run(directory / "one", steps=3)
    study = saved(directory / "odd <b>&", studied(explored="/elsewhere/study/runs/001-explore"))
    make_run(study / "runs" / "001-explore")
    (create_study(directory / "broken") / "study.json").write_text("{")
    create_study(directory / "unfinished")
    with Library(directory) as library:
        assert library.names() == ["one"]
        rows = {row["name"]: row for row in map(study_row, library.study_entries())}
        assert set(rows) == {"odd <b>&", "broken"}
        assert rows["odd <b>&"]["blocks"] == 10
        assert str(rows["odd <b>&"]["result"]).endswith("against baseline: faster, saves 20.0 %")
        assert rows["broken"]["kind"] == "unreadable"
        found, explored = library.study("odd <b>&")
        assert found.study == "threads"
        assert explored == "odd <b>&/001-explore"
        opened = library.open(explored)
        assert (opened.name, opened.run.name) == (explored, "001-explore")
        for name in ("../runs", "unfinished", "", "odd <b>&/001-explore"):
            with pytest.raises(RunError, match="no study of this name"):
                library.study(name)
        for name in ("odd <b>&/../../one", "odd <b>&/002"):
            with pytest.raises(RunError, match="no run of this name"):
                library.open(name)


@pytest.mark.parametrize("explored", ["/x/runs/..", "/x/runs/gone", "", None])
def test_a_study_without_the_run_it_explored_can_be_shown(explored: str | None, tmp_path: Path) -> None:
    saved(tmp_path / "study", studied(explored=explored))
    with Library(tmp_path) as library:
        assert library.study("study")[1] is None
        _, header, content = show(library, "/t/", "/t/threads", "?study=study")
        assert "Study of thread counts" in str(content)
        assert "study" in str(header)


@pytest.mark.parametrize(
    ("kind", "page", "title"), [("ddp", "distributed", "Study of gradient"), ("loading", "loading", "Study of loaders")]
)
def test_a_study_is_shown_where_what_it_compares_is(kind: str, page: str, title: str, tmp_path: Path) -> None:
    """GIVEN a study of buckets or of loaders THEN its page leads to the run that it began with, and says what is
    recommended, what that changes and how to apply it."""
    saved(tmp_path / "study", studied(study=kind, explored="/x/runs/001-explore", settings=[ADVISED]))
    make_run(tmp_path / "study" / "runs" / "001-explore", [Tape()])
    with Library(tmp_path) as library:
        content = str(show(library, "/t/", f"/t/{page}", "?study=study")[2])
    assert title in content and f"/t/{page}?run=study%2F001-explore" in content
    assert "changes the numbers" in content and "6 pairs" in content and "tracekit apply y" in content


def test_a_library_of_one_study_says_that_it_holds_no_run(tmp_path: Path) -> None:
    with Library(saved(tmp_path / "study", studied())) as library:
        assert library.study_names() == ["study"]
        assert "studies only" in str(show(library, "/", "/layers", "")[2])
        assert "There are studies only" in str(show(library, "/", "/", "")[2])
        assert "no study of this name" in str(show(library, "/", "/threads", "?study=other")[2])


def test_a_run_without_an_exploration_says_how_to_make_one(tmp_path: Path) -> None:
    training_run(tmp_path / "one", steps=3, manifest=make_manifest(command=["python", "my train.py"]))
    with Library(tmp_path) as library:
        content = str(show(library, "/", "/threads", "?run=one")[2])
    assert "tracekit record --explore threads -- python 'my train.py'" in content
    assert "tracekit study threads -- python 'my train.py'" in content
