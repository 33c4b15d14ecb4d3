"""The page Loading: what loaders were waited for, what is predicted of them, the workers' batches."""

import json
from pathlib import Path

import pandas as pd
import pytest
from synthetic import Tape, make_manifest, make_run

from tracekit.analysis.report_schema import Gain, LoaderForecast, Setting
from tracekit.dashboards.app import show
from tracekit.dashboards.figures.loading import Mark, surface_figure, workers_figure
from tracekit.dashboards.library import Library
from tracekit.run.manifest import Loader

ATTACK = '<img src=x onerror=alert(1)>"%{x}"\'\n&amp;'


def loading_run(path: Path, loader: str) -> Path:
    """A program without workers that takes 8 ms to make each batch, 2 of them computing, and 4 ms to use it."""
    tape = Tape(process=0, role="main")
    for index in range(40):
        start = tape.now
        tape.fetch(8.0, turn=index, cpu_ms=2.0, samples=2)
        tape.add("samples", start, start + 5_000_000, index=index, cpu_ns=1_000_000)
        tape.add("reads", start, start + 2_000_000, path=f"{ATTACK}/{index % 2}", offset=0, bytes=100, cpu_ns=5)
        tape.gap(0.2)
        tape.add("batches", start, tape.now, loader=loader, epoch=0, index=index, worker=-1)
        tape.gap(4.0)
    facts = Loader(place=f"{ATTACK}:7", sampler="RandomSampler", predictability="epoch", checked=80)
    return make_run(path, [tape], manifest=make_manifest(loaders={loader: facts}))


def test_a_run_with_loaders_shows_why_they_were_waited_for_and_what_to_set(tmp_path: Path) -> None:
    loading_run(tmp_path / "one", ATTACK)
    with Library(tmp_path) as library:
        content = show(library, "/", "/loading", "?run=one")[2]
    drawn = json.dumps(content.to_plotly_json(), default=lambda part: part.to_plotly_json())
    assert "40 batches in 1 epochs" in drawn and "known when an epoch begins" in drawn
    assert "surface" not in drawn and '"heatmap"' in drawn and "waited in all" in drawn
    assert '"samples"' in drawn and '"files"' in drawn and "cannot be shown" not in drawn


def test_a_run_without_loaders_says_so(tmp_path: Path) -> None:
    make_run(tmp_path / "one", [Tape(process=0, role="main")])
    with Library(tmp_path) as library:
        assert "No loader was seen" in str(show(library, "/", "/loading", "?run=one")[2])


def test_loaders_of_which_nothing_can_be_predicted_say_why(tmp_path: Path) -> None:
    """GIVEN a run whose only loader is in no forecast THEN its page says why, and shows its samples and files."""
    loading_run(tmp_path / "one", ATTACK)
    with Library(tmp_path) as library:
        report = library.open("one").report()
        report.loaders, report.settings, report.advice = [], [], "it was made with other settings in turn"
        drawn = str(show(library, "/", "/loading", "?run=one")[2])
    assert "it was made with other settings in turn" in drawn and "No loader was seen" not in drawn
    assert "Slowest samples" in drawn and "Slowest files" in drawn


def test_settings_that_go_together_have_one_gain_and_a_file_first(tmp_path: Path) -> None:
    loading_run(tmp_path / "one", "x")
    gain = Gain(0.2, 0.32, 0.4)
    with Library(tmp_path) as library:
        library.open("one").report().settings = [
            Setting("loader.x.num_workers", 0, 4, gain, "model", "order", "one reason", "tracekit apply x"),
            Setting("loader.x.prefetch_factor", None, 2, gain, "model", "identical", "another", "tracekit apply x"),
        ]
        drawn = [str(show(library, "/", page, "?run=one")[2]) for page in ("/loading", "/settings")]
    assert all(page.count("32.0 %") == 1 for page in drawn) and "together save" in drawn[0]
    assert "one reason. another" in drawn[1]
    assert f"tracekit analyze {tmp_path.resolve() / 'one'}" in drawn[1]


def test_the_surface_has_a_cell_for_every_setting_and_marks_for_two() -> None:
    """GIVEN predictions of 20 ms and 5 ms a batch THEN their cells say 50 and 200 batches per second; without workers
    every row says the same."""
    forecasts = [LoaderForecast(0, 0, 20.0, 20.0, 20.0)]
    forecasts += [LoaderForecast(workers, ahead, 4.0, 5.0 * ahead, 9.0) for workers in (1, 4) for ahead in (1, 2)]
    figure = surface_figure(forecasts, [Mark("now", 0, 0, "circle"), Mark("recommended", 4, 2, "star")])
    heat, now, recommended = figure.data
    assert [list(row) for row in heat.z] == [[50.0, 200.0, 200.0], [50.0, 100.0, 100.0]]
    assert (now.x[0], now.y[0]) == (0, 0) and (recommended.x[0], recommended.y[0]) == (2, 1)


def test_a_mark_without_a_cell_is_left_out() -> None:
    forecasts = [LoaderForecast(1, 2, 9.0, 10.0, 11.0), LoaderForecast(2, 2, 9.0, 10.0, 11.0)]
    assert len(surface_figure(forecasts, [Mark("now", 1, 3, "circle"), Mark("now", 12, 2, "circle")]).data) == 1


@pytest.mark.parametrize("makers", [[-1, -1], [3, 4]])
def test_each_worker_has_a_lane_with_its_batches(makers: list[int]) -> None:
    """Batches whose making was not seen are waited for, and in nobody's lane."""
    batches = pd.DataFrame(
        {
            "asked_ns": [10_000_000, 30_000_000], "received_ns": [20_000_000, 31_000_000], "maker": makers,
            "made_start_ns": [5_000_000, 6_000_000], "made_ns": [19_000_000, 22_000_000], "worker": [0, 1],
            "epoch": 0, "index": [0, 1],
        }
    )  # fmt: skip
    steps = pd.DataFrame({"start_ns": [10_000_000], "duration_ns": [20_000_000]})
    figure = workers_figure(batches, steps)
    names = list(figure.layout.yaxis.ticktext)
    assert names[:2] == ["steps", "waits"]
    assert names[2:] == (["worker 0", "worker 1"] if makers[0] >= 0 else [])
    assert list(figure.data[1].x) == [10.0, 1.0]
    if makers[0] >= 0:
        assert list(figure.data[3].base) == [1.0] and list(figure.data[3].x) == [16.0]
