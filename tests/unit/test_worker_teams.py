"""Threads of the libraries that the samples of a data set use, in the workers of a loader."""

from pathlib import Path

import pytest
from synthetic import Tape, make_manifest, make_run, ns

from tracekit.advice import analyze
from tracekit.analysis.loading import loader_costs
from tracekit.analysis.report_schema import Report
from tracekit.analysis.steps import find_steps
from tracekit.models.loading import forecasts
from tracekit.run.manifest import Loader
from tracekit.run.reader import Run, open_run

BATCHES, MAKE_MS = 60, 20.0


def with_team(path: Path, threads: int, workers: int = 1, cpus: int = 2, computing: float = 1.0) -> Run:
    """Workers that take 20 ms for a batch, and wait for storage but for `computing` of it, in which `threads` of each
    compute, as every fourth batch tells; the program only waits."""
    main = Tape(process=0, role="main")
    tapes = [
        Tape(process=1 + each, role="loader worker", parent=0, worker=each, thread=100 * (1 + each))
        for each in range(workers)
    ]
    for each in range(workers):
        main.add("workers", 0, ns(1.0), loader="loader", epoch=0, worker=each, pid=1001 + each)
    for index in range(BATCHES):
        worker, turn = tapes[index % workers], index // workers
        begun = worker.now
        worker.gap(MAKE_MS)
        cpu_ms = computing * MAKE_MS
        others = ns((threads - 1) * cpu_ms) if turn % 4 == 0 else -1
        made = {"turn": turn, "cpu_ns": ns(cpu_ms), "samples": 1, "others_ns": others, "delayed_ns": 0}
        worker.add("fetches", begun, worker.now, iteration=0, **made)
        main.add("batches", main.now, worker.now, loader="loader", epoch=0, index=index, worker=index % workers)
        main.now = worker.now
    loaders = {"loader": Loader(num_workers=workers, prefetch_factor=2)}
    return open_run(make_run(path, [main, *tapes], manifest=make_manifest(cpus=cpus, loaders=loaders)))


def told(run: Run) -> Report:
    return analyze(run)


@pytest.mark.parametrize(
    ("threads", "workers", "cpus", "computing", "is_told"),
    [(2, 2, 2, 1.0, True), (1, 2, 2, 1.0, False), (2, 2, 4, 1.0, False), (2, 2, 2, 0.6, True), (2, 2, 2, 0.4, False)],
)
def test_more_threads_than_cpus_are_told(
    threads: int, workers: int, cpus: int, computing: float, is_told: bool, tmp_path: Path
) -> None:
    found = [
        each
        for each in told(with_team(tmp_path / "run", threads, workers, cpus, computing)).findings
        if each.id == "loading.worker_threads"
    ]
    assert len(found) == is_told
    for each in found:
        assert each.evidence["worker_cpus"] == pytest.approx(threads)


@pytest.mark.parametrize(("threads", "gains"), [(1, True), (2, False)])
def test_a_worker_whose_team_has_all_cpus_leaves_none_to_another(threads: int, gains: bool, tmp_path: Path) -> None:
    """GIVEN one worker on 2 CPUs THEN a second one makes it twice as fast, but for one whose threads keep both busy."""
    run = with_team(tmp_path / "run", threads)
    (costs,) = loader_costs(run, find_steps(run))
    assert costs.maker_cpus == pytest.approx(threads)
    at = {(each.settings.workers, each.settings.prefetch): each.expected for each in forecasts(costs, [1, 2]).grid}
    assert at[2, 2] / at[1, 2] == pytest.approx(0.5 if gains else 1.0, abs=0.05)
    assert any(each.name == "loader.loader.num_workers" for each in told(run).settings) == gains


@pytest.mark.parametrize(("threads", "share"), [(1, 0.0), (2, 0.25), (20, 1.0)])
def test_what_other_threads_compute_may_be_waited_for(threads: int, share: float, tmp_path: Path) -> None:
    """GIVEN a worker that computes for 4 ms of a batch and waits for 16, and threads beside it that compute for 4 each,
    on CPUs for all THEN so much of what looks like storage may be waiting for them."""
    run = with_team(tmp_path / "run", threads, cpus=64, computing=0.2)
    (split,) = [each for each in told(run).findings if each.id == "loading.split"]
    storage = split.evidence["storage"]
    assert isinstance(storage, float) and storage > 0.7
    assert split.evidence["threads"] == pytest.approx(share * storage, rel=0.01)
    assert ("may be for other threads" in split.title) is (share > 0)
