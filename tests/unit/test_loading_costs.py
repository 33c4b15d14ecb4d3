"""What batches cost where they are made and used, from tapes with known answers."""

from pathlib import Path

import pytest
from synthetic import Tape, make_manifest, make_run

from tracekit.analysis.loading import LoaderCosts, loader_costs
from tracekit.analysis.steps import find_steps
from tracekit.run.manifest import Loader
from tracekit.run.reader import open_run

BATCHES = 200
MAKE_MS, USE_MS = 5.0, 5.0


def costs(path: Path, tape: Tape) -> LoaderCosts:
    make_run(path, [tape], manifest=make_manifest(cpus=4, loaders={"loader": Loader(num_workers=0)}))
    run = open_run(path)
    (found,) = loader_costs(run, find_steps(run))
    return found


def batch(tape: Tape, index: int) -> None:
    """The program makes a batch itself."""
    start = tape.now
    tape.fetch(MAKE_MS, turn=index, cpu_ms=MAKE_MS)
    tape.add("batches", start, tape.now, loader="loader", epoch=0, index=index, worker=-1)


@pytest.mark.parametrize("threads", [1, 3])
def test_making_batches_is_none_of_the_cpus_that_the_rest_keeps_busy(tmp_path: Path, threads: int) -> None:
    """GIVEN a program that makes its batches on one thread and uses them on some THEN so many CPUs are busy then."""
    tape = Tape(process=0, role="main")
    for index in range(BATCHES):
        batch(tape, index)
        tape.gap(USE_MS)
    cpu_ms = BATCHES * (MAKE_MS + threads * USE_MS)
    tape.counter("process.cpu_ns", round(cpu_ms * 1e6), 0, BATCHES * (MAKE_MS + USE_MS))
    assert costs(tmp_path / "run", tape).consumer_cpus == pytest.approx(threads, rel=0.03)


@pytest.mark.parametrize(("every", "counts"), [(40, False), (2, True)])
def test_a_profiler_window_takes_none_of_the_time_of_a_batch(tmp_path: Path, every: int, counts: bool) -> None:
    """GIVEN windows over two batches, before and after which the profiler takes 100 ms THEN these are not the
    program's; but where windows are most of the run they count, as there is nothing else to go by."""
    tape = Tape(process=0, role="main")
    for index in range(BATCHES):
        batch(tape, index)
        if index % every == 0:
            tape.gap(100.0)
            opened = tape.now
        if index % every == min(2, every - 1):
            tape.add("operators", opened, tape.now, category="cpu_op", name="aten::add", window=index)
            tape.gap(100.0)
        tape.gap(USE_MS)
    gap = costs(tmp_path / "run", tape).gap
    assert (gap.max() > 0.1) == counts
    assert counts or gap == pytest.approx(USE_MS / 1e3)
