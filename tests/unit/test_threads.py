"""Counters by phase, CPU efficiency and crowding, on tapes with counters of known values."""

from pathlib import Path

import pytest
from synthetic import Tape, make_manifest, make_run, train

from tracekit.analysis.counters import counter_levels, counters_by_phase
from tracekit.analysis.report import analyze
from tracekit.analysis.steps import find_steps
from tracekit.analysis.threads import Crowding, Loop, ThreadUse, together
from tracekit.run.manifest import Manifest
from tracekit.run.reader import open_run

MS = 1_000_000
BEFORE_MS = 500  # what `train` leaves for imports
HALVES = 10  # half seconds of training: 25 steps of 20 ms each


def rank(number: int, delay_before: float, delay_during: float, cpus: float = 1.5) -> Tape:
    """A rank whose threads wait for a CPU the given shares of their time, read ten times a second."""
    tape = Tape(process=number, role=f"rank {number}", rank=number, thread=100 + number)
    tape.gap(2500)
    train(tape, 25 * HALVES)
    for start in range(0, 3000 + 500 * HALVES, 100):
        share = delay_before if start < 2500 + BEFORE_MS else delay_during
        cpu = round(100 * MS * cpus)
        tape.counter("process.cpu_ns", cpu, start, 100)
        tape.counter("thread.cpu_ns", cpu, start, 100, thread=1)
        # A little more in every other reading: a test on ranks needs values that differ.
        wobble = 1 + (start // 100 % 5) / 100
        tape.counter("thread.run_delay_ns", round(cpu * share / (1 - share) * wobble), start, 100, thread=1)
    return tape


def crowding(path: Path, tapes: list[Tape], manifest: Manifest) -> tuple[list[ThreadUse], Crowding]:
    run = open_run(make_run(path / "run", tapes, manifest=manifest))
    report = analyze(run)
    (crowded,) = report.crowding
    return report.threads, crowded


def test_threads_that_wait_for_each_other_are_harmful_crowding(tmp_path: Path) -> None:
    manifest = make_manifest(cpus=4, intra_op=4)
    used, crowd = crowding(tmp_path, [rank(0, 0.02, 0.4), rank(1, 0.02, 0.4)], manifest)
    assert (crowd.threads, crowd.cpus, crowd.processes) == (8, 4, 2)
    assert crowd.is_oversubscribed()
    assert crowd.lost()
    assert crowd.waiting == pytest.approx(0.38, abs=0.01)
    assert crowd.runnable == pytest.approx(2 * 1.5 / 0.6, rel=0.02)
    assert crowd.lost() == pytest.approx(0.38, abs=0.01)
    assert used[0].cpus_used == pytest.approx(1.5, rel=0.01)
    assert used[0].efficiency == pytest.approx(1.5 / 4, rel=0.01)
    assert used[0].run_delay_share == pytest.approx(0.4, abs=0.01)
    assert used[0].run_delay_share_before == pytest.approx(0.02, abs=0.01)


@pytest.mark.parametrize(
    ("spans", "ran"),
    [
        ([(0, 60), (1, 59), (2, 61)], [0, 1, 2]),
        ([(0, 60), (61, 115), (116, 170)], [0]),  # one after the other: folds, or a job that is started again
        ([(0, 60), (0, 59), (59, 110), (60, 112)], [0, 1]),  # two ranks, started again
        ([(0, 100), (5, 10), (50, 55)], [0]),  # evaluations beside a training
        ([(0, 0)], [0]),
    ],
)
def test_only_what_ran_together_shares_the_cpus(spans: list[tuple[int, int]], ran: list[int]) -> None:
    loops = [Loop(number, start, start, end) for number, (start, end) in enumerate(spans)]
    assert [each.process for each in together(loops)] == ran


def test_waiting_that_the_machine_shows_anyway_is_not(tmp_path: Path) -> None:
    _, crowd = crowding(tmp_path, [rank(0, 0.4, 0.4), rank(1, 0.4, 0.4)], make_manifest(cpus=6, intra_op=4))
    assert crowd.is_oversubscribed()
    assert not crowd.lost()


def test_threads_that_crowd_out_each_other_are_told_from_neighbours(tmp_path: Path) -> None:
    tapes = [rank(0, 0.75, 0.75), rank(1, 0.75, 0.75)]
    _, crowd = crowding(tmp_path, tapes, make_manifest(cpus=4, intra_op=4))
    assert crowd.lost() == pytest.approx(1 - 4 / 12, abs=0.01)


def test_waiting_that_recording_may_account_for_is_not(tmp_path: Path) -> None:
    _, crowd = crowding(tmp_path, [rank(0, 0.002, 0.008)], make_manifest(cpus=2, intra_op=4))
    assert crowd.p is not None
    assert crowd.p < 0.05
    assert not crowd.lost()


def test_threads_that_fit_are_not_crowded_however_long_they_wait(tmp_path: Path) -> None:
    _, crowd = crowding(tmp_path, [rank(0, 0.02, 0.4)], make_manifest(cpus=4, intra_op=4))
    assert not crowd.is_oversubscribed()


def test_the_quota_counts_and_throttling_is_harm_enough(tmp_path: Path) -> None:
    tape = rank(0, 0.02, 0.02)
    # Of 5 s a fifth, on each of the four CPUs that its threads are on.
    tape.counter("cgroup.throttled_ns", 4 * 1_000 * MS, 3000, 500 * HALVES, machine=True)
    tape.counter("host.steal_ns", 400 * MS, 3000, 500 * HALVES, machine=True)
    _, crowd = crowding(tmp_path, [tape], make_manifest(cpus=8, quota=1.5, intra_op=4))
    assert (crowd.cpus, crowd.threads) == (2, 4)
    assert crowd.throttled == pytest.approx(0.2, rel=0.01)
    assert crowd.steal == pytest.approx(0.01, rel=0.01)
    assert crowd.lost()


def test_loader_workers_count_with_the_whole_cpus_they_keep_busy(tmp_path: Path) -> None:
    workers = [Tape(process=number, role=f"loader worker {number}", parent=0, worker=number) for number in (1, 2, 3)]
    for worker, busy in zip(workers, (1.0, 0.9, 0.3), strict=True):
        worker.counter("process.cpu_ns", round(500 * HALVES * MS * busy), 3000, 500 * HALVES)
    _, crowd = crowding(tmp_path, [rank(0, 0.02, 0.02), *workers], make_manifest(cpus=4, intra_op=4))
    assert crowd.worker_cpus == pytest.approx(2.2, rel=0.01)
    assert crowd.threads == 6


def test_without_counters_nothing_is_known_and_nothing_is_zero(tmp_path: Path) -> None:
    tape = Tape()
    train(tape, 10)
    used, crowd = crowding(tmp_path, [tape], make_manifest(intra_op=8, torch=None))
    assert (used[0].cpus_used, used[0].efficiency, used[0].run_delay_share) == (None, None, None)
    assert (crowd.threads, crowd.waiting, crowd.throttled, crowd.psi_cpu) == (None, None, None, None)
    assert not crowd.lost()


def test_a_counter_is_divided_among_the_phases_by_their_time(tmp_path: Path) -> None:
    tape = Tape()
    train(tape, 50)
    tape.counter("thread.cpu_ns", 600, 500, 600, thread=1)  # 60 % of it lies in the 1000 ms of steps
    tape.counter("thread.cpu_ns", 600, 500, 600, thread=2)
    tape.counter("process.rss_bytes", 7, 500, 100)
    tape.counter("process.rss_bytes", 9, 600, 100)
    tape.counter("future.thing", 9, 600, 100)
    run = open_run(make_run(tmp_path / "run", [tape]))
    steps = find_steps(run)
    frame = counters_by_phase(run, steps)
    assert frame["counter"].unique().tolist() == ["thread.cpu_ns"]
    shares = frame.set_index("phase")["value"] / 1200
    assert shares.to_dict() == pytest.approx(
        {"loading wait": 0.1, "forward": 0.3, "backward": 0.4, "optimizer": 0.15, "communication": 0, "other": 0.05}
    )
    assert counter_levels(run, steps)[["counter", "highest"]].to_numpy().tolist() == [["process.rss_bytes", 9]]
