"""The index of a run: what a view holds, at every zoom, adds up to what was recorded."""

import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest
from synthetic import BEGIN_NS, MS, Tape, make_run, train, training_run

from tracekit.advice import analyze
from tracekit.analysis.report import report_json
from tracekit.analysis.steps import find_steps
from tracekit.dashboards import index as index_module
from tracekit.dashboards.index import Index, build_index, extent_of
from tracekit.dashboards.library import Library
from tracekit.dashboards.pages.lanes import marks_of, rows_of
from tracekit.dashboards.queries import MACHINE, counter_series
from tracekit.dashboards.sources import KINDS
from tracekit.errors import RunError
from tracekit.run.reader import open_run


def indexed(path: Path, scratch: Path) -> Index:
    run = open_run(path)
    steps = find_steps(run)
    scratch.mkdir()
    return build_index(run, steps, extent_of(run, steps), scratch)


@pytest.fixture(params=[0, 100_000])
def busy(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Index:
    """A training loop and 6,000 operators, each calling one other, in another thread; with levels, and without."""
    monkeypatch.setattr(index_module, "FEW", request.param)
    tape = Tape()
    train(tape, 40)
    rows = 6_000
    start = BEGIN_NS + 500 * MS + np.arange(rows) * 100_000
    outer = pd.DataFrame({"start_ns": start, "duration_ns": 90_000, "name": "aten::linear"})
    inner = pd.DataFrame({"start_ns": start + 10_000, "duration_ns": 50_000, "name": "aten::addmm"})
    operators = pd.concat([inner, outer]).assign(process=0, thread=9, category="cpu_op")  # not in order
    return indexed(make_run(tmp_path / "run", [tape], {"operators": operators}), tmp_path / "scratch")


def lanes(index: Index, kind: str) -> list[int]:
    return [number for number, lane in enumerate(index.lanes) if lane.key.kind == KINDS.index(kind)]


def test_operators_are_nested_and_counted(busy: Index) -> None:
    outer, inner = lanes(busy, "operator")
    assert [busy.lanes[number].count for number in (outer, inner)] == [6_000, 6_000]
    assert [busy.lanes[number].key.depth for number in (outer, inner)] == [0, 1]
    for level in busy.lanes[outer].levels:
        assert level.count.sum() == 6_000
        assert level.covered.sum() == 6_000 * 90_000


@pytest.mark.parametrize("marks", [5_000, 800, 60])
def test_no_view_holds_more_marks_than_asked_for(busy: Index, marks: int) -> None:
    everything = range(len(busy.lanes))
    length = busy.end - busy.begin
    for zoom in (1, 3, 10, 100, 10_000):
        for part in range(3):
            begin = busy.begin + part * length // 3
            assert len(busy.view(begin, begin + length // zoom, everything, marks)) <= marks


def test_a_wide_view_counts_everything_and_a_narrow_one_shows_events(busy: Index) -> None:
    operators = lanes(busy, "operator")
    wide = busy.view(busy.begin, busy.end, operators)
    assert (wide["position"] == -1).all()
    assert wide["count"].sum() == 12_000
    assert wide["covered_ns"].sum() == 6_000 * 140_000
    begin = BEGIN_NS + 600 * MS
    narrow = busy.view(begin, begin + MS, operators)
    assert (narrow["position"] >= 0).all()
    assert len(narrow[narrow["lane"] == operators[0]]) in (10, 11)  # and the one that reaches into the view
    assert {busy.names[name] for name in narrow["name"]} == {("aten::linear", "operator"), ("aten::addmm", "operator")}


def test_between_the_levels_and_the_events_sums_are_made_on_the_spot(tmp_path: Path) -> None:
    tape = Tape()
    train(tape, 40)
    start = BEGIN_NS + 600 * MS + np.arange(4_000) * 500  # 2 ms, in a run whose finest buckets are 79 µs
    operators = pd.DataFrame({"start_ns": start, "duration_ns": 400, "name": "a", "process": 0, "thread": 9})
    index = indexed(make_run(tmp_path / "run", [tape], {"operators": operators}), tmp_path / "scratch")
    view = index.view(BEGIN_NS + 600 * MS, BEGIN_NS + 602 * MS, lanes(index, "operator"), 200)
    assert len(view) == 200
    assert (view["position"] == -1).all()
    assert (view["duration_ns"] == 10_000).all()
    assert (view["count"] == 20).all()
    assert (view["covered_ns"] == 8_000).all()


def test_steps_carry_their_numbers_and_phases_fill_one_row(busy: Index, tmp_path: Path) -> None:
    steps = find_steps(open_run(tmp_path / "run"))
    rows, place = rows_of(busy, steps, {0: "main"}, range(len(busy.lanes)))
    assert [row.label for row in rows if row.label] == ["main", "steps", "phases", "layers", "operators · 9"]
    assert len({place[number] for number in lanes(busy, "phase")}) == 1
    shown = marks_of(busy, steps, busy.view(busy.begin, busy.end, list(place)), place)
    assert [name for name in shown["name"] if name.startswith("step ")] == [f"step {number}" for number in range(40)]
    crowded = marks_of(busy, steps, busy.view(busy.begin, busy.end, list(place), 150), place)
    phases = crowded[crowded["lane"].isin(lanes(busy, "phase"))]
    assert phases["bucket"].all()
    assert ((phases["bottom"] + phases["height"]) <= 1 + 1e-9).all()
    assert (phases["height"] * phases["duration_ns"]).sum() == pytest.approx(phases["covered_ns"].sum())


def test_what_is_nested_beyond_reason_shares_a_lane(tmp_path: Path) -> None:
    start = BEGIN_NS + np.arange(300)
    operators = pd.DataFrame({"start_ns": start, "duration_ns": MS, "name": "a", "process": 0, "thread": 9})
    index = indexed(make_run(tmp_path / "run", [Tape()], {"operators": operators}), tmp_path / "scratch")
    assert len(index.lanes) == 64
    assert sum(lane.count for lane in index.lanes) == 300
    assert len(index.view(index.begin, index.end, range(64), 100)) <= 100


def test_processes_have_lanes_of_their_own(tmp_path: Path) -> None:
    index = indexed(training_run(tmp_path / "run", steps=5, ranks=2), tmp_path / "scratch")
    assert {lane.key.process for lane in index.lanes} == {1, 2}


def test_an_empty_run_has_an_empty_view(tmp_path: Path) -> None:
    index = indexed(make_run(tmp_path / "run"), tmp_path / "scratch")
    assert index.lanes == []
    assert index.end > index.begin
    assert len(index.view(index.begin, index.end, [])) == 0


def test_counters_are_rates_of_all_threads_and_levels_are_means(tmp_path: Path) -> None:
    tape = Tape()
    for thread in (1, 2):
        tape.counter("thread.cpu_ns", 100 * MS, 0, 100, thread=thread)
        tape.counter("thread.cpu_ns", 50 * MS, 100, 100, thread=thread)
    tape.counter("process.rss_bytes", 4096, 0, 150)
    tape.counter("host.cpu_busy_ns", 30 * MS, 0, 100, machine=True)
    run = open_run(make_run(tmp_path / "run", [tape]))
    end = BEGIN_NS + 400 * MS
    _, cpu = counter_series(run, "thread.cpu_ns", [0], BEGIN_NS, end, 4)[0]
    assert cpu[:2] == pytest.approx([2.0, 1.0])
    assert np.isnan(cpu[2:]).all()
    _, memory = counter_series(run, "process.rss_bytes", [0], BEGIN_NS, end, 4)[0]
    assert memory[:2] == pytest.approx([4096, 4096])
    assert np.isnan(memory[2:]).all()
    assert list(counter_series(run, "host.cpu_busy_ns", [0], BEGIN_NS, end, 4)) == [MACHINE]


def test_the_library_opens_only_what_it_lists_and_sees_changes(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    training_run(runs / "one", steps=3)
    (tmp_path / "outside").mkdir()
    with Library(runs) as library:
        first = library.open("one")
        assert library.open("one") is first
        assert first.outline().begin == first.extent()[0]
        for name in ("../outside", "/", "", str(runs / "one")):
            with pytest.raises(RunError, match="no run of this name"):
                library.open(name)
        (runs / "one" / "manifest" / "node0.json").touch()
        touched = library.open("one")
        assert touched is not first
        for name in ("findings.json", "probe/turns.json"):
            (runs / "one" / "probe").mkdir(exist_ok=True)
            (runs / "one" / name).write_text("{}")
            assert library.open("one") is not touched
            touched = library.open("one")
        broken = runs / "two" / "manifest" / "node0.json"
        broken.parent.mkdir(parents=True)
        broken.write_text('{"schema": 99}')
        problems = {entry.name: entry.problem for entry in library.entries()}
        assert problems["one"] == ""
        assert "newer tracekit" in problems["two"]
        scratch = library._scratch
        assert scratch.exists()
    assert not scratch.exists()


@pytest.mark.parametrize("moved", [False, True])
def test_a_report_is_kept_where_its_run_was_not_moved(moved: bool, tmp_path: Path) -> None:
    """A report that was kept has the path of its run in all commands that it tells."""
    path = training_run(tmp_path / "one", steps=3)
    kept = msgspec.structs.replace(analyze(open_run(path)), advice="as it was kept")
    (path / "findings.json").write_bytes(report_json(kept))
    if moved:
        (tmp_path / "runs").mkdir()
        path.rename(tmp_path / "runs" / "one")
    with Library(tmp_path / "runs" if moved else tmp_path) as library:
        assert (library.open("one").report().advice == "as it was kept") == (not moved)


def test_a_run_itself_is_a_library_of_one(tmp_path: Path) -> None:
    with Library(training_run(tmp_path / "one", steps=3)) as library:
        assert library.names() == ["one"]
    (tmp_path / "none").mkdir()
    with pytest.raises(RunError, match="no run in"):
        Library(tmp_path / "none")


def test_scratch_files_go_though_one_is_still_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training_run(tmp_path / "run", steps=2)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    stop = threading.Event()

    def write(folder: Path) -> None:
        with suppress(FileNotFoundError):
            while not stop.is_set():
                tempfile.mkdtemp(dir=folder)

    with Library(tmp_path):
        (folder,) = scratch.iterdir()
        writers = [threading.Thread(target=write, args=[folder]) for _ in range(4)]
        for writer in writers:
            writer.start()
    left = list(scratch.iterdir())
    stop.set()
    for writer in writers:
        writer.join()
    assert left == []
