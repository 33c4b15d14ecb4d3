"""The replay of a DataLoader against what torch does step by step, and bounds that are known without it."""

import math
from dataclasses import replace
from heapq import heappop, heappush

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.models.loader_replay import LoaderSettings, Machine, Workload, replay

COST = st.integers(0, 50).map(float)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    batches = draw(st.integers(1, 12))
    return Workload(*(np.array(draw(st.lists(COST, min_size=batches, max_size=batches))) for _ in range(6)))


def only(cpu: float, consume: float, batches: int = 40, **others: float) -> Workload:
    """Batches that are all alike."""
    zero = np.zeros(batches)
    return Workload(
        zero + others.get("delay", 0), zero + others.get("transfer", 0), zero + cpu, zero + others.get("send", 0),
        zero + others.get("receive", 0), zero + consume,
    )  # fmt: skip


def step_by_step(work: Workload, workers: int, prefetch: int) -> tuple[list[float], float]:
    """When batches are got in order where nothing is shared: what torch's iterator does, line by line. It takes what
    was finished first until the batch that is due is among the taken, and then hands out one more."""
    made = work.delay + work.transfer + work.cpu
    free = [0.0] * workers
    finished: list[tuple[float, int]] = []
    now, handed_out = 0.0, 0

    def hand_out() -> None:
        nonlocal handed_out
        if handed_out < len(work):
            worker = handed_out % workers
            free[worker] = max(now, free[worker]) + made[handed_out]
            heappush(finished, (free[worker] + work.send[handed_out], handed_out))
            handed_out += 1

    for _ in range(workers * prefetch):
        hand_out()
    got: list[float] = []
    taken: set[int] = set()
    for due in range(len(work)):
        while due not in taken:
            at, batch = heappop(finished)
            now = max(now, at) + work.receive[batch]
            taken.add(batch)
        hand_out()
        got.append(now)
        now += work.consume[due]
    return got, now


@given(workloads(), st.integers(1, 4), st.integers(1, 3), st.integers(0, 1 << 32))
@settings(max_examples=200, deadline=None)
def test_with_enough_of_everything_it_is_what_torch_does(
    work: Workload, workers: int, prefetch: int, seed: int
) -> None:
    apart = np.random.default_rng(seed).random(len(work))  # what is finished at the same time comes in any order
    work = replace(work, delay=work.delay + work.transfer, transfer=0 * work.cpu, cpu=work.cpu + apart)
    found = replay(work, Machine(), LoaderSettings(workers, prefetch))
    received, end = step_by_step(work, workers, prefetch)
    assert found.received == pytest.approx(np.array(received))
    assert found.end == pytest.approx(end)


def test_what_is_not_due_is_taken_while_the_program_waits() -> None:
    """GIVEN two workers, the first of which takes 10 s and the other 1, and 2 s to take a batch THEN only the batch
    that is waited for adds to the wait: the other one was taken meanwhile."""
    cpu = np.tile([10.0, 1.0], 10)
    work = Workload(0 * cpu, 0 * cpu, cpu, 0 * cpu, 0 * cpu + 2, 0 * cpu + 1)
    found = replay(work, Machine(), LoaderSettings(2, 1))
    waits = found.received - found.asked
    assert waits[1::2] == pytest.approx(np.zeros(10)) and waits[0] == pytest.approx(12)


@given(workloads(), st.sampled_from([1.0, 2.0, 3.0]))
@settings(deadline=None)
def test_without_workers_everything_is_one_after_the_other(work: Workload, cpus: float) -> None:
    found = replay(work, Machine(cpus), LoaderSettings(0))
    made = work.delay + work.transfer + work.cpu + work.receive
    assert found.end == pytest.approx(float((made + work.consume).sum()))
    assert found.stall == pytest.approx(float(made.sum()))


@given(workloads(), st.integers(0, 4), st.integers(1, 3), st.sampled_from([1.0, 1.5, 2.0, 4.0]), st.booleans())
@settings(max_examples=200, deadline=None)
def test_no_resource_gives_more_than_it_has(
    work: Workload, workers: int, prefetch: int, cpus: float, in_order: bool
) -> None:
    found = replay(work, Machine(cpus), LoaderSettings(workers, prefetch, in_order))
    cpu = work.cpu.sum() + work.consume.sum() + (work.receive.sum() if workers else 0)
    assert found.end >= cpu / cpus - 1e-6
    assert found.end >= work.transfer.sum() - 1e-6
    assert found.end >= work.consume.sum() + found.stall - 1e-6
    assert len(found.received) == len(work)
    assert (np.diff(found.received) >= -1e-9).all() and (found.received >= found.asked - 1e-9).all()


def test_a_full_cpu_is_shared() -> None:
    """GIVEN one CPU for the program and any number of workers THEN they take what they would one after the other."""
    for workers in (1, 2, 4):
        assert replay(only(3.0, 2.0), Machine(1.0), LoaderSettings(workers)).end == pytest.approx(40 * 5.0)


@pytest.mark.parametrize("consumer_cpus", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("workers", [1, 4])
def test_a_program_that_waits_for_a_device_wants_a_cpu_for_a_part_of_the_time(
    consumer_cpus: float, workers: int
) -> None:
    """GIVEN workers that compute for 8 s a batch, of which the program has each for 10 s, on one CPU THEN only the part
    in which it computes too is slowed, by all of them at most."""
    found = replay(only(8.0, 10.0), Machine(1.0, consumer_cpus), LoaderSettings(workers, 4))
    batch = (found.end - found.received[0]) / 40
    assert batch >= 0.9 * max(10.0, 8.0 + 10.0 * consumer_cpus)
    assert np.diff(found.received).max() <= max(10.0 + 10.0 * consumer_cpus * workers, 8.0 + 10.0 * consumer_cpus) + 0.1


def test_reads_share_the_storage_and_waiting_does_not() -> None:
    work = only(0.0, 0.0, transfer=1.0, delay=9.0)
    one, ten = (replay(work, Machine(), LoaderSettings(workers)).end for workers in (1, 10))
    assert one == pytest.approx(400)
    assert ten == pytest.approx(4 * 9 + 40, rel=0.1)
    slow = replay(only(0.0, 0.0, transfer=1.0), Machine(stream=0.25), LoaderSettings(1)).end
    assert slow == pytest.approx(160)


def test_a_slow_batch_holds_up_those_behind_it_only_in_order() -> None:
    """GIVEN one batch of 20 that takes 100 s, the others 1, and a program that takes 1 s for each."""
    cpu = np.ones(20)
    cpu[3] = 100
    work = Workload(0 * cpu, 0 * cpu, cpu, 0 * cpu, 0 * cpu, np.ones(20))
    in_order, any_order = (replay(work, Machine(), LoaderSettings(2, 2, order)) for order in (True, False))
    assert in_order.end > 114 and in_order.stall > 95
    assert any_order.end == pytest.approx(102, abs=1.5)
    assert np.count_nonzero(any_order.received < 90) == 18  # one waits behind it with the same worker


def test_workers_are_started_one_after_the_other() -> None:
    found = replay(only(1.0, 0.0, batches=4), Machine(), LoaderSettings(4, start=0.5))
    assert found.received[0] == pytest.approx(3.0)


def test_a_worker_goes_on_while_its_batch_is_on_its_way() -> None:
    """GIVEN batches of 4 s that take 3 s to be there THEN the program has one every 4 s, where a worker may be ahead;
    every 7 s where it may not, and takes them at once."""
    ahead, not_ahead = (replay(only(4.0, 0.0, send=3.0), Machine(), LoaderSettings(1, each)) for each in (2, 1))
    assert ahead.end == pytest.approx(40 * 4 + 3) and not_ahead.end == pytest.approx(40 * 7)


@pytest.mark.parametrize("settings_", [LoaderSettings(-1), LoaderSettings(2, 0)])
def test_settings_that_torch_would_not_take_are_refused(settings_: LoaderSettings) -> None:
    with pytest.raises(ValueError, match="no loader has"):
        replay(only(1.0, 1.0), Machine(math.inf), settings_)


@pytest.mark.parametrize("preferred", [0.0, 0.5, 1.0])
def test_a_program_that_is_preferred_computes_at_the_cost_of_the_workers(preferred: float) -> None:
    """GIVEN one CPU, and a worker that is always ahead of its program THEN each has half of it while both compute, or
    the program all of it, and in between as it is said; all of the work takes as long."""
    work = only(cpu=1.0, consume=1.0)
    found = replay(work, Machine(cpus=1.0, preferred=preferred), LoaderSettings(1, 2))
    assert found.end == pytest.approx(len(work) * 2.0)
    used = found.end - found.received[0] - found.stall + (found.received[0] - found.asked[0])
    # Its own work takes as much longer as it has less than a CPU, for as long as the worker computes beside it.
    alone = found.asked[1] - found.received[0]
    assert alone == pytest.approx(1.0 / (0.5 + 0.5 * preferred), rel=0.01)
    assert used <= len(work) * alone * 1.01


@given(workloads(), st.integers(1, 3), st.floats(0, 1))
@settings(max_examples=100, deadline=None)
def test_what_is_preferred_gets_no_more_cpus_than_there_are(work: Workload, workers: int, preferred: float) -> None:
    machine = Machine(cpus=1.5, preferred=preferred)
    found = replay(work, machine, LoaderSettings(workers, 2))
    assert found.end >= (work.cpu + work.receive + work.consume).sum() / machine.cpus * (1 - 1e-9)
