"""What the makers of batches did while a loop waited for them: by workers of each epoch, by some that persist, by the
loop itself.
"""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import LOADING, STEP_MS, ranks_run
from synthetic import BEGIN_NS, Tape, make_run, ns

from tracekit.analysis.awaited import Awaited
from tracekit.analysis.people import find_people
from tracekit.analysis.report import analyze
from tracekit.run.reader import Run, open_run

# The worker makes two batches while the loop waits for the second: of the first it makes the end then.
MADE_MS = ((0.0, 10.0), (10.0, 16.0))
CPU_MS = (5.0, 4.5)
WAITED_MS = (4.0, 18.0)


def run_of(path: Path, *tapes: Tape) -> Run:
    make_run(path, list(tapes))
    return open_run(path)


def awaited(run: Run, process: int = 0) -> Awaited:
    (who,) = (each for each in find_people(run) if each.process == process)
    return Awaited.of(run.of(who.process, *who.workers), who.process)


def by(found: Awaited, ms: float) -> list[float]:
    return [float(each) / 1e6 for each in found.until(np.array([BEGIN_NS + ns(ms)]))[0]]


@pytest.mark.parametrize("epoch", [0, 3])
def test_of_a_worker_what_it_did_counts_whichever_batch_it_was_for(epoch: int, tmp_path: Path) -> None:
    """GIVEN a worker that was started in epoch 0 and persists, and one of another host with its pid."""
    main, worker = Tape(), Tape(process=1, parent=0, worker=0, role="loader worker", thread=2)
    stranger = Tape(process=1001, worker=0, role="loader worker", thread=2, host="node1")
    main.add("workers", 0, 0, loader="train", epoch=0, worker=0, pid=1001)
    for tape in (worker, stranger):
        for (begun, over), cpu in zip(MADE_MS, CPU_MS, strict=True):
            tape.add("fetches", ns(begun), ns(over), iteration=epoch, turn=0, cpu_ns=ns(cpu), samples=1)
    begun, over = WAITED_MS
    main.add("batches", ns(begun), ns(over), loader="train", epoch=epoch, index=1, worker=0)
    found = awaited(run_of(tmp_path / "run", main, worker, stranger))
    assert by(found, begun) == [0.0, 0.0]
    assert by(found, over) == pytest.approx([6 * 0.5 + 4.5, 6 * 0.5 + 1.5])  # 2 ms of it went by handing over
    assert by(found, 1000) == by(found, over)


def test_what_the_loop_makes_itself_counts_and_what_nobody_was_seen_to_make_does_not(tmp_path: Path) -> None:
    main = Tape()
    for index in range(4):
        begun = main.now
        if index % 2 == 0:
            main.add("fetches", begun, begun + ns(3.0), iteration=0, turn=index, cpu_ns=ns(1.0), samples=1)
        main.batch(4.0, index=index)
    assert by(awaited(run_of(tmp_path / "run", main)), 16.0) == pytest.approx([2.0, 4.0])


def test_a_loader_of_a_loader_is_waited_for_once(tmp_path: Path) -> None:
    main = Tape()
    main.add("fetches", 0, ns(8.0), iteration=0, turn=0, cpu_ns=ns(8.0), samples=1)
    main.add("batches", 0, ns(10.0), loader="outer", epoch=0, index=0, worker=-1)
    main.add("batches", ns(2.0), ns(6.0), loader="inner", epoch=0, index=0, worker=-1)
    assert by(awaited(run_of(tmp_path / "run", main)), 10.0) == pytest.approx([8.0, 0.0])


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 3))
def test_it_never_falls_nor_exceeds_the_waiting(
    tmp_path_factory: pytest.TempPathFactory, seed: int, count: int
) -> None:
    random = np.random.default_rng(seed)
    main = Tape()
    workers = [Tape(process=1 + at, parent=0, worker=at, role="loader worker", thread=2 + at) for at in range(count)]
    waited, times = 0, [0]
    for index in range(12):
        worker = workers[index % count]
        if index < count:
            main.add("workers", 0, 0, loader="train", epoch=0, worker=worker.worker, pid=1000 + worker.process)
        worker.gap(float(random.exponential(2)))
        took = float(random.exponential(3))
        worker.fetch(took, turn=index // count, cpu_ms=took * float(random.uniform(0, 1.1)))
        asked = main.now
        main.now = max(main.now, worker.now) + ns(float(random.exponential(0.2)))
        main.add("batches", asked, main.now, loader="train", epoch=0, index=index, worker=worker.worker)
        waited += main.now - asked
        times += [asked, main.now]
        main.gap(float(random.exponential(4)))
    run = run_of(tmp_path_factory.mktemp("run") / "run", main, *workers)
    done = awaited(run).until(np.array(sorted(times)) + BEGIN_NS)
    assert (np.diff(done, axis=0) >= -1).all()
    assert 0 < done[-1].sum() <= waited + 1


def test_the_critical_path_says_what_makers_did_in_its_loading(tmp_path: Path) -> None:
    """GIVEN ranks that make their batches themselves, in 2 ms, a quarter of which is computing."""
    steps = 50
    path = ranks_run(tmp_path / "run", 2, steps, made_with=0.25).path
    (group,) = analyze(open_run(path)).ranks
    loading = group.path["loading, computing"], group.path["loading, blocked"], group.path["loading"]
    assert loading == pytest.approx(
        (0.25 * LOADING * (steps - 1) / 1e3, 0.75 * LOADING * (steps - 1) / 1e3, 0), abs=1e-6
    )
    assert sum(group.path.values()) == pytest.approx((steps - 1) * STEP_MS / 1e3)
