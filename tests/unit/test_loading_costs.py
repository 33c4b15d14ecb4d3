"""What batches cost where they are made and used, from tapes with known answers."""

import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic import BEGIN_NS, Tape, make_manifest, make_run, ns

from tracekit.advice import analyze
from tracekit.analysis.batches import made_batches
from tracekit.analysis.intervals import union
from tracekit.analysis.loader_devices import of_a_batch
from tracekit.analysis.loading import LoaderCosts, loader_costs
from tracekit.analysis.loading_cpus import computed_by_others
from tracekit.analysis.starting import boot_of, start_of
from tracekit.analysis.steps import find_steps
from tracekit.models.loader_split import split
from tracekit.run.manifest import Loader
from tracekit.run.reader import Run, open_run

BATCHES = 200
MAKE_MS, USE_MS = 5.0, 5.0


def costs(path: Path, tape: Tape, threads: int = 4) -> LoaderCosts:
    facts = make_manifest(cpus=4, intra_op=threads, loaders={"loader": Loader(num_workers=0)})
    make_run(path, [tape], manifest=facts)
    run = open_run(path)
    (found,) = loader_costs(run, find_steps(run))
    return found


def batch(tape: Tape, index: int) -> None:
    """The program makes a batch itself."""
    start = tape.now
    tape.fetch(MAKE_MS, turn=index, cpu_ms=MAKE_MS)
    tape.add("batches", start, tape.now, loader="loader", epoch=0, index=index, worker=-1)


@pytest.mark.parametrize("helping", [0, 1])
@pytest.mark.parametrize("threads", [1, 3])
def test_making_batches_is_none_of_the_cpus_that_the_rest_keeps_busy(
    tmp_path: Path, threads: int, helping: int
) -> None:
    """GIVEN a program that makes its batches on one thread, which others may help, and uses them on some THEN so many
    CPUs are busy then."""
    tape = Tape(process=0, role="main")
    for index in range(BATCHES):
        batch(tape, index)
        tape.rows["fetches"][-1]["others_ns"] = helping * ns(MAKE_MS)
        tape.gap(USE_MS)
    cpu_ms = BATCHES * ((1 + helping) * MAKE_MS + threads * USE_MS)
    tape.counter("process.cpu_ns", round(cpu_ms * 1e6), 0, BATCHES * (MAKE_MS + USE_MS))
    assert costs(tmp_path / "run", tape).consumer_cpus == pytest.approx(threads, rel=0.03)


def test_what_a_sampler_takes_is_not_what_starting_workers_takes(tmp_path: Path) -> None:
    """GIVEN two epochs for which starting two workers takes 5 s, of which the sampler takes 4.9; and a run of an older
    version, which did not tell."""
    main = Tape(process=0, role="main")
    for epoch in (0, 1):
        for worker in (0, 1):
            main.add(
                "workers", 0, ns(5000.0), loader="loader", epoch=epoch, worker=worker, pid=1, drawing_ns=ns(4900.0)
            )
            main.add("workers", 0, ns(5000.0), loader="old", epoch=epoch, worker=worker, pid=1)
    run = open_run(make_run(tmp_path / "run", [main]))
    nothing = union(*np.zeros((2, 0), dtype=np.int64))
    assert start_of(run, 0, "loader", nothing) == pytest.approx(0.05)
    assert start_of(run, 0, "old", nothing) == pytest.approx(2.5)


def test_what_a_sampler_takes_is_not_waited_for_as_a_batch(tmp_path: Path) -> None:
    """GIVEN a sampler that takes 5 s before it gives the first indices THEN that goes by with any number of workers."""
    tape = Tape(process=0, role="main")
    for index in range(BATCHES):
        start = tape.now
        tape.gap(0.0 if index else 5000.0)
        tape.fetch(MAKE_MS, turn=index, cpu_ms=MAKE_MS)
        tape.add("batches", start, tape.now, loader="loader", epoch=0, index=index, worker=-1)
        tape.gap(USE_MS)
    assert costs(tmp_path / "run", tape).wait == pytest.approx(np.full(BATCHES, MAKE_MS / 1e3))


@pytest.mark.parametrize("delayed", [0.0, 0.5])
def test_what_taking_a_batch_takes_is_told_by_those_that_were_not_taken_yet(tmp_path: Path, delayed: float) -> None:
    """GIVEN two workers, of which the first is always later, so that the program takes the second one's batch while it
    waits for the first, and has it at once THEN that is not what taking takes: it takes 2 ms, as now and then a batch
    shows that was ready and had not been taken; less where the program waits for a CPU for half of its time."""
    main = Tape(process=0, role="main")
    workers = [
        Tape(process=1 + number, role="loader worker", parent=0, worker=number, thread=1 + number) for number in (0, 1)
    ]
    for worker in workers:
        main.add("workers", 0, ns(1.0), loader="loader", epoch=0, worker=worker.worker, pid=1000 + worker.process)
    late = (30.0, 10.0)  # what a batch takes each to make
    for pair in range(BATCHES // 2):
        begun, is_rested = main.now, pair % 5 == 4
        made = [begun + ns(ms) for ms in (late if not is_rested else (10.0, 11.0))]
        for worker, end, turn in zip(workers, made, (pair, pair), strict=True):
            worker.add("fetches", begun, end, iteration=0, turn=turn, cpu_ns=0, samples=1)
        if is_rested:
            main.now = begun + ns(40.0)  # both are ready, and in order
        for number in (0, 1):
            asked = main.now
            takes = ns(2.0) if number == 0 or is_rested else ns(0.1)
            main.now = max(asked, made[number]) + takes
            main.add("batches", asked, main.now, loader="loader", epoch=0, index=2 * pair + number, worker=number)
        main.gap(USE_MS)
    for counter, share in (("thread.cpu_ns", 1 - delayed), ("thread.run_delay_ns", delayed)):
        main.counter(counter, round(main.now * share), 0, main.now / 1e6, thread=main.thread)
    make_run(
        tmp_path / "run",
        [main, *workers],
        manifest=make_manifest(cpus=4, loaders={"loader": Loader(num_workers=2, prefetch_factor=1)}),
    )
    run = open_run(tmp_path / "run")
    (found,) = loader_costs(run, find_steps(run))
    assert found.known == 1 and np.median(found.receive) == pytest.approx(0.002 * (1 - delayed), rel=0.02)


def test_what_other_ranks_made_is_not_read(tmp_path: Path) -> None:
    """GIVEN a rank that makes its batches itself, and another one that made very many THEN who makes the first one's is
    told in as little memory as without the other."""
    taken = []
    for others in (0, 100_000):
        main = Tape(process=0, role="rank 0", rank=0)
        for index in range(BATCHES):
            batch(main, index)
        made = pd.DataFrame({"start_ns": BEGIN_NS + np.arange(others), "turn": np.arange(others)}).assign(
            process=1, thread=2, duration_ns=1, iteration=0, cpu_ns=1, samples=1
        )
        tapes = [main, Tape(process=1, role="rank 1", rank=1, thread=2)]
        run = open_run(make_run(tmp_path / str(others), tapes, tables={"fetches": made}))
        assert len(run.table("fetches")) == BATCHES + others
        tracemalloc.start()
        assert (made_batches(run, 0)["maker"] == 0).all()
        taken.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert taken[1] < 2 * taken[0]


@pytest.mark.parametrize(
    ("others", "cpus", "of_blocked", "maker_cpus"),
    [
        (790.0, 16, 1.0, 7.91),  # a pool of threads that the maker only waits for
        (7.0, 16, 0.0, 8.0),  # a team, of which it is one
        (64.0, 16, 0.5, 65 / 50.5),  # more than beside it: in part of its waiting
        (0.0, 16, 0.0, 1.0),
        (0.5, 1, 0.5 / 99, 1.0),
    ],
)
def test_what_others_compute_while_a_maker_waits_is_no_storage(
    others: float, cpus: float, of_blocked: float, maker_cpus: float
) -> None:
    """GIVEN a maker that computes for 1 ms and waits for 99, and other threads of it that compute."""
    told = pd.DataFrame({"maker": [1], "cpu_ns": [1e6], "others_ns": [others * 1e6]})
    found = computed_by_others(told, 1.0, 99.0, cpus)
    assert found.of_blocked == pytest.approx(of_blocked, abs=0.01)
    assert found.maker_cpus == pytest.approx(maker_cpus, rel=0.02)


@pytest.mark.parametrize(("busy", "batches", "expected"), [(0.5, 10, 0.05), (0.5, 0, np.nan), (np.nan, 10, np.nan)])
def test_a_gpu_works_as_long_for_each_batch_of_a_window(busy: float, batches: int, expected: float) -> None:
    """GIVEN a window of a second in which a GPU worked for half of it, and the program had ten batches THEN 50 ms each;
    where it had none, or the GPU was not seen, nobody knows; where there is none, 0. Of a window with batches of two
    loaders nobody knows for which it worked."""
    window = pd.DataFrame({"start_ns": [ns(1000.0), ns(3000.0)], "duration_ns": [ns(1000.0), ns(4000.0)]})
    received = np.array([*(ns(1050.0 + 100 * each) for each in range(batches)), ns(3500.0)])
    other = np.array([ns(3600.0)])
    assert of_a_batch(busy, window, received, [other]) == pytest.approx(expected, nan_ok=True)
    assert of_a_batch(0.0, window, received, []) == 0


def in_turn(path: Path, is_zipped: bool) -> list[str]:
    """Which loader each of two is read in turn with: of a program that asks for a batch of either for each step, or
    that goes through one of them now and then."""
    tape = Tape(process=0, role="main")
    asked = {"one": 0, "other": 0}

    def ask(loader: str) -> None:
        start = tape.now
        tape.fetch(MAKE_MS, turn=asked[loader], cpu_ms=MAKE_MS)
        tape.add("batches", start, tape.now, loader=loader, epoch=0, index=asked[loader], worker=-1)
        asked[loader] += 1

    for step in range(60):
        ask("one")
        for _ in range(1 if is_zipped else 10 * (step % 20 == 19)):
            ask("other")
        tape.gap(USE_MS)
    make_run(path, [tape], manifest=make_manifest(cpus=4, loaders={name: Loader(num_workers=0) for name in asked}))
    run = open_run(path)
    return [each.in_turn_with for each in loader_costs(run, find_steps(run))]


def test_loaders_that_are_asked_in_turn_are_told(tmp_path: Path) -> None:
    assert in_turn(tmp_path / "zipped", True) == ["other", "one"]
    assert in_turn(tmp_path / "validating", False) == ["", ""]


def test_the_first_step_of_a_program_is_not_typical(tmp_path: Path) -> None:
    """GIVEN a first step that takes 60 s, as one that compiles THEN what is between batches is that of the others."""
    tape = Tape(process=0, role="main")
    for index in range(BATCHES):
        batch(tape, index)
        tape.gap(USE_MS if index else 60_000.0)
    assert costs(tmp_path / "run", tape).gap == pytest.approx(USE_MS / 1e3)


def handed_over(path: Path) -> Run:
    """A worker whose batches of 5 ms are there 1 ms after they were made, and a program that takes each in 0.5 ms, but
    for every tenth, at which something else has its CPU for 3 ms; nobody knows why the worker is never ahead."""
    main = Tape(process=0, role="main")
    worker = Tape(process=1, role="loader worker", parent=0, worker=0, thread=2)
    main.add("workers", 0, ns(1.0), loader="loader", epoch=0, worker=0, pid=1001)
    for index in range(BATCHES):
        begun = worker.now
        worker.gap(MAKE_MS)
        worker.add("fetches", begun, worker.now, iteration=0, turn=index, cpu_ns=ns(MAKE_MS), samples=1)
        taking, asked = ns(3.5 if index % 10 == 9 else 0.5), main.now
        main.now = worker.now + ns(1.0) + taking
        known = {"loader": "loader", "epoch": 0, "index": index, "worker": 0, "taking_ns": taking}
        main.add("batches", asked, main.now, **known)
        main.gap(1.0)
        worker.now = main.now
    manifest = make_manifest(cpus=4, loaders={"loader": Loader(num_workers=1, prefetch_factor=2)})
    make_run(path, [main, worker], manifest=manifest)
    return open_run(path)


def test_what_taking_a_batch_takes_is_told_by_when_its_bytes_were_there(tmp_path: Path) -> None:
    run = handed_over(tmp_path / "run")
    (found,) = loader_costs(run, find_steps(run))
    assert found.receive == pytest.approx(0.0005) and found.send == pytest.approx(0.001)
    assert found.delayed_receive == pytest.approx(0.0003)


def test_what_a_worker_needs_for_its_first_batch_is_told_apart(tmp_path: Path) -> None:
    """GIVEN batches of 5 ms that the program awaits, and has 1 ms after they were made; the first one takes 4 ms longer
    to get its two samples, 3 to put them together and 6 to come THEN that is told."""
    main, worker = Tape(process=0, role="main"), Tape(process=1, role="loader worker", parent=0, worker=0, thread=2)
    main.add("workers", 0, ns(1.0), loader="loader", epoch=0, worker=0, pid=1001)
    main.now = worker.now = ns(1.0)
    for index in range(BATCHES):
        begun, is_first = worker.now, index == 0
        samples = 2.0 + 2.0 * is_first
        took = 2 * samples + 1.0 + 3.0 * is_first
        worker.gap(took)
        worker.add("fetches", begun, worker.now, iteration=0, turn=index, cpu_ns=ns(took), samples=2)
        for number in (0, 1):
            at = begun + ns(samples) * number
            worker.add("samples", at, at + ns(samples), index=2 * index + number, cpu_ns=0)
        asked, main.now = main.now, worker.now + ns(1.0 + 6.0 * is_first)
        main.add("batches", asked, main.now, loader="loader", epoch=0, index=index, worker=0, taking_ns=ns(0.5))
        worker.now = main.now
    make_run(tmp_path / "run", [main, worker], manifest=make_manifest(loaders={"loader": Loader(num_workers=1)}))
    run = open_run(tmp_path / "run")
    (found,) = loader_costs(run, find_steps(run))
    assert found.connect == pytest.approx(0.006) and found.cold == pytest.approx(0.007)
    assert found.cold_outside == pytest.approx(0.003, rel=1e-3)


def test_being_stopped_is_no_part_of_starting_and_ending_a_worker(tmp_path: Path) -> None:
    """GIVEN a worker that takes 5 ms to start, 10 to boot and 20 to end, and all stopped for 300 ms in each of the
    three, as a probe does it THEN they take as long as they do."""
    main, worker = Tape(process=0, role="main"), Tape(process=1, role="loader worker", parent=0, worker=0, thread=2)
    main.add("workers", 0, ns(305.0), loader="loader", epoch=0, worker=0, pid=1001)
    main.now, worker.now = ns(612.0), ns(615.0)
    for index in range(BATCHES):
        asked, begun = main.now, worker.now
        worker.gap(5.0)
        worker.add("fetches", begun, worker.now, iteration=0, turn=index, cpu_ns=ns(5.0), samples=2)
        main.now = worker.now + ns(1.0)
        main.add("batches", asked, main.now, loader="loader", epoch=0, index=index, worker=0, taking_ns=ns(0.5))
    main.add("workers", main.now, main.now + ns(320.0), loader="loader", epoch=0, worker=-1, pid=1)
    stops = [(begin, begin + ns(300.0)) for begin in (ns(2.0), ns(310.0), main.now + ns(10.0))]
    make_run(tmp_path / "run", [main, worker], manifest=make_manifest(loaders={"loader": Loader(num_workers=1)}))
    run = open_run(tmp_path / "run")
    (found,) = loader_costs(
        run, find_steps(run), [(BEGIN_NS + stopped, BEGIN_NS + resumed) for stopped, resumed in stops]
    )
    assert (found.start, found.boot, found.stop) == pytest.approx((0.005, 0.010, 0.020), rel=1e-3)


@pytest.mark.parametrize(("starting_ms", "boot_ms"), [(1000.0, 400.0), (40.0, 100.0)])
def test_workers_that_boot_all_at_once_share_the_cpus(starting_ms: float, boot_ms: float) -> None:
    """GIVEN eight workers on two CPUs, of which the last one boots for 400 ms THEN it takes that where those before had
    booted, and a quarter where all were started sooner than that."""
    started, ready = ns(0.0), ns(starting_ms)
    batches = pd.DataFrame({"turn": 0, "iteration": 0, "worker": [0, 7]})
    batches = batches.assign(started_ns=started, ready_ns=ready, made_start_ns=ready + ns(400.0))
    boot, shared = boot_of(batches, 2.0, union(np.empty(0, np.int64), np.empty(0, np.int64)))
    assert (boot, boot * shared) == pytest.approx((boot_ms / 1e3, 0.4))


@pytest.mark.parametrize("awaited", [False, True])
def test_finding_that_a_batch_is_there_is_part_of_taking_it(awaited: bool, tmp_path: Path) -> None:
    """GIVEN batches that have long been there when the program asks for them, finds them in 0.2 ms and takes them in
    0.5 THEN taking them takes 0.7; a worker's first one takes 3 ms longer than the others to compute. Where it awaits
    every second one it finds these meanwhile: to take one takes 0.6 on average, and 0.1 more if all were there."""
    main, worker = Tape(process=0, role="main"), Tape(process=1, role="loader worker", parent=0, worker=0, thread=2)
    main.add("workers", 0, ns(1.0), loader="loader", epoch=0, worker=0, pid=1001)
    main.now = worker.now
    for index in range(BATCHES):
        is_awaited = awaited and index % 2 == 1
        worker.now = max(worker.now, main.now) if is_awaited else worker.now
        begun, took = worker.now, MAKE_MS + 3.0 * (index == 0)
        worker.gap(took)
        worker.add("fetches", begun, worker.now, iteration=0, turn=index, cpu_ns=ns(took), samples=1)
        main.gap(0.0 if is_awaited else 3 * MAKE_MS)
        asked = main.now
        main.now = worker.now + ns(0.5) if is_awaited else main.now + ns(0.7)
        known = {"loader": "loader", "epoch": 0, "index": index, "worker": 0, "taking_ns": ns(0.5)}
        main.add("batches", asked, main.now, **known)
        worker.now = max(worker.now, asked - ns(2 * MAKE_MS))
    make_run(tmp_path / "run", [main, worker], manifest=make_manifest(loaders={"loader": Loader(num_workers=1)}))
    run = open_run(tmp_path / "run")
    (found,) = loader_costs(run, find_steps(run))
    assert np.median(found.receive) == pytest.approx(0.0006 if awaited else 0.0007, rel=0.01)
    assert found.more_if_there == pytest.approx(0.0001 * awaited, rel=0.05)
    assert awaited or found.cold == pytest.approx(0.003)


@pytest.mark.parametrize(("epochs", "made"), [(4, BATCHES), (2, BATCHES), (4, BATCHES - 1), (4, BATCHES + 1)])
def test_the_last_batches_of_epochs_tell_what_taking_takes_from_rested_workers(
    epochs: int, made: int, tmp_path: Path
) -> None:
    """GIVEN a worker that makes each batch as soon as the one before is taken, for which the program needs 0.9 ms,
    and the last one of an epoch, for which it needs 0.5, with the one before THEN that is what it takes from rested
    workers, and a little more for those that make batches at once, if three such were seen to be made, and none more
    that the program does not take."""
    main, worker = Tape(process=0, role="main"), Tape(process=1, role="loader worker", parent=0, worker=0, thread=2)
    main.add("workers", 0, ns(1.0), loader="loader", epoch=0, worker=0, pid=1001)
    main.now = worker.now = ns(2.0)
    for epoch in range(epochs):
        for index in range(BATCHES):
            for turn in {index, made - 1} if index == BATCHES - 1 else {index}:
                if turn < made:
                    how = {"iteration": epoch, "turn": turn, "cpu_ns": ns(MAKE_MS), "samples": 1}
                    worker.add("fetches", worker.now, worker.now + ns(MAKE_MS), **how)
            main.gap(2 * MAKE_MS)
            asked = main.now
            main.now += ns(0.5 if index == BATCHES - 1 else 0.9)
            known = {"loader": "loader", "epoch": epoch, "index": index, "worker": 0, "taking_ns": ns(0.4)}
            main.add("batches", asked, main.now, **known)
            worker.now = worker.now + ns(MAKE_MS) if index == BATCHES - 2 else main.now
    loaders = {"loader": Loader(num_workers=1, persistent_workers=True)}
    make_run(tmp_path / "run", [main, worker], manifest=make_manifest(loaders=loaders))
    run = open_run(tmp_path / "run")
    (found,) = loader_costs(run, find_steps(run))
    assert (found.rested is None) is (epochs < 3 or made != BATCHES)
    assert found.rested is None or found.rested == pytest.approx(1.09 * 0.0005)


@pytest.mark.parametrize("is_told", [False, True])
def test_page_faults_are_told_by_batches_that_are_not_the_first_of_a_worker(tmp_path: Path, is_told: bool) -> None:
    """GIVEN batches of 5 ms, the first with 4 ms of page faults and each further one with 1 ms, where that was measured
    THEN they are a fifth of the computing."""
    main, worker = Tape(process=0, role="main"), Tape(process=1, role="loader worker", parent=0, worker=0, thread=2)
    main.add("workers", 0, ns(1.0), loader="loader", epoch=0, worker=0, pid=1001)
    for index in range(BATCHES):
        begun = worker.now
        worker.gap(MAKE_MS)
        faults = {"faults_ns": ns(4.0 if index == 0 else 1.0) if index % 4 == 0 else -1} if is_told else {}
        cpu = {"cpu_ns": ns(MAKE_MS), "samples": 1, **faults}
        worker.add("fetches", begun, worker.now, iteration=0, turn=index, **cpu)
        main.add("batches", main.now, worker.now, loader="loader", epoch=0, index=index, worker=0)
        main.now = worker.now
    make_run(tmp_path / "run", [main, worker], manifest=make_manifest(loaders={"loader": Loader(num_workers=1)}))
    run = open_run(tmp_path / "run")
    (found,) = loader_costs(run, find_steps(run))
    assert found.faults == pytest.approx(1.0 / MAKE_MS if is_told else 0.0)


def test_waiting_that_the_costs_do_not_explain_is_told(tmp_path: Path) -> None:
    """7.8 ms a batch, where 5 are what a worker needs that is ahead; the program waits for 6.8 of them."""
    (split,) = [each for each in analyze(handed_over(tmp_path / "run")).findings if each.id == "loading.split"]
    assert split.evidence["unexplained"] == pytest.approx(2.8 / 6.8, abs=0.02)
    assert "41% of the waiting is not explained" in split.title


@pytest.mark.parametrize(("used_ms", "waited_ms"), [(0.5, 0.25), (4.5, 0.5), (8.0, 2.0)])
def test_what_the_program_waits_for_a_cpu_is_none_of_its_work(tmp_path: Path, used_ms: float, waited_ms: float) -> None:
    """GIVEN 5 ms between two batches, in which a device computes or the program does, on one thread or two, and waits
    for a CPU as well THEN its work is what goes by without that: of a team what each of it waits for."""
    tape = Tape(process=0, role="main")
    for index in range(BATCHES):
        batch(tape, index)
        tape.gap(USE_MS)
    for counter, ms in (("thread.cpu_ns", MAKE_MS + used_ms), ("thread.run_delay_ns", waited_ms)):
        tape.counter(counter, round(BATCHES * ms * 1e6), 0, BATCHES * (MAKE_MS + USE_MS), thread=1)
    at_once = max((used_ms + waited_ms) / USE_MS, 1.0)
    consume = costs(tmp_path / "run", tape).consume
    assert np.median(consume) * 1e3 == pytest.approx(USE_MS - waited_ms / at_once, rel=0.02)


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


@pytest.mark.parametrize(
    ("threads", "seen", "alone"),
    [(4, True, 1 + 0.4 * 3), (1, True, 1.0), (4, False, 4.0)],
)
def test_operators_that_a_team_computes_may_take_a_worker_longer(
    tmp_path: Path, threads: int, seen: bool, alone: float
) -> None:
    """GIVEN batches of 5 ms on the CPU, 2 ms of which an operator takes, with one inside it, WHEN a window sees that
    THEN one thread may take as long for the rest, and as many times as there are threads for the operator; and for all,
    when no window was open; operators outside of making are none of it."""
    tape = Tape(process=0, role="main")
    for index in range(20):
        start = tape.now
        batch(tape, index)
        if seen and index in (10, 11):
            columns = {"category": "cpu_op", "window": 1}
            tape.add("operators", start + ns(1.0), start + ns(3.0), name="aten::contiguous", **columns)
            tape.add("operators", start + ns(1.5), start + ns(2.5), name="aten::copy_", **columns)
            tape.add("operators", tape.now, tape.now + ns(USE_MS), name="aten::mm", **columns)
        tape.gap(USE_MS)
    assert costs(tmp_path / "run", tape, threads).alone == pytest.approx(alone)


@pytest.mark.parametrize(
    ("blocked", "others", "waited"),
    [
        (0.2, 0.6, 0.2),
        (20.0, 0.6, 0.6 * 2 / 22),
        (0.0, 0.6, 0.0),
        (0.2, 0.0, 0.0),
        (2.0, 1.0, 2 - 2**0.5),
        (2.0, 9.0, 2 - 2**0.5),
    ],
)
def test_a_worker_that_sends_batches_waits_for_its_turn_to_run(blocked: float, others: float, waited: float) -> None:
    """GIVEN workers that compute for 2 ms, and a thread of them that sends for at most 1 ms, beside others THEN they
    waited for it as far as it came while they would have run, and not for storage; who sends nothing did not."""
    told = pd.DataFrame({"maker": [1], "cpu_ns": [2e6], "others_ns": [others * 1e6]})
    found = computed_by_others(told, 2.0, blocked, 16.0, send=1.0)
    assert found.of_blocked * blocked == pytest.approx(waited, abs=0.01)
    assert computed_by_others(told, 2.0, blocked, 16.0).of_blocked == 0


@pytest.mark.parametrize("recorded", [1, 3])
def test_what_a_program_does_beside_making_batches_is_none_of_the_making(recorded: int, tmp_path: Path) -> None:
    """GIVEN a program without workers that draws indices for 1 ms before it makes a batch, and one of `recorded` whose
    making is recorded, for which that takes 3 ms; 9 ms where it is looked at closely THEN taking a batch takes 1 ms by
    those that are not recorded, if there are any."""
    tape = Tape(process=0, role="main")
    for index in range(BATCHES):
        start, is_seen = tape.now, index % recorded == 0
        is_looked_at = index % 5 > 1
        tape.gap((9.0 if is_looked_at else 3.0 if recorded > 1 else 1.0) if is_seen else 1.0)
        if is_seen:
            tape.fetch(MAKE_MS, turn=index, cpu_ms=MAKE_MS)
            tape.rows["fetches"][-1]["faults_ns"] = 0 if is_looked_at else -1
        else:
            tape.gap(MAKE_MS)
        tape.add("batches", start, tape.now, loader="loader", epoch=0, index=index, worker=-1)
        tape.gap(USE_MS)
    found = costs(tmp_path / "run", tape)
    assert found.receive == pytest.approx(np.full(BATCHES, 0.001), abs=1e-6)
    one = split(found)
    assert one is not None and one.consumer == pytest.approx(1 / (1 + MAKE_MS), rel=0.05)


@pytest.mark.parametrize(("seen", "looked_at"), [(20, 5), (20, 20), (1, 0), (0, 0)])
def test_what_putting_samples_together_takes_is_told_by_usual_batches(
    tmp_path: Path, seen: int, looked_at: int
) -> None:
    """GIVEN batches of 5 ms, whose samples are put together for 2 ms; for 4 of the first one, and for 3 of those that
    are looked at THEN the usual ones tell, if there are any; not known where none was seen."""
    tape = Tape(process=0, role="main")
    for index in range(20):
        batch(tape, index)
        together = 4.0 if not index else 3.0 if index < looked_at else 2.0
        tape.rows["fetches"][-1]["collating_ns"] = ns(together) if index < seen else -1
        tape.rows["fetches"][-1]["faults_ns"] = 0 if index < looked_at else -1
        tape.gap(USE_MS)
    found = costs(tmp_path / "run", tape).collating
    expected = {(20, 5): 0.4, (20, 20): 0.6, (1, 0): 0.8, (0, 0): None}[seen, looked_at]
    assert found == (expected and pytest.approx(expected, rel=1e-3))


@pytest.mark.parametrize("told", [Loader(num_workers=-3), Loader(num_workers=10**12), Loader(prefetch_factor=-1)])
def test_a_loader_that_is_told_to_have_what_none_has_is_advised_nothing(told: Loader, tmp_path: Path) -> None:
    tape = Tape(process=0, role="main")
    for index in range(BATCHES):
        batch(tape, index)
    run = open_run(make_run(tmp_path / "run", [tape], manifest=make_manifest(cpus=4, loaders={"loader": told})))
    (found,) = loader_costs(run, find_steps(run))
    report = analyze(run)
    assert found.settings.num_workers == 0 and found.settings.varied
    assert not report.settings and "loader was made with other settings" in report.advice
