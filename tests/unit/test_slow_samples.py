"""Which samples and files are slow: planted ones are found."""

from pathlib import Path

import pytest
from synthetic import Tape, make_run

from tracekit.advice import analyze
from tracekit.analysis.batches import made_batches
from tracekit.analysis.samples import share_of_slowest, slowest_files, slowest_samples
from tracekit.run.reader import open_run

MS = 1_000_000


def planted(path: Path, slow: frozenset[int]) -> Path:
    """200 batches of one sample of 1 ms, the slow ones of 100 ms; each reads a file of its own, in two reads, for half
    of its time, and one file that all share. Reading computes for a tenth of the reading."""
    tape = Tape(process=0, role="main")
    for index in range(200):
        start, ms = tape.now, 100 if index in slow else 1
        tape.fetch(ms, turn=index, cpu_ms=0.5 * ms)
        tape.rows["fetches"][-1]["delayed_ns"] = 0
        tape.add("samples", start, start + ms * MS, index=index, cpu_ns=0)
        quarter = ms * MS // 4
        for at in (0, 1):
            begin = start + at * quarter
            tape.add("reads", begin, begin + quarter, path=f"/data/{index}", offset=at, bytes=50, cpu_ns=quarter // 10)
        tape.add("reads", start + 3 * quarter, start + 3 * quarter + 10, path="/data/index", bytes=7, cpu_ns=0)
        tape.gap(0.1)
        tape.add("batches", start, tape.now, loader="loader", epoch=0, index=index, worker=-1)
        tape.gap(1.0)
    return make_run(path, [tape])


def test_few_slow_samples_are_named_with_their_files(tmp_path: Path) -> None:
    run = open_run(planted(tmp_path / "run", frozenset({17, 99})))
    assert set(slowest_samples(run, 5)["index"][:2]) == {17, 99}
    files = slowest_files(run, 300).set_index("path")
    assert len(files) == 201 and set(files.index[:2]) == {"/data/17", "/data/99"}
    assert tuple(files.loc["/data/17", ["times", "reads", "bytes", "wall_ns"]]) == (1, 2, 100, 50 * MS)
    assert tuple(files.loc["/data/index", ["times", "reads", "bytes"]]) == (200, 1, 7)
    looked_at, share = share_of_slowest(run, 0.01)
    assert looked_at == 199 and share == pytest.approx(200 / 397)

    (finding,) = [each for each in analyze(run).findings if each.id == "loading.samples"]
    assert "slowest 1% of 199 samples take 50%" in finding.title
    named = finding.evidence["files"]
    assert isinstance(named, dict) and set(list(named)[:2]) == {"/data/17", "/data/99"}


def test_the_first_sample_of_a_process_is_not_called_slow(tmp_path: Path) -> None:
    """It has imports and connections in it."""
    run = open_run(planted(tmp_path / "run", frozenset({0, 17})))
    slowest = slowest_samples(run, 5)
    assert slowest["index"].iloc[0] == 17 and 0 not in set(slowest["index"])


@pytest.mark.long
def test_samples_that_are_alike_are_nothing_to_speak_of(tmp_path: Path) -> None:
    run = open_run(planted(tmp_path / "run", frozenset()))
    assert not [each for each in analyze(run).findings if each.id == "loading.samples"]


def test_what_reading_computes_is_known_by_batch(tmp_path: Path) -> None:
    made = made_batches(open_run(planted(tmp_path / "run", frozenset({3}))), 0).set_index("index")
    assert made.loc[3, "reading_cpu_ns"] == 5 * MS and made.loc[4, "reading_cpu_ns"] == 0.05 * MS
