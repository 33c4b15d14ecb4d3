"""Fetching on a fake clock: how many batches get a row, and a closer look."""

import hashlib
import mmap
from time import thread_time_ns
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.collectors import fetching as module
from tracekit.collectors.fetching import _LEAST_SHARE, _Allowance, _Faults
from tracekit.record.wire import SHARES, UNKNOWN_SHARE


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


def test_no_budget_pays_for_the_first_alone() -> None:
    agent = SimpleNamespace(governor=SimpleNamespace(budget=0.0, started=0, spent_ns=0))
    allowance = _Allowance(agent, 0.25, 2)  # type: ignore[arg-type]
    allowance.spend(10)
    assert allowance.next == 0
    allowance.spend(10)
    assert allowance.next > 1 << 60


@pytest.mark.parametrize("is_new", [False, True])
def test_page_faults_are_told_from_computing(is_new: bool) -> None:
    """GIVEN 64 MiB that the thread touches for the first time, or 0.1 s of hashing THEN their share is."""
    data, faults = bytes(1 << 20), _Faults()
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
