"""What is predicted of loaders, where the answer is known without a replay."""

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tracekit.advice.loader_choice import about_as_good, promising
from tracekit.analysis.loading import LoaderCosts
from tracekit.analysis.probes import Probe, Seen
from tracekit.analysis.report_schema import LoaderForecast, LoaderSummary
from tracekit.models.loader_epochs import (
    CHEAPEST,
    START_S,
    TOGETHER,
    Storage,
    as_crowded,
    machine_of,
    measured_time,
    receive_s,
    settings_of,
    settled_time,
    slowed,
    time_of,
    workload,
)
from tracekit.models.loader_memory import fits, has_room, left_by, what_is_not_known
from tracekit.models.loader_replay import LoaderSettings, Machine, Workload, replay
from tracekit.models.loader_split import split
from tracekit.models.loading import (
    MODEL_ERROR,
    forecasts,
    saved_by_persisting,
    saved_in_any_order,
    storage_apart,
    worker_counts,
)
from tracekit.models.storage import probed_storage
from tracekit.run.manifest import Loader, Memory
from tracekit.study.loading import candidates

BATCHES = 200


def costs(
    workers: int = 2,
    prefetch: int = 2,
    blocked: float = 0.0,
    cpu: float = 0.0,
    consume: float = 0.01,
    cpus: float = 4.0,
    readers: int = 2,
    batch_bytes: int = 0,
    memory: Memory = Memory(),  # noqa: B008  nothing changes it
) -> LoaderCosts:
    """Batches that are all alike, on a machine where the program keeps one CPU busy."""
    zero = np.zeros(BATCHES)
    work = Workload(zero + blocked, zero, zero + cpu, zero, zero, zero + consume)
    seen = replay(work, Machine(cpus), LoaderSettings(workers, prefetch))
    return LoaderCosts(
        process=0,
        loader="loader",
        settings=Loader(num_workers=workers, prefetch_factor=prefetch if workers else None, in_order=True),
        wait=seen.received - seen.asked,
        gap=np.append(seen.asked[1:], seen.end) - seen.received,
        blocked=zero + blocked,
        cpu=zero + cpu,
        delayed=zero,
        delayed_receive=0.0,
        reading_cpu=0.0,
        collating=None,
        send=0.0,
        receive=zero,
        consume=zero + consume,
        first=np.arange(BATCHES) == 0,
        number=np.arange(BATCHES),
        start=0.0,
        boot=0.0,
        stop=0.0,
        readers=readers,
        reading=float(readers),
        cpus=cpus,
        consumer_cpus=1.0,
        batch_bytes=batch_bytes,
        largest_batch=batch_bytes,
        worker_bytes=1,
        memory=memory,
        known=1.0,
    )


def per_batch(found: LoaderCosts, workers: int, prefetch: int = 2) -> tuple[float, float]:
    """The least and the most that a batch is predicted to take, but for what the model may miss."""
    (each,) = [each for each in forecasts(found, [workers]).grid if each.settings.prefetch == prefetch]
    missed = 1 if each.seen else 1 + MODEL_ERROR
    return each.low * missed, each.high / missed


def test_what_a_team_of_threads_computed_may_take_a_worker_longer() -> None:
    """GIVEN a program without workers, whose batches take 20 ms of its team's time, and 40 ms of one thread's at most
    THEN one worker takes from 20 to 40; a probe with workers has seen which."""
    found = replace(costs(0, cpu=0.02, consume=0.001), alone=2.0)
    least, most = per_batch(found, 1)
    one_thread = per_batch(replace(found, alone=1.0), 1)
    assert least == one_thread[0] and most == pytest.approx(2 * one_thread[1], rel=0.1)
    assert per_batch(found, 0) == per_batch(replace(found, alone=1.0), 0)
    none, one = (Probe(costs(workers), [Seen(workers, 2, 1.0, 0.05)]) for workers in (0, 1))
    highest = [max(each.high for each in forecasts(found, [2], probe).grid) for probe in (None, none, one)]
    assert highest[1] == pytest.approx(highest[0], rel=0.2) and highest[2] < 0.7 * highest[0]


@pytest.mark.parametrize("alone", [1.0, 1.5])
def test_threads_beside_the_maker_may_be_missing_in_a_worker(alone: float) -> None:
    """GIVEN a program without workers, beside which two more threads compute for 20 ms of each batch THEN a worker may
    need 60 ms for it; a probe whose workers had one thread, and took as long, or half of that, has seen how long."""
    found = replace(costs(0, cpu=0.02, consume=0.001, cpus=8.0), alone=alone, maker_cpus=3.0)
    least, most = per_batch(found, 1)
    of_one, of_three = (per_batch(costs(0, cpu=cpu, consume=0.001, cpus=8.0), 1) for cpu in (0.02, 0.06))
    assert least == pytest.approx(of_one[0], rel=0.01) and most == pytest.approx(of_three[1], rel=0.01)
    for took in (0.06, 0.03):
        probe = Probe(costs(1, cpu=took, consume=0.001, cpus=8.0), [Seen(1, 2, took / 0.021, 0.2)])
        (seen,) = [each.expected for each in forecasts(found, [1], probe).grid if each.seen]
        assert seen == pytest.approx(took, rel=0.03)


def test_threads_that_help_the_program_may_not_be_there_in_a_worker() -> None:
    """GIVEN a program without workers, each of whose batches two threads compute, none of them torch's THEN a worker
    takes as long, or, where such a pool has no thread in it, twice as long; to be expected is the former."""
    found = replace(costs(0, cpu=0.02, consume=0.001), maker_cpus=2.0)
    least, most = per_batch(found, 1)
    by_one = per_batch(replace(found, maker_cpus=1.0), 1)
    assert least == pytest.approx(by_one[0], rel=0.1) and most == pytest.approx(2 * by_one[1], rel=0.1)
    (expected,) = (each.expected for each in forecasts(found, [1]).grid if each.settings.prefetch == 2)
    assert expected == pytest.approx(by_one[1], rel=0.1)


def test_workers_of_epochs_that_are_left_early_may_have_to_end_what_nobody_takes() -> None:
    """GIVEN epochs of 10 batches of 50 ms that the program leaves early THEN with workers each may take 50 ms more."""
    whole = replace(costs(0, blocked=0.05, readers=8), first=np.arange(BATCHES) % 10 == 0)
    left = replace(whole, settings=msgspec.structs.replace(whole.settings, left_early=True))
    (least, most), (as_least, as_most) = per_batch(left, 1), per_batch(whole, 1)
    assert least == as_least and most == pytest.approx(as_most + 0.005, abs=0.001)
    assert per_batch(left, 0) == per_batch(whole, 0)


def test_waiting_for_storage_is_shared_out_among_workers() -> None:
    """GIVEN 40 ms of storage per batch and 10 ms of computing THEN so many workers suffice as read at once."""
    found = costs(blocked=0.04, readers=8)
    assert per_batch(found, 0)[1] == pytest.approx(0.05)
    assert per_batch(found, 2)[1] == pytest.approx(0.02, rel=0.05)
    assert per_batch(found, 5)[1] == pytest.approx(0.01, rel=0.05)


def test_more_readers_than_were_seen_may_gain_nothing() -> None:
    found = costs(blocked=0.04, readers=2)
    low, high = per_batch(found, 4)
    assert low == pytest.approx(0.01, rel=0.05) and high == pytest.approx(0.02, rel=0.05)
    assert per_batch(found, 2)[0] == pytest.approx(per_batch(found, 2)[1])


def test_a_full_cpu_takes_no_more_workers() -> None:
    """GIVEN 2 CPUs, of which a batch needs 30 ms in a worker and 10 ms in the program THEN it takes 20 ms at least."""
    found = costs(cpu=0.03, cpus=2.0)
    assert all(each.expected >= 0.02 * 0.98 for each in forecasts(found).grid)
    assert per_batch(found, 8)[0] == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize(("cause", "blocked", "cpu"), [("storage", 0.05, 0.0), ("cpu", 0.0, 0.05)])
def test_the_wait_is_laid_to_its_cause(cause: str, blocked: float, cpu: float) -> None:
    found = split(costs(blocked=blocked, cpu=cpu))
    assert found is not None and getattr(found, cause) > 0.95


@pytest.mark.parametrize(("cpu", "most"), [(0.04, 0.3), (0.0, 0.0)])
def test_workers_that_compute_may_slow_down_what_takes_their_batches(cpu: float, most: float) -> None:
    """GIVEN batches that take longer to compute than to take THEN some of what taking them costs may be due to that; of
    workers that only wait for storage none is."""
    found = replace(costs(cpu=cpu, blocked=0.0 if cpu else 0.04, consume=0.001), receive=np.full(BATCHES, 0.012))
    shares = split(found)
    assert shares is not None and shares.consumer > 0.1
    assert 0.0 <= shares.slowed <= most * shares.consumer + 1e-9
    assert (shares.slowed > 0) is (most > 0)


@pytest.mark.parametrize("cause", ["cpu", "storage"])
@pytest.mark.parametrize("rested", [None, 0.5, 1.02])
def test_what_taking_batches_takes_from_rested_workers_is_for_taking_them(cause: str, rested: float | None) -> None:
    """GIVEN batches that are there when they are asked for, but for the first THEN what taking them would take longer
    if workers had nothing to do is not waited for what is made, and what it would take less is."""
    making, taking = 0.014, 0.001
    storage = making if cause == "storage" else 0.0
    busy = costs(blocked=storage, cpu=making - storage, consume=0.009)
    busy = replace(busy, receive=np.full(BATCHES, taking), wait=np.full(BATCHES, taking) + making * busy.first)
    found = split(replace(busy, rested=None if rested is None else rested * taking))
    assert found is not None
    left = (rested or 1.0) * taking * BATCHES
    assert getattr(found, cause) == pytest.approx(1 - left / float(busy.wait.sum()), abs=0.01)
    assert found.consumer + getattr(found, cause) == pytest.approx(1)


@pytest.mark.parametrize(("rested", "may_be"), [(None, True), (0.012, False)])
def test_what_was_seen_to_take_batches_from_rested_workers_is_no_guess(rested: float | None, may_be: bool) -> None:
    """GIVEN workers that compute for longer than taking their batches takes THEN some of the latter may be due to that,
    unless the run has shown what it takes."""
    busy = costs(cpu=0.04, consume=0.0)
    found = split(replace(busy, receive=np.full(BATCHES, 0.012), rested=rested))
    assert found is not None and found.consumer > 0.1
    assert (found.slowed > 0) is may_be


def test_a_program_that_computing_workers_let_go_first_waits_for_them_the_longer() -> None:
    """GIVEN workers that keep the CPUs busy, and a program that takes a batch in 2 ms, uses it for 10, as alone, and
    waits for the rest of the time THEN what is not taking batches is computing."""
    consume, receive = 0.01, 0.002
    even = replace(costs(workers=2, cpu=0.02, consume=consume, cpus=2.0), receive=np.full(BATCHES, receive))
    took = time_of(even, settings_of(even), Storage())
    found = split(replace(even, gap=np.full(BATCHES, consume), wait=np.full(BATCHES, took - consume)))
    assert found is not None
    assert found.consumer == pytest.approx(receive / (took - consume), rel=0.05)
    assert found.cpu == pytest.approx(1 - found.consumer, abs=0.02)
    evenly = split(replace(even, gap=np.full(BATCHES, took), wait=np.zeros(BATCHES)))
    assert evenly is not None and evenly.consumer > 1.3 * found.consumer


def test_a_long_epoch_of_which_some_batches_are_replayed_prefers_nobody() -> None:
    """GIVEN 1,000 batches of workers that keep the CPUs busy, of a program that has its even share THEN the split says
    what it says of 200."""
    even = costs(workers=2, cpu=0.02, cpus=2.0)
    names = ("wait", "gap", "blocked", "cpu", "delayed", "receive", "consume", "number")
    longer: dict[str, Any] = {name: np.resize(getattr(even, name), 1000) for name in names}
    many = replace(even, first=np.arange(1000) == 0, **longer)
    short, long = split(even), split(many)
    assert short is not None and long is not None
    assert long.cpu == pytest.approx(short.cpu, abs=0.02) and long.consumer == pytest.approx(short.consumer, abs=0.02)


def long_epoch(usual: LoaderCosts, batches: int, every: int, rare_s: float) -> LoaderCosts:
    """One epoch of so many batches like those that come late in another, with so much longer a gap each so many."""
    at = np.resize(np.arange(BATCHES // 2, BATCHES - 20), batches)
    names = ("wait", "gap", "blocked", "cpu", "delayed", "receive", "consume", "number")
    longer: dict[str, Any] = {name: getattr(usual, name)[at] for name in names}
    rare = rare_s * (np.arange(batches) % every == every // 2)
    longer |= {"gap": longer["gap"] + rare, "consume": longer["consume"] + rare}
    return replace(usual, first=np.arange(batches) == 0, **longer)


@pytest.mark.parametrize(("batches", "every"), [(5005, 500), (450, 50), (3000, 7)])
def test_what_comes_seldom_between_batches_makes_no_settings_seem_faster(batches: int, every: int) -> None:
    """GIVEN an epoch whose workers are never waited for, and now and then a pause of 20 s THEN no settings that make
    batches as fast gain anything, whichever batches are replayed for them."""
    found = long_epoch(costs(workers=4, cpu=0.15, consume=0.1, cpus=8.0, readers=4), batches, every, 20.0)
    now = measured_time(found)
    for each in forecasts(found, [2, 3, 4, 8]).grid:
        assert each.expected == pytest.approx(now, rel=0.02), each.settings


@pytest.mark.parametrize("workers", [2, 4])
def test_batches_that_take_long_to_make_now_and_then_count_as_often_as_there_are(workers: int) -> None:
    """GIVEN 4,000 batches of which one in 100 takes forty times as long to make THEN some of them stand for all."""
    even = long_epoch(costs(workers=2, cpu=0.02, consume=0.001, cpus=16.0, readers=2), 4000, 100, 0.0)
    found = replace(even, cpu=np.where(np.arange(4000) % 100 == 37, 0.8, 0.02))
    for prefetch in (2, 8):
        chosen = LoaderSettings(workers, prefetch)
        whole = replay(workload(found, workers), machine_of(found), chosen).end / 4000
        assert time_of(found, chosen, Storage()) == pytest.approx(whole, rel=0.2)


def test_no_batch_takes_less_than_a_gpu_works_for_it() -> None:
    """GIVEN a program that is through with a batch after 15 ms, of which a GPU works for 100, and workers that are
    waited for THEN nothing is faster than the GPU; where nobody saw it work, the program may wait for it now."""
    found = costs(workers=4, cpu=0.6, consume=0.015, cpus=64.0, readers=4)
    assert min(each.low for each in forecasts(found, [40]).grid) < 0.05
    seen, unseen = (forecasts(replace(found, device=device), [40]).grid for device in (0.1, np.nan))
    assert min(each.expected for each in seen) >= 0.1 and min(each.high for each in seen) >= 0.1
    assert all(each.high >= measured_time(found) for each in unseen)


def test_each_tensor_of_a_batch_has_to_be_taken() -> None:
    """GIVEN a program without workers, 10 ms to make a batch and 5 to use it THEN of a batch of 39 tensors workers are
    not certain to gain, which takes some ten times as long to take as one."""
    few = costs(workers=0, cpu=0.01, consume=0.005)
    many = replace(few, settings=msgspec.structs.replace(few.settings, storages=39))
    assert max(each.high for each in forecasts(few, [2]).grid) < measured_time(few)
    assert min(each.high for each in forecasts(many, [2]).grid) > measured_time(many)
    assert receive_s(many) == pytest.approx(11.3 * receive_s(few), rel=0.01)


@pytest.mark.parametrize("blocked", [0.08, 0.001])
def test_a_probe_that_met_another_storage_tells_little(blocked: float) -> None:
    """GIVEN a run that waited for storage, and a probe in which more workers were no faster THEN that is told of the
    run, if the probe read as slowly; if it read from a cache, more may be faster."""
    found = costs(workers=1, blocked=0.08, cpu=0.01, consume=0.015, readers=1)
    base = replace(found, blocked=found.blocked * blocked / 0.08)
    probe = Probe(costs(workers=6, blocked=blocked, cpu=0.01, readers=6), [Seen(6, 2, 1.0, 0.02)], base=base)
    (told,) = [each for each in forecasts(found, [6], probe).grid if each.settings.prefetch == 2]
    assert (storage_apart(found, probe) < -1) is (blocked < 0.08)
    assert (told.low < 0.7 * measured_time(found)) is (blocked < 0.08)
    assert told.high > 0.95 * measured_time(found)


def test_a_probe_by_itself_is_compared_with_what_came_after_the_start() -> None:
    """GIVEN a look at 30 batches, before which workers and the program started for 5 s THEN they take as long as in a
    whole epoch."""
    whole = long_epoch(costs(workers=2, cpu=0.05, consume=0.01, readers=2), 3000, 3000, 0.0)
    few: dict[str, Any] = {
        name: getattr(whole, name)[:30].copy()
        for name in ("wait", "gap", "blocked", "cpu", "delayed", "receive", "consume", "number", "first")
    }
    look = replace(whole, **few)
    look.wait[0] += 5.0
    assert measured_time(look) > 2 * measured_time(whole)
    assert settled_time(look) == pytest.approx(settled_time(whole), rel=0.1)
    assert settled_time(replace(look, **{name: each[:10] for name, each in few.items()})) == 0


def test_two_cpus_of_one_core_may_give_no_more_than_one() -> None:
    """GIVEN workers that fill the cores THEN more on the CPUs that share these are not certain to gain."""
    found = costs(workers=4, cpu=0.1, consume=0.001, cpus=8.0, readers=4)
    apart, shared = (
        max(each.high for each in forecasts(replace(found, cores=cores), [8]).grid) for cores in (8.0, 4.0)
    )
    assert apart < 0.75 * measured_time(found) < 0.95 * measured_time(found) < shared


def test_a_program_that_does_not_wait_has_no_split() -> None:
    found = split(costs(workers=4, blocked=0.001))
    assert found is None or found.storage > 0.9  # the first batch, if any
    assert split(replace(costs(), start=0.01, wait=np.zeros(BATCHES), gap=np.zeros(BATCHES))) is None


def test_what_the_replay_waits_longer_than_the_program_did_is_for_what_is_made() -> None:
    """GIVEN batches of 30 ms beside a program that uses each for 10, and takes it in 5, and that was seen to wait for
    15 in place of 20 THEN 5 of these are for taking them."""
    one = costs(workers=1, cpu=0.03, consume=0.01)
    one = replace(one, receive=np.full(BATCHES, 0.005), wait=np.full(BATCHES, 0.015), gap=np.full(BATCHES, 0.01))
    found = split(one)
    assert found is not None
    assert found.cpu == pytest.approx(2 / 3, abs=0.01) and found.consumer == pytest.approx(1 / 3, abs=0.01)


def test_a_split_adds_up() -> None:
    found = split(costs(blocked=0.02, cpu=0.03, cpus=1.0))
    assert found is not None
    shares = [getattr(found, name) for name in found.__dataclass_fields__ if name != "order"]
    assert sum(shares) == pytest.approx(1) and min(shares) >= 0
    assert found.storage > 0.1 and found.cpu > 0.3 and found.order < 0.05


@pytest.mark.parametrize(("persist", "epochs"), [(False, 10), (True, 1)])
def test_what_a_worker_takes_longer_for_its_first_batch_is_starting_it(persist: bool, epochs: int) -> None:
    """GIVEN an epoch's first batch that takes 60 ms, 50 of them for being the first of its worker, and others of 10
    that the program does not wait for THEN five sixths of the wait are for starting workers."""
    first = np.arange(BATCHES) % (BATCHES // epochs) == 0
    settings = Loader(num_workers=1, prefetch_factor=2, in_order=True, persistent_workers=persist)
    one = replace(costs(workers=1, consume=0.02), settings=settings, first=first, cold=0.05)
    found = split(replace(one, cpu=0.01 + 0.05 * first, wait=0.06 * first))
    assert found is not None
    assert found.startup == pytest.approx(5 / 6, abs=0.01) and found.cpu == pytest.approx(1 / 6, abs=0.01)


def test_what_samples_take_longer_at_first_is_computing_them() -> None:
    """GIVEN an epoch's first batch that takes 60 ms, 50 of them for being the first of its worker, 40 of these to get
    its samples, and others of 10 that the program does not wait for THEN a sixth of the wait is for starting."""
    first = np.arange(BATCHES) % 20 == 0
    one = replace(costs(workers=1, consume=0.02), cpu=0.01 + 0.05 * first, first=first, cold=0.05)
    one = replace(one, wait=0.06 * first)
    found = split(replace(one, cold_outside=0.01))
    assert found is not None
    assert found.startup == pytest.approx(1 / 6, abs=0.01) and found.cpu == pytest.approx(5 / 6, abs=0.01)


@pytest.mark.parametrize("persist", [False, True])
def test_connecting_a_worker_is_starting_it(persist: bool) -> None:
    """GIVEN batches that take 10 ms to make, before a program that uses each for 20 ms, and an epoch's first batch that
    takes 30 more to connect for THEN three quarters of the wait are for starting; and it all is in the forecast. As
    where each epoch has a loader of its own, whose workers would persist."""
    first = np.arange(BATCHES) % 20 == 0
    one = replace(costs(workers=1, cpu=0.01, consume=0.02), first=first, wait=0.04 * first, connect=0.03)
    own = msgspec.structs.replace(one.settings, persistent_workers=persist, made=int(first.sum()))
    one = replace(one, settings=own)
    found = split(one)
    assert found is not None
    assert found.startup == pytest.approx(3 / 4, abs=0.01) and found.cpu == pytest.approx(1 / 4, abs=0.01)
    per_batch = [time_of(each, settings_of(each), Storage()) for each in (one, replace(one, connect=0.0))]
    assert per_batch[0] - per_batch[1] == pytest.approx(0.03 / 20)


@pytest.mark.parametrize(("method", "given_back"), [("fork", 0.030), ("spawn", 0.0)])
def test_memory_that_a_worker_gives_back_at_its_end_is_for_its_samples(method: str, given_back: float) -> None:
    """GIVEN workers that are ahead but for an epoch's first batch of 10 ms, and that are forked in 13 ms and end in 43,
    where 13 are usual THEN the 30 more are for computing; of those that are not forked it is not known."""
    first = np.arange(BATCHES) % 20 == 0
    one = replace(costs(workers=1, cpu=0.01, consume=0.02), first=first, start=START_S, stop=START_S + 0.030)
    one = replace(one, wait=0.01 * first)
    found = split(replace(one, settings=msgspec.structs.replace(one.settings, start_method=method)))
    assert found is not None
    whole = 0.01 + 2 * START_S + 0.030
    assert found.cpu == pytest.approx((0.01 + given_back) / whole, abs=0.02)
    assert found.cpu + found.startup == pytest.approx(1.0, abs=0.01)


def test_computing_that_is_reading_goes_with_the_storage() -> None:
    """GIVEN 20 ms of computing, half of it for reading, before one worker's program that needs 10 ms THEN half of the
    wait is storage's: without it the worker would keep up."""
    found = split(replace(costs(workers=1, cpu=0.02), reading_cpu=0.5))
    assert found is not None and found.storage > 0.95
    half = split(replace(costs(workers=1, cpu=0.03, consume=0.0), reading_cpu=0.5))
    assert half is not None and half.storage == pytest.approx(0.5, abs=0.02) == pytest.approx(half.cpu, abs=0.02)


def test_what_any_order_would_save_is_told_beside_the_causes() -> None:
    """GIVEN one batch of ten that takes ten times as long THEN the others wait for it, one batch ahead."""
    slow = np.where(np.arange(BATCHES) % 10 == 3, 0.1, 0.01)
    found = split(replace(costs(workers=4, prefetch=2), blocked=slow))
    assert found is not None and found.order > 0.3 and found.storage > 0.95


def test_what_does_not_fit_into_memory_is_left_out() -> None:
    """GIVEN batches of 1 MB and 20 MB of shared memory THEN no more than 20 batches are made ahead; a limit of 0 leaves
    what the program has."""
    found = costs(blocked=0.04, workers=4, prefetch=4, batch_bytes=1_000_000, memory=Memory(shared=20_000_000))
    ahead = [each.settings.workers * each.settings.prefetch for each in forecasts(found).grid if each.settings.workers]
    assert max(ahead) in range(16, 21)
    found = costs(blocked=0.04, workers=4, prefetch=4, batch_bytes=1_000_000, memory=Memory(free=0))
    kept = [(each.settings.workers, each.settings.prefetch) for each in forecasts(found).grid]
    assert set(kept) == {(0, 2)} | {(workers, prefetch) for workers in (1, 2, 3, 4) for prefetch in (1, 2, 4)}


def test_pieces_of_memory_that_would_need_too_many_open_files_are_left_out() -> None:
    """GIVEN batches of 8 tensors, each in a piece of memory of its own, and 1024 files that may be open THEN no more
    than 62 batches are made ahead, as half of these are for the program; two loaders share them."""
    found = replace(costs(blocked=0.04, workers=2, memory=Memory(files=1024)))
    found.settings.storages = 8
    ahead = [each.settings.workers * each.settings.prefetch for each in forecasts(found).grid if each.settings.workers]
    assert max(ahead) in range(33, 63)
    assert left_by([(found, 8, 4)], found.memory).files == 1024 - 2 * 8 * 34
    found.settings.storages = 0  # nobody has seen how many
    assert max(each.settings.prefetch for each in forecasts(found).grid if each.settings.workers == 16) == 16


def test_workers_that_the_program_prepares_are_needed() -> None:
    found = costs(workers=2, cpu=0.0001)
    assert {each.settings.workers for each in forecasts(found).grid} >= {0, 1}
    found.settings.prepares = True
    assert 0 not in {each.settings.workers for each in forecasts(found).grid}
    alone = costs(workers=0, cpu=0.0001)
    alone.settings.prepares = True
    assert 0 in {each.settings.workers for each in forecasts(alone).grid}


def test_what_a_data_set_keeps_in_memory_workers_may_make_anew() -> None:
    """GIVEN a run without workers whose first epoch computes ten times as long for a batch as those after it THEN with
    workers that do not persist a batch may take as long as in the first one."""
    keeps = replace(costs(workers=0, cpu=0.01, consume=0.001), first=np.arange(BATCHES) % 50 == 0)
    first = np.arange(BATCHES) < 50
    computed = replace(keeps, cpu=np.where(first, 0.1, 0.01), wait=np.where(first, 0.1, 0.01))
    (least, most), (_, usual) = per_batch(computed, 1), per_batch(keeps, 1)
    assert least < 0.02 and most > 5 * usual


def test_more_of_what_nobody_has_seen_is_left_out() -> None:
    """GIVEN batches of unknown size, or workers, beside a limit THEN no more of them are taken to fit; without a limit
    they are."""
    for unknown in ({"largest_batch": None}, {"worker_bytes": 0}):
        found = replace(costs(blocked=0.04, workers=2, memory=Memory(1 << 40, 1 << 40)), **unknown)
        assert max(each.settings.workers for each in forecasts(found).grid) == 2 and what_is_not_known(found)
    found = replace(costs(blocked=0.04, workers=2), largest_batch=None, worker_bytes=0)
    assert max(each.settings.workers for each in forecasts(found).grid) == 16 and not what_is_not_known(found)


def test_what_one_loader_is_to_have_another_cannot() -> None:
    """GIVEN room for 23 batches THEN 2 workers with 4 ahead of each, and two that the program has, leave room for 13,
    of memory for two workers less; two of these loaders for 3; a third has not even room for its own."""
    found = costs(workers=2, prefetch=4, batch_bytes=1000, memory=Memory(100_000, 23_000))
    assert left_by([(found, 2, 4)], found.memory) == Memory(100_000 - 10_000 - 2, 13_000)
    left = left_by([(found, 2, 4)] * 2, found.memory)
    assert left == Memory(100_000 - 20_000 - 4, 3_000)
    third = replace(found, memory=left)
    assert fits(third, 2, 4) and not has_room(third, 2, 4) and has_room(third, 1, 1)
    assert left_by([(found, 0, 4)], found.memory) == found.memory
    assert left_by([(found, 2, 4)], Memory()) == Memory()
    assert not has_room(replace(found, largest_batch=0, memory=Memory(1 << 30, 0)), 1, 1)  # no /dev/shm for queues


def test_workers_that_are_not_forked_may_take_as_long_as_the_program_did() -> None:
    """GIVEN a run without workers whose program took 5 s until its first batch THEN the first batch of a worker that is
    spawned may take as long to come."""
    found = replace(costs(workers=0, blocked=0.04), began=5.0)
    spawning = replace(found, settings=msgspec.structs.replace(found.settings, start_method="spawn"))
    (forked,), (spawned,) = (
        [each for each in forecasts(every, [2]).grid if each.settings.prefetch == 2] for every in (found, spawning)
    )
    most = 5.0 * TOGETHER * (1 + MODEL_ERROR)
    assert (spawned.high - forked.high) * BATCHES == pytest.approx(most, rel=0.05)
    assert spawned.low == forked.low


def test_a_probe_tells_how_storage_answers_more_readers() -> None:
    """GIVEN a run with one reader, 40 ms of storage a batch THEN a probe in which 8 took as long makes 8 as fast as
    that, and one in which they took 8 times as long makes them no faster than one."""
    found = costs(workers=1, blocked=0.04, readers=1)
    for blocked, expected in ((0.04, 0.01), (0.32, 0.04)):
        probe = costs(workers=8, blocked=blocked, readers=8)
        (each,) = [each for each in forecasts(found, [8], Probe(probe, [])).grid if each.settings.prefetch == 2]
        assert [each.low, each.high] == pytest.approx(
            [expected / (1 + MODEL_ERROR), expected * (1 + MODEL_ERROR)], rel=0.1
        )


@pytest.mark.parametrize("same", [True, False])
def test_the_same_samples_in_a_probe_tell_more_of_storage(same: bool) -> None:
    """GIVEN reads of which some take 50 times as long, all of them half as long again among eight THEN a probe tells
    this to within 5 % where it had the same ones, and to within more where it had others."""
    order = np.random.default_rng(5)
    blocked = order.choice([0.002, 0.1], BATCHES, p=[0.9, 0.1])
    found = replace(costs(workers=1, readers=1), blocked=blocked)
    probe = replace(costs(workers=8, readers=8), blocked=1.5 * blocked * order.normal(1, 0.05, BATCHES), reading=8.0)
    probe = probe if same else replace(probe, blocked=order.permutation(probe.blocked))
    at_once = sorted(each.at_once or 8.0 for each in probed_storage(found, probe, alone=False).storages)
    assert at_once[0] <= 8 / 1.5 <= at_once[-1]
    assert (at_once[-1] / at_once[0] < 1.1) is same


@settings(max_examples=10, deadline=None)
@given(st.floats(1.2, 6.0), st.floats(0.001, 0.02))
def test_readers_that_also_do_other_things_tell_what_storage_can_give(at_once: float, consume: float) -> None:
    """GIVEN a probe that ran alone, whose eight readers also compute, and wait for a program that does THEN storage is
    told to read as many at once as it does, though on average it read less."""
    found = costs(workers=1, blocked=0.04, cpu=0.01, consume=consume, readers=1)
    slower = slowed(found, LoaderSettings(8), at_once)
    assume(slower > 1.02)
    probe = costs(workers=8, blocked=0.04 * slower, cpu=0.01, consume=consume, readers=8)
    assert [each.at_once for each in probed_storage(found, probe, alone=True).storages] == pytest.approx(
        [at_once] * 2, rel=0.03
    )


def test_what_a_probe_has_seen_is_told_as_it_was() -> None:
    """GIVEN a run with a worker, and a probe in which 8 took three times as long as the replay says THEN that is what
    they take, the run's own settings take what they took, and of 4 three sevenths of it are missed."""
    found = costs(workers=1, cpu=0.01, consume=0.01, readers=1)
    probe = Probe(costs(workers=8, cpu=0.01, readers=8), [Seen(8, 2, 3.0, 0.01)])
    told = {(each.settings.workers, each.settings.prefetch): each for each in forecasts(found, [1, 4, 8], probe).grid}
    now, seen, beside, between = (told[cell] for cell in ((1, 2), (8, 2), (8, 4), (4, 2)))
    assert now.seen and now.low == now.expected == now.high == pytest.approx(0.01, rel=0.01)
    assert seen.seen and seen.expected == pytest.approx(0.03, rel=0.01)
    assert [seen.low, seen.high] == pytest.approx([0.03 * np.exp(-0.01), 0.03 * np.exp(0.01)], rel=0.01)
    assert not beside.seen and beside.expected == pytest.approx(0.03, rel=0.02) and beside.high > seen.high
    assert between.expected == pytest.approx(0.01 * (1 + 2 * 3 / 7), rel=0.02)


def test_rounds_of_whole_runs_tell_how_sure_they_are() -> None:
    """GIVEN rounds of whole runs, in each of which 8 workers took two thirds, give or take 2 %, as the machine changed
    its speed by a third from one to the next THEN that is told about as surely; of two it is not told by these."""
    found = costs(workers=1, cpu=0.02, consume=0.01, readers=1)

    def ran(workers: int, times: float) -> LoaderCosts:
        seen = costs(workers, cpu=0.02, consume=0.01, readers=workers)
        return replace(seen, wait=seen.wait * 0 + 0.01 * times, gap=seen.gap * 0 + 0.01 * times)

    paces, errors = [1.0, 1.3, 0.8, 1.1, 1.2], [0.98, 1.02, 1.0, 1.02, 0.98]
    rounds = [[ran(1, pace), ran(8, pace * error * 2 / 3)] for pace, error in zip(paces, errors, strict=True)]
    of_many, of_few = (
        next(
            each
            for each in forecasts(found, [8], Probe(rounds[0][1], [], True, rounds[:count])).grid
            if each.settings.prefetch == 2
        )
        for count in (5, 2)
    )
    assert of_many.expected == pytest.approx(0.02 * 2 / 3, rel=0.03)
    assert of_many.low < 0.02 * 2 / 3 < of_many.high and 1.01 < of_many.high / of_many.expected < 1.05
    assert of_few.high / of_few.expected > 1.08


def test_what_was_seen_unsurely_is_weighed_against_the_replay() -> None:
    """GIVEN a probe in which 8 took twice as long as the replay says, give or take as much as the replay may miss THEN
    the truth is expected half way, and more surely than by either."""
    found = costs(workers=1, cpu=0.01, consume=0.01, readers=1)
    error = float(np.log1p(MODEL_ERROR))
    probe = Probe(costs(workers=8, cpu=0.01, readers=8), [Seen(8, 2, 2.0, error)])
    (each,) = [each for each in forecasts(found, [8], probe).grid if each.settings.prefetch == 2]
    assert each.expected == pytest.approx(0.01 * np.sqrt(2), rel=0.02)
    assert each.high / each.expected == pytest.approx(np.exp(error / np.sqrt(2)), rel=0.01)


def test_a_probe_tells_how_much_cpus_slow_each_other() -> None:
    """GIVEN a run without workers, and a probe in which one took 1.3 times as long as on CPUs of their own THEN so do
    others that compute beside the program."""
    found = costs(workers=0, cpu=0.01, consume=0.01, readers=1)
    probe = Probe(costs(workers=1, cpu=0.01, readers=1), [Seen(1, 2, 0.65, 0.02)])
    (each,) = [each for each in forecasts(found, [1], probe).grid if each.settings.prefetch == 8]
    assert not each.seen and each.expected == pytest.approx(0.013, rel=0.02)


def test_a_replay_that_is_far_off_still_leaves_a_range() -> None:
    """GIVEN a run that was three times as fast as its costs allow THEN nothing is predicted to take no time or less."""
    found = costs(blocked=0.04, workers=2)
    impossible = replace(found, wait=found.wait / 9, gap=found.gap / 9)
    told = forecasts(impossible)
    assert told.error > 1 and all(0 < each.low <= each.expected <= each.high for each in told.grid)


def test_fewer_readers_may_be_read_for_as_fast_together() -> None:
    """GIVEN four readers that take 40 ms a batch each THEN one may take as long, or a fourth of it."""
    low, high = per_batch(costs(workers=4, blocked=0.04, readers=4), 1)
    assert low == pytest.approx(0.01, rel=0.05) and high == pytest.approx(0.04, rel=0.05)


@pytest.mark.parametrize("cpus", [1, 2, 7, 64])
def test_the_grid_ends_at_four_workers_per_cpu(cpus: int) -> None:
    counts = worker_counts(cpus)
    assert counts[:2] == [0, 1] and counts[-1] == 4 * cpus and counts == sorted(set(counts)) and len(counts) < 30


def test_a_study_tries_what_is_best_in_either_case() -> None:
    """GIVEN storage that may take more readers or not THEN the best of either case is tried, but what the run had."""
    times = {0: (50, 50), 1: (40, 40), 2: (20, 20), 4: (10, 20), 8: (10, 21)}
    grid = [LoaderForecast(count, 2, low, (low + high) / 2, high) for count, (low, high) in times.items()]
    loader = LoaderSummary(0, "loader", "", 0, 0, 100, 1, 50.0, 0.8, {}, 1.0, 1, 1.0, 0.0, forecasts=grid)
    assert [each.num_workers for each in candidates(loader)] == [4, 2]
    loader.num_workers, loader.prefetch_factor = 4, 2
    assert [each.num_workers for each in candidates(loader)] == [2]


def test_workers_that_may_be_as_good_are_those_the_model_cannot_tell_apart() -> None:
    """GIVEN times that hardly change beyond four workers THEN those within what is given lose no more, and have as many
    batches ahead."""
    times = {0: 50.0, 2: 20.0, 4: 10.0, 6: 10.2, 7: 10.6, 8: 9.95}
    grid = [LoaderForecast(count, 2, each, each, each) for count, each in times.items()]
    grid.append(LoaderForecast(12, 8, 9.9, 9.9, 9.9))

    def alike(within: float, forecasts: list[LoaderForecast]) -> list[int]:
        return [each.num_workers for each in about_as_good(forecasts, lambda each: each.expected_ms, within)]

    assert [alike(within, grid[:5]) for within in (0.0, 0.03, 0.07)] == [[4], [4, 6], [4, 6, 7]]
    assert alike(0.0, grid) == [8] and alike(0.03, grid) == [4, 6, 8]
    assert alike(0.1, []) == []
    no_workers_are_best = [LoaderForecast(0, 0, 9.5, 9.5, 9.5), *grid]
    assert alike(0.0, no_workers_are_best) == [0] and alike(0.06, no_workers_are_best) == [0, 4, 8]


def test_what_was_seen_has_no_error_of_the_model() -> None:
    """GIVEN as fast a setting that was seen, of which its range is not widened THEN it is no better and no worse for
    it; and where all were seen, the fastest is tried."""
    missed = 1 + MODEL_ERROR
    grid = [
        LoaderForecast(0, 0, 50, 50, 50, seen=True),
        LoaderForecast(2, 2, 20 / missed, 20, 20 * missed),
        LoaderForecast(4, 2, 19, 20, 21, seen=True),
    ]
    loader = LoaderSummary(0, "loader", "", 0, 0, 100, 1, 50.0, 0.8, {}, 1.0, 1, 1.0, 0.0, forecasts=grid)
    assert [each.num_workers for each in candidates(loader)] == [2]
    chosen = promising(loader)
    assert chosen is not None and chosen.num_workers == 2
    grid[1].low_ms, grid[1].high_ms = 22 / missed, 22 * missed
    assert [each.num_workers for each in candidates(loader)] == [4]


def test_workers_that_persist_are_started_once() -> None:
    """GIVEN 4 epochs of 50 batches of 10 ms each, which keep their pace, and 2 workers that take 50 ms to start and as
    long to stop THEN what persisting saves are three starts and stops."""
    one = costs(workers=2)
    four = replace(one, first=np.arange(BATCHES) % 50 == 0, start=0.025, stop=0.05, cpu=np.full(BATCHES, 0.001))
    whole = 4 * (50 * 0.01 + 0.1)
    assert saved_by_persisting(four, 2, 2) == pytest.approx(3 * 0.1 / whole, rel=0.25)
    assert saved_by_persisting(replace(one, start=0.025, stop=0.05), 2, 2) == 0.0
    assert saved_by_persisting(replace(four, leaves_early=True), 2, 2) == 0.0
    hears = msgspec.structs.replace(four.settings, told_epochs=True)
    assert saved_by_persisting(replace(four, settings=hears), 2, 2) == 0.0
    assert saved_by_persisting(replace(four, device=0.05), 2, 2) == 0.0  # a GPU works all the time
    assert saved_by_persisting(replace(four, device=np.nan), 2, 2) == 0.0
    kept = Loader(num_workers=2, prefetch_factor=2, persistent_workers=True)
    assert saved_by_persisting(replace(four, settings=kept), 2, 2) == 0.0


@pytest.mark.parametrize(("made", "starts"), [(1, 1), (10, 10), (50, 20)])
def test_workers_that_persist_are_started_as_often_as_they_are_made(made: int, starts: int) -> None:
    """GIVEN 20 epochs of 10 batches, and workers that persist, and take 3 s to come to life THEN the run, as replayed,
    has as many starts as it made loaders, however many epochs are replayed."""
    settings = Loader(num_workers=2, prefetch_factor=2, in_order=True, persistent_workers=True, made=made)
    kept = replace(costs(cpu=0.001), first=np.arange(BATCHES) % 10 == 0, start=0.02, settings=settings)
    begins = np.arange(BATCHES) % (BATCHES // starts) == 0
    booting = replace(kept, boot=3.0, wait=kept.wait + 3.0 * begins)
    for found in (time_of(booting, settings_of(booting), Storage()), measured_time(booting)):
        assert found * BATCHES == pytest.approx(2.0 + starts * (3.0 + 2 * 0.02), rel=0.1)


def test_what_any_order_saves_is_known_of_uneven_batches_only() -> None:
    """GIVEN one batch of 20 that takes 200 ms, the others 10, and 2 workers for a program that takes 10 ms THEN it
    waits for each of these some 180 ms in order, and hardly otherwise."""
    uneven = np.where(np.arange(BATCHES) % 20 == 10, 0.2, 0.01)
    even = replace(costs(workers=2), blocked=np.full(BATCHES, 0.01))
    assert saved_in_any_order(replace(even, blocked=uneven), 2, 8) > 0.2
    assert saved_in_any_order(even, 2, 8) == pytest.approx(0.0, abs=0.01)
    assert [saved_in_any_order(replace(even, blocked=uneven, device=each), 2, 8) for each in (0.2, np.nan)] == [0, 0]
    assert saved_in_any_order(replace(even, blocked=uneven), 1, 8) == 0.0
    taken = Loader(num_workers=2, prefetch_factor=8, in_order=False)
    assert saved_in_any_order(replace(even, blocked=uneven, settings=taken), 2, 8) == 0.0
    older_torch = Loader(num_workers=2, prefetch_factor=8)
    assert saved_in_any_order(replace(even, blocked=uneven, settings=older_torch), 2, 8) == 0.0


def test_a_run_is_judged_by_all_of_its_epochs() -> None:
    """GIVEN 10 epochs, the first of which reads for ten times as long, as one does that finds nothing in any cache THEN
    the others tell what is to be expected."""
    reads = costs(workers=0, blocked=0.002, consume=0.001, readers=1)
    first = np.arange(BATCHES) % (BATCHES // 10) == 0
    cold = np.where(np.arange(BATCHES) < BATCHES // 10, 0.02, 0.002)
    found = forecasts(replace(reads, first=first, blocked=cold, wait=cold))
    assert found.current.expected == pytest.approx(0.003)
    assert next(each for each in found.grid if each.settings.workers == 0).expected == pytest.approx(0.003)


@pytest.mark.parametrize("at", range(10))
def test_an_epoch_beside_which_something_else_ran_is_not_typical(at: int) -> None:
    """GIVEN 10 epochs, in one of which computing took three times as long THEN the others tell what to expect."""
    computes = costs(workers=0, cpu=0.002, consume=0.001)
    first = np.arange(BATCHES) % (BATCHES // 10) == 0
    slowed = np.where(np.arange(BATCHES) // (BATCHES // 10) == at, 3.0, 1.0)
    slow = {name: getattr(computes, name) * slowed for name in ("wait", "gap", "cpu", "consume")}
    found = forecasts(replace(computes, first=first, **slow))
    assert found.current.expected == pytest.approx(0.003)


@pytest.mark.parametrize(("workers", "slower"), [(0, TOGETHER), (1, 1.0)])
def test_a_run_without_workers_has_not_seen_cpus_busy_together(workers: int, slower: float) -> None:
    """GIVEN as much computing in a worker as in the program THEN both may take as long as alone, or each may slow the
    other, unless the run had a worker: then it has seen it."""
    least, most = per_batch(costs(workers=workers, prefetch=2, cpu=0.1, consume=0.1, readers=1), 1)
    assert most / least == pytest.approx(slower, rel=0.03)


def test_putting_batches_together_is_none_of_the_samples_computing() -> None:
    """GIVEN a program that makes its batches, half of the time from storage, WHEN a fifth of the making puts samples
    together THEN the split says so."""
    found = replace(costs(workers=0, blocked=0.01, cpu=0.01, consume=0.01, readers=1), collating=0.2)
    shares = split(found)
    assert shares is not None
    assert [shares.storage, shares.cpu, shares.transfer] == pytest.approx([0.5, 0.3, 0.2], abs=0.01)


def test_what_waits_for_storage_slows_no_cpu() -> None:
    least, most = per_batch(costs(workers=0, blocked=0.02, consume=0.01, readers=1), 1)
    assert most / least == pytest.approx(1.0, rel=0.03)


def test_what_workers_cost_is_a_range_until_one_was_seen() -> None:
    """GIVEN tiny batches without workers THEN with one they may take what taking a batch costs here or there; a probe
    with one has seen what it costs."""
    found = costs(workers=0, cpu=0.0001, consume=0.0001, readers=1)
    least, most = per_batch(found, 1)
    assert most / least > 0.7 / CHEAPEST
    seen = replace(costs(workers=1, cpu=0.0001, consume=0.0001, readers=1), receive=np.full(BATCHES, 0.0006))
    probe = Probe(seen, [Seen(1, 2, 0.0008 / 0.0002, 0.02)])
    (each,) = [each for each in forecasts(found, [1], probe).grid if each.settings.prefetch == 8]
    assert each.high < 1.3 * each.low * (1 + MODEL_ERROR) and each.expected == pytest.approx(0.0008, rel=0.1)


@pytest.mark.parametrize(("pins", "takes"), [(False, 0.01), (True, 0.005)])
def test_indices_are_drawn_in_the_program_beside_workers_too(pins: bool, takes: float) -> None:
    """GIVEN a program that makes batches for 5 ms, of which it draws the indices for 5 and uses each for 5 THEN with
    workers, which make them sooner, a batch takes 10; where that may be pinning, it may take less."""
    found = costs(workers=0, cpu=0.005, consume=0.005, readers=1)
    own = msgspec.structs.replace(found.settings, pin_memory=pins)
    found = replace(found, wait=found.wait + 0.005, receive=np.full(BATCHES, 0.005), settings=own, cpus=8.0)
    least, _ = per_batch(found, 4)
    assert least >= takes * 0.9 and (pins or least < takes * 1.2)


@pytest.mark.parametrize("faults", [0.0, 0.6])
def test_memory_that_is_new_to_workers_may_be_there_without_them(faults: float) -> None:
    """GIVEN 4 ms of computing in workers, of which page faults take a share at most, and 10 ms of the program's THEN
    without workers a batch takes 14 ms, or less by that share of 4 ms."""
    computing = replace(costs(workers=1, cpu=0.004), faults=faults)
    low, high = per_batch(computing, 0)
    assert low == pytest.approx(0.014 - faults * 0.004, rel=0.01) and high == pytest.approx(0.014, rel=0.01)
    low, high = per_batch(computing, 2)
    assert low == pytest.approx(high, rel=0.01)


def test_a_long_epoch_is_judged_by_all_of_its_length() -> None:
    """GIVEN an epoch whose second half reads for twice as long THEN a batch takes what it takes on average."""
    many = 2000
    zero = np.zeros(many)
    reads = np.where(np.arange(many) < many // 2, 0.002, 0.004)
    short = costs(workers=0, readers=1)
    long = replace(
        short, wait=reads, gap=zero, blocked=reads, cpu=zero, delayed=zero, receive=zero, consume=zero,
        first=np.arange(many) == 0,
    )  # fmt: skip
    found = next(each for each in forecasts(long).grid if each.settings.workers == 0)
    assert found.expected == pytest.approx(0.003, rel=0.02)


@pytest.mark.parametrize("epochs", [1, 8])
def test_workers_far_ahead_in_long_epochs_find_no_cpu_that_is_not_there(epochs: int) -> None:
    """GIVEN two CPUs, 30 ms of a worker and 10 of the program for each of thousands of batches THEN no setting is told
    to take less than 20 ms, however many batches are made by the time that the last one is handed out."""
    many = 1000 * epochs
    run = costs(workers=2, cpu=0.03, consume=0.01, cpus=2.0)
    names = ("wait", "gap", "blocked", "cpu", "delayed", "receive", "consume", "number")
    longer: dict[str, Any] = {name: np.resize(getattr(run, name), many) for name in names}
    long = replace(run, first=np.arange(many) % 1000 == 0, **longer)
    for workers, prefetch in ((2, 2), (8, 2), (8, 16)):
        took = time_of(long, LoaderSettings(workers, prefetch), Storage())
        assert 0.0199 <= took <= 0.0215, (workers, prefetch)


def test_starting_workers_of_a_long_epoch_is_set_against_all_that_is_waited() -> None:
    """GIVEN an epoch of 5,000 batches that are waited for 10 ms each, and a start of 5 s THEN that is a tenth of the
    waiting, and not most of it."""
    run = costs(workers=1, blocked=0.02, consume=0.01)
    names = ("wait", "gap", "blocked", "cpu", "delayed", "receive", "consume", "number")
    longer: dict[str, Any] = {name: np.resize(getattr(run, name), 5000) for name in names}
    longer["wait"][0] += 5
    found = split(replace(run, first=np.arange(5000) == 0, boot=5.0, **longer))
    assert found is not None and found.startup == pytest.approx(5 / 55, abs=0.02)
    assert found.storage == pytest.approx(50 / 55, abs=0.02)


def test_workers_that_hardly_compute_are_not_to_blame_for_a_crowded_machine() -> None:
    """GIVEN a program that waits for CPUs for half of its time, as others want them, and workers that compute for a
    thousandth of it THEN a step without them takes as long."""
    ideal = costs(consume=0.02, cpu=0.00002)
    run = as_crowded(replace(ideal, gap=ideal.gap + 0.02))
    assert run.crowded == pytest.approx(1.0, abs=0.03)
    without, *_, two = [each.expected for each in forecasts(run, [0, 2]).grid]
    assert without == pytest.approx(two, rel=0.02)


@pytest.mark.parametrize("team", [1.0, 2.0])
def test_a_crowded_machine_makes_the_program_wait_as_it_makes_a_worker(team: float) -> None:
    """GIVEN a worker that computes all the time, and waits for CPUs for as long again, as others want them, and a
    program that computes nothing THEN a step without the worker takes as long."""
    waited = costs(workers=1, consume=0.0001, cpu=0.04, cpus=2.0)
    run = as_crowded(replace(waited, cpu=waited.cpu - 0.02, delayed=np.full(BATCHES, 0.02), maker_cpus=team))
    assert run.crowded == pytest.approx(1.0, abs=0.03)
    without, one, *_ = [each.expected for each in forecasts(run, [0, 1]).grid]
    assert without == pytest.approx(one, rel=0.05)


def test_fewer_workers_are_the_busier_and_leave_no_more_of_the_cpus() -> None:
    """GIVEN four workers that one could stand for, and a program that waits for CPUs beside them THEN it waits as
    long beside one."""
    ideal = costs(workers=4, consume=0.02, cpu=0.01)
    run = as_crowded(replace(ideal, gap=ideal.gap + 0.01))
    one, four = ([each.expected for each in forecasts(run, [count]).grid] for count in (1, 4))
    assert one == pytest.approx(four, rel=0.02)


@pytest.mark.parametrize(("waited", "crowded"), [(0.0, 0.0), (0.002, 0.5), (0.009, 1.0)])
def test_so_much_waiting_for_cpus_counts_that_the_replay_lasts_as_long_as_the_run(
    waited: float, crowded: float
) -> None:
    """GIVEN a program that waits for CPUs for 4 ms of each batch, of which the run shows so many as lost THEN as many
    are costs of all settings with as many workers; without any, less by the part of the CPUs that workers want."""
    ideal = costs(consume=0.02, cpu=0.005)
    run = replace(ideal, gap=ideal.gap + 0.004, wait=ideal.wait + waited - 0.004)
    found = as_crowded(run)
    assert found.crowded == pytest.approx(crowded, abs=0.03)
    predicted = forecasts(found, [0, 4])
    assert predicted.error == pytest.approx(waited / (0.02 + waited), abs=0.01)  # before that was taken from the run
    without, *_, four = [each.expected for each in predicted.grid]
    assert four == pytest.approx(0.02 + waited, rel=0.02)
    kept, missed = 0.004 * crowded * 24 / 29, (0.02 + waited) / (0.02 + 0.004 * crowded)
    assert without == pytest.approx((0.025 + kept) * missed, rel=0.02)
