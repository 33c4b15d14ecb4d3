"""Fetching on a fake clock: how many batches get a row, and a closer look."""

import hashlib
import mmap
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from time import perf_counter_ns, thread_time_ns
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.collectors import fetching as module
from tracekit.collectors import looking
from tracekit.collectors.fetching import _LEAST_SHARE, Fetching, _Allowance
from tracekit.collectors.looking import Collating, Faults, Look, Samples, running
from tracekit.collectors.patching import Patches
from tracekit.record.wire import SHARES, UNKNOWN_SHARE


def test_a_thread_that_is_kept_from_its_cpu_makes_no_mark_dearer(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(0, 100_000, 200))
    late = iter([0] * 10 + [1_000_000] * 100)
    monkeypatch.setattr(looking, "clock", lambda: next(times) + next(late))
    assert looking._cost_of_a_mark() == 200


@settings(max_examples=60)
@given(st.integers(10_000, 50_000_000), st.integers(1_000, 500_000), st.booleans())
def test_what_is_rationed_keeps_its_share(batch_ns: int, row_ns: int, is_over: bool) -> None:
    """GIVEN batches of any length and rows of any cost THEN all have one where that is cheap, else as many as their
    share of the budget pays for, beyond the first; and less where the rest has used up the budget."""
    now, rows, free, budget = 0, 0, 8, 0.01
    spent = 1 << 60 if is_over else 0
    agent = SimpleNamespace(governor=SimpleNamespace(budget=budget, started=0, spent_ns=spent))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "clock", lambda: now)
        allowance = _Allowance(agent, 0.25, free)  # type: ignore[arg-type]
        for _ in range(2_000):
            if now >= allowance.next:
                rows += 1
                now += row_ns
                allowance.spend(row_ns)
            now += batch_ns
    share = budget * (_LEAST_SHARE if is_over else 0.25)
    assert rows >= free
    assert rows * row_ns <= share * now + (free + 1) * row_ns
    if row_ns <= 0.9 * share * batch_ns:
        assert rows == 2_000


def test_a_pause_pays_for_no_burst_of_rows() -> None:
    """GIVEN rows that take 1 ms, of which a share of the budget allows four a second WHEN the program has paused for an
    hour THEN it is four a second, and once four more."""
    now = 0
    agent = SimpleNamespace(governor=SimpleNamespace(budget=0.01, started=0, spent_ns=0))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "clock", lambda: now)
        allowance, rows = _Allowance(agent, 0.4, 0), []  # type: ignore[arg-type]
        for number in range(20_000):
            now += 3_600_000_000_000 if number == 10_000 else 1_000_000
            if now >= allowance.next:
                rows.append(number)
                allowance.spend(1_000_000)
        after = sum(number >= 10_000 for number in rows)
        assert 36 <= len(rows) - after <= 42 and 36 <= after <= 46


def test_no_budget_pays_for_the_first_alone() -> None:
    agent = SimpleNamespace(governor=SimpleNamespace(budget=0.0, started=0, spent_ns=0))
    allowance = _Allowance(agent, 0.25, 2)  # type: ignore[arg-type]
    allowance.spend(10)
    assert allowance.next == 0
    allowance.spend(10)
    assert allowance.next > 1 << 60


@pytest.mark.parametrize(("budget", "forked_for", "last"), [(0.01, 0, [1]), (0.01, 200, [0, 1]), (0.0, 200, [])])
def test_the_last_batches_of_an_epoch_have_rows_on_credit(budget: float, forked_for: int, last: list[int]) -> None:
    """GIVEN a worker that persists for two epochs of 100 batches of 2.2 ms, where a row costs as much as three or four
    of them can pay for, one of two that were forked when the epoch before had 200, or none before is known, THEN the
    first ones have rows, and the last ones of each epoch whose length was to be expected, if any are paid for."""
    now = 0
    rows: list[tuple[int, ...]] = []

    def clock() -> int:
        nonlocal now
        now += 10_000
        return now

    def fetch(fetcher: object, indices: list[int]) -> None:
        nonlocal now
        now += 2_200_000

    agent = SimpleNamespace(
        governor=SimpleNamespace(budget=budget, started=0, spent_ns=0),
        spool=SimpleNamespace(note=rows.append, write_noted=lambda: None),
        before_fork=[],
        after_fork=[],
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "clock", clock)
        fetching = Fetching(agent, Patches())  # type: ignore[arg-type]
        fetching._looks.next = 1 << 62
        fetching.expect(forked_for, 2)
        for _ in range(2):
            fetcher = SimpleNamespace()
            for _ in range(100):
                fetching._seen(fetch, fetcher, [0, 1])
    turns = [[row[4] for row in rows if row[5] == iteration] for iteration in (0, 1)]
    assert turns == [[*range(64), *[96, 97, 98, 99] * (0 in last)], [96, 97, 98, 99] * (1 in last)]


@pytest.mark.parametrize("is_new", [False, True])
def test_page_faults_are_told_from_computing(is_new: bool) -> None:
    """GIVEN 64 MiB that the thread touches for the first time, or 0.1 s of hashing THEN their share is."""
    data, faults = bytes(1 << 20), Faults()
    hashlib.sha256(data)
    faults.begin()
    began = thread_time_ns()
    if is_new:
        with mmap.mmap(-1, 64 << 20) as memory:
            for page in range(0, len(memory), mmap.PAGESIZE):
                memory[page] = 1
    while thread_time_ns() - began < 100_000_000 and not is_new:
        hashlib.sha256(data)
    cpu_ns = thread_time_ns() - began
    faults.end()
    share = faults.share_of(cpu_ns)
    assert share > 0.2 * SHARES if is_new else share < 0.05 * SHARES
    assert faults.share_of(0) == UNKNOWN_SHARE


@pytest.mark.parametrize("indices", [[3, 1, 2], (3, 1, 2), iter([3, 1, 2]), []])
def test_indices_are_given_out_as_they_are(indices: Iterable[int]) -> None:
    """A batch sampler may give anything that can be iterated over, with a length or without."""
    samples = Samples(indices)
    assert [*samples] in ([3, 1, 2], [])
    assert (samples.half is not None) == (indices == [3, 1, 2])


def test_giving_samples_back_is_a_part_of_them() -> None:
    """GIVEN samples that take 5 ms each to be given back, when they have been put together THEN that is seen, and the
    program's function is back in its place; not where they are kept, nor where they could not be put together."""

    class Slow:
        def __del__(self) -> None:
            time.sleep(0.005)

    def failing(data: list[Slow]) -> int:
        raise ValueError

    kept: list[Slow] = []
    for collate, is_seen in ((len, True), (kept.extend, False), (failing, False)):
        fetcher = SimpleNamespace(collate_fn=collate)
        samples, collating = Samples([0, 1, 2]), Collating(fetcher)
        with suppress(ValueError):
            fetch(fetcher, samples, Slow)
        samples.are_given_back(collating, perf_counter_ns(), thread_time_ns())
        collating.undo()
        assert (samples.freeing[0] >= 5_000_000) == is_seen and fetcher.collate_fn is collate


def test_putting_samples_together_is_timed_on_its_thread_alone() -> None:
    """GIVEN a fetcher that two threads ask at once THEN the program's function is called by both, timed by the one that
    is watched, and back in its place at the end."""
    begun, go_on = threading.Event(), threading.Event()

    def collate(data: list[int]) -> int:
        if not data:
            begun.set()
            return int(go_on.wait(10))
        time.sleep(0.02)
        return len(data)

    fetcher = SimpleNamespace(collate_fn=collate)
    ours = Collating(fetcher)
    other = threading.Thread(target=lambda: fetcher.collate_fn([]))
    other.start()
    assert begun.wait(10)
    nested = Collating(fetcher)
    assert fetcher.collate_fn([1, 2]) == 2
    nested.undo()
    told = ours.ended - ours.begun
    go_on.set()
    other.join()
    assert ours.ended - ours.begun == told >= 20_000_000
    assert ours.share_of(told) == SHARES and ours.share_of(4 * told) == SHARES // 4 and ours.share_of(0) == -1
    assert nested.share_of(told) == -1
    ours.undo()
    assert fetcher.collate_fn is collate


def fetch(fetcher: Any, indices: Iterable[int], make: Callable[[], object]) -> object:
    data = [make() for _ in indices]
    return fetcher.collate_fn(data)


@pytest.mark.parametrize("helps_for_s", [10.0, 0.06, 0.0])
def test_other_threads_count_by_the_second_half_of_a_batch(helps_for_s: float) -> None:
    """GIVEN samples of 160 ms in all, and another thread that runs meanwhile, or as torch's do for a while after the
    program's last operator THEN just what goes on has a part in making them: what it had of a CPU in the second half,
    whatever that was on a machine that others use too."""
    done, look = threading.Event(), Look(Samples([*range(8)]), -1, 0)

    def spin() -> None:
        ends = time.monotonic() + helps_for_s
        while not done.is_set() and time.monotonic() < ends:
            hashlib.sha256(bytes(1 << 18))
        done.wait()

    helper = threading.Thread(target=spin)
    helper.start()
    assert helper.ident is not None
    helpers_clock = time.pthread_getcpuclockid(helper.ident)
    before = running()
    at_half = (0, 0)
    for index in look.samples or ():
        if index == 4:
            at_half = (time.clock_gettime_ns(helpers_clock), thread_time_ns())
        ends = thread_time_ns() + 20_000_000
        while thread_time_ns() < ends:
            hashlib.sha256(bytes(1 << 18))
    look.note_others(before)
    helped, worked = time.clock_gettime_ns(helpers_clock) - at_half[0], thread_time_ns() - at_half[1]
    done.set()
    helper.join()
    assert look.told(1)[0] / SHARES == pytest.approx(helped / worked, abs=0.2)  # some ms go by between the readings
    assert helped > 0 or helps_for_s < 1
