"""Full collections of garbage, in loops and in loader workers, with known answers."""

from pathlib import Path

import pytest
from synthetic import Tape, make_run, ns

from tracekit.advice import analyze
from tracekit.analysis.report_schema import Report
from tracekit.analysis.text import text_report
from tracekit.run.reader import open_run

STEPS = 20
NAME = "full collection"


def report(path: Path, collection_ms: float, workers_that_collect: int = 0) -> Report:
    """A loop of 20 ms a step, in every tenth of which Python collects garbage meanwhile; it has started 4 workers."""
    main = Tape(process=0, role="main")
    main.add("spans", 0, ns(500.0), kind="garbage", name=NAME)  # before the loop
    main.gap(500.0)
    workers = [Tape(process=1 + number, role="loader worker", parent=0, worker=number, thread=9) for number in range(4)]
    for worker in workers:
        main.add("workers", 0, ns(1.0), loader="loader", epoch=0, worker=worker.worker, pid=1000 + worker.process)
    for step in range(STEPS):
        main.batch(5.0, index=step)
        if collection_ms and step % 10 == 5:
            main.add("spans", main.now, main.now + ns(collection_ms), kind="garbage", name=NAME)
        main.gap(10.0)
        main.optimizer(5.0)
    for worker in workers[:workers_that_collect]:
        worker.add("spans", ns(600.0), ns(600.0 + 50.0 * (1 + worker.worker)), kind="garbage", name=NAME)
    return analyze(open_run(make_run(path, [main, *workers])))


def test_only_what_held_up_the_loop_counts(tmp_path: Path) -> None:
    """GIVEN two collections of 8 ms in a loop of 400 ms, and a longer one before it."""
    (found,) = report(tmp_path / "run", 8.0).garbage
    assert (found.collections, found.longest_ms, found.collected) == (2, 8.0, 0)
    assert found.share == pytest.approx(16 / 400, rel=0.06)  # the first step has no beginning


def test_workers_that_collect_are_counted_among_all(tmp_path: Path) -> None:
    found = report(tmp_path / "run", 0.0, workers_that_collect=3)
    (use,) = found.garbage
    assert (use.collections, use.collected, use.workers) == (0, 3, 4)
    assert use.worker_ms == pytest.approx(100.0)
    assert "3 of 4 loader workers" in text_report(found) and "gc.freeze()" in text_report(found)
    (finding,) = (each for each in found.findings if each.id == "python.garbage")
    assert finding.evidence["collected"] == 3


@pytest.mark.parametrize(("ms", "is_said"), [(1.9, False), (2.2, True)])
def test_the_text_says_what_takes_more_than_recording_may(tmp_path: Path, ms: float, is_said: bool) -> None:
    """Two in 380 ms, which the first step's end begins: 1 % is 1.9 ms each."""
    found = report(tmp_path / "run", ms)
    assert ("garbage" in text_report(found)) is is_said and len(found.garbage) == 1


def test_a_loop_without_collections_has_no_finding(tmp_path: Path) -> None:
    assert report(tmp_path / "run", 0.0).garbage == []
