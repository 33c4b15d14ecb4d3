"""Counters of real processes, against what those say of themselves. Times are compared as ratios only."""

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pandas as pd
import pyarrow as pa
import pytest

from tracekit.collectors.counters import Counters
from tracekit.collectors.perf_events import Event

# Threads burn so much CPU time each, outside the interpreter lock, however long the machine makes them wait for it; the
# program then says how much CPU time it took, and waits.
BURN = """
import hashlib, sys, threading, time
def burn(seconds):
    block, end = bytes(1 << 18), time.thread_time() + seconds
    while time.thread_time() < end:
        hashlib.sha256(block)
def burn_in_threads(seconds, count=2):
    threads = [threading.Thread(target=burn, args=(seconds,)) for _ in range(count)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
def say(*words):
    print(*words, flush=True)
"""
END = "say(time.process_time_ns()); sys.stdin.read()"


@contextmanager
def program(code: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", BURN + code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def sample(counters: Counters, until: Callable[[], bool], interval: float = 0.05) -> None:
    """Sample until something holds, and once more after it."""
    deadline = time.monotonic() + 60
    while not until():
        assert time.monotonic() < deadline
        counters.sample(time.time_ns())
        time.sleep(interval)
    counters.sample(time.time_ns(), complete=True)


def answers(child: "subprocess.Popen[str]") -> Callable[[], bool]:
    import select

    assert child.stdout is not None
    stdout = child.stdout
    return lambda: bool(select.select([stdout], [], [], 0)[0])


def answer(child: "subprocess.Popen[str]") -> int:
    assert child.stdout is not None
    return int(child.stdout.readline())


def wait_until_alone(child: "subprocess.Popen[str]") -> None:
    """Until the main thread is the only one: one that was joined may take a moment more to leave the kernel."""
    while len(os.listdir(f"/proc/{child.pid}/task")) > 1:
        time.sleep(0.01)


def frame(*tables: pa.Table) -> pd.DataFrame:
    return pa.concat_tables(tables).to_pandas()


def total(rows: pd.DataFrame, counter: str) -> int:
    chosen = rows[rows.counter == counter]
    assert len(chosen), f"no rows of {counter}"
    return int(chosen.value.sum())


def no_perf(event: Event, thread: int, leader: int, user_only: bool) -> int:
    raise OSError(errno.EACCES, "played")


def test_cpu_time_of_threads_is_what_the_program_says() -> None:
    with program("burn_in_threads(0.5)\n" + END) as child:
        counters = Counters(child.pid, budget=1.0)
        half = time.monotonic() + 0.4
        sample(counters, lambda: time.monotonic() > half)
        tables = [counters.drain()]
        sample(counters, answers(child))
        said = answer(child)
        tables.append(counters.drain())
        counters.close()
    rows = frame(*tables)
    assert total(rows, "thread.cpu_ns") == pytest.approx(said, rel=0.05)
    assert total(rows, "process.cpu_ns") == pytest.approx(said, rel=0.05)
    per_thread = rows[rows.counter == "thread.cpu_ns"].groupby("thread").value.sum()
    assert sorted(per_thread)[-2:] == pytest.approx([5e8, 5e8], rel=0.05)
    assert set(rows.process) == {0, -1}
    assert (rows.duration_ns > 0).all()


def test_intervals_of_a_series_follow_each_other_without_gap_or_overlap() -> None:
    with program("burn_in_threads(0.3)\n" + END) as child:
        counters = Counters(child.pid, budget=1.0)
        sample(counters, answers(child))
        first = counters.drain()
        sample(counters, lambda: True)
        rows = frame(first, counters.drain())
        counters.close()
    for _, series in rows.sort_values("start_ns").groupby(["process", "thread", "counter"], observed=True):
        ends = (series.start_ns + series.duration_ns).to_list()
        assert series.start_ns.to_list()[1:] == ends[:-1]


def test_threads_that_share_one_cpu_wait_for_it() -> None:
    one = min(os.sched_getaffinity(0))
    with program(f"import os; os.sched_setaffinity(0, [{one}]); burn_in_threads(0.6)\n" + END) as child:
        counters = Counters(child.pid, budget=1.0)
        sample(counters, answers(child))
        rows = frame(counters.drain())
        counters.close()
    # Each of the two runs half of the time and waits the other half, apart from what other processes take.
    assert total(rows, "thread.run_delay_ns") > 0.5 * total(rows, "thread.cpu_ns")
    assert total(rows, "thread.involuntary_switches") > 0


def test_a_thread_that_ended_between_samples_keeps_its_last_moments() -> None:
    code = "def halves():\n burn(0.2); say(1); sys.stdin.readline(); burn(0.2)\n"
    code += "thread = threading.Thread(target=halves); thread.start(); thread.join()\n" + END
    with program(code) as child:
        counters = Counters(child.pid, budget=1.0)
        if not any(rung.available for rung in counters.rungs() if rung.name == "software perf events"):
            pytest.skip("this machine has no software perf events, which alone outlive a thread")
        sample(counters, answers(child))  # the thread is in the middle of its life
        answer(child)
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
        said = answer(child)
        wait_until_alone(child)
        counters.sample(time.time_ns())
        rows = frame(counters.drain())
        counters.close()
    last = rows[(rows.counter == "thread.cpu_ns") & (rows.source == "perf software")]
    assert last.value.sum() == pytest.approx(2e8, rel=0.1)
    assert total(rows, "thread.cpu_ns") == pytest.approx(said, rel=0.05)


def test_without_perf_events_the_process_still_accounts_for_threads_that_ended() -> None:
    with program("say(time.process_time_ns()); sys.stdin.readline(); burn_in_threads(0.3)\n" + END) as child:
        counters = Counters(child.pid, budget=1.0, opener=no_perf)
        sample(counters, answers(child))
        start_up = answer(child)
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
        said = answer(child)
        wait_until_alone(child)
        counters.sample(time.time_ns())
        rows = frame(counters.drain())
        missing = {note.what for note in counters.missing()}
        counters.close()
    assert not any(name.startswith("perf.") for name in set(rows.counter))
    assert total(rows, "process.cpu_ns") == pytest.approx(said, rel=0.1)
    assert total(rows, "thread.cpu_ns") < (start_up + said) / 2  # nobody saw those threads
    assert {"counters: hardware perf events", "counters: software perf events"} <= missing


def test_a_process_that_ends_mid_sampling_leaves_its_rows_and_no_open_file() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with program("burn_in_threads(0.2)") as child:
        counters = Counters(child.pid, budget=1.0)
        closed = len(os.listdir("/proc/self/fd"))
        sample(counters, lambda: child.poll() is not None)
        counters.sample(time.time_ns())
        assert len(os.listdir("/proc/self/fd")) <= closed
        rows = frame(counters.drain())
        counters.sample(time.time_ns())
        later = frame(counters.drain())
        assert counters.drain().num_rows == 0
        counters.close()
    assert total(rows[rows.process == 0], "thread.cpu_ns") > 0
    assert set(later.process) <= {-1}
    assert len(os.listdir("/proc/self/fd")) <= before
    assert not any("in places" in note.what for note in counters.missing())


def test_processes_are_told_apart_and_let_go() -> None:
    with program("burn_in_threads(30)") as one, program("time.sleep(60)") as other:
        counters = Counters(one.pid, budget=1.0)
        counters.watch([(0, one.pid), (4, other.pid), (5, 2**30)])
        assert counters.pids == {one.pid, other.pid, 2**30}
        enough = time.monotonic() + 0.3
        sample(counters, lambda: time.monotonic() > enough)
        rows = frame(counters.drain())
        counters.watch([(4, other.pid)])
        counters.sample(time.time_ns())
        counters.drain()
        counters.sample(time.time_ns())
        later = frame(counters.drain())
        counters.close()
    memory = rows[rows.counter == "process.rss_bytes"].groupby("process").value.max()
    assert set(memory.index) == {0, 4}
    assert (memory > 1 << 20).all()
    busy = rows[rows.counter == "process.cpu_ns"].groupby("process").value.sum()
    assert busy[0] > busy[4]
    assert set(later[later.process >= 0].process) == {4}


def test_bytes_read_are_counted_from_the_start() -> None:
    code = "open('/dev/zero', 'rb', buffering=0).read(10_000_000)\n" + END
    with program(code) as child:
        assert answer(child) > 0  # the reading is over before the first sample
        counters = Counters(child.pid, budget=1.0)
        counters.sample(time.time_ns())
        rows = frame(counters.drain())
        counters.close()
    assert total(rows, "process.read_call_bytes") >= 10_000_000


def test_every_counter_names_its_source_and_is_described() -> None:
    from tracekit.run.counter_names import describe

    with program(END) as child:
        counters = Counters(child.pid, budget=1.0)
        sample(counters, answers(child))
        time.sleep(0.05)
        counters.sample(time.time_ns(), complete=True)
        rows = frame(counters.drain())
        counters.close()
    assert rows.source.notna().all()
    for name, series in rows.groupby("counter", observed=True):
        assert (series.process == -1).all() == (describe(name).scope == "machine")
        assert (series.thread != 0).all() == (describe(name).scope == "thread")
    assert {"host.cpu_busy_ns", "host.steal_ns"} <= set(rows.counter)


def test_what_a_process_did_before_it_became_another_is_told_once() -> None:
    """GIVEN a program that ran another one in its place, which has another number THEN no CPU time is told of both."""
    with program("burn(0.3); say(1); sys.stdin.readline(); burn(0.3); say(1); sys.stdin.read()") as child:
        assert child.stdout is not None and child.stdin is not None
        counters = Counters(child.pid)
        child.stdout.readline()
        counters.sample(time.time_ns())
        counters.watch([(1, child.pid)])
        counters.sample(time.time_ns())
        child.stdin.write("\n")
        child.stdin.flush()
        child.stdout.readline()
        counters.sample(time.time_ns(), complete=True)
        rows = counters.drain().to_pandas()
        counters.close()
    for counter in ("process.cpu_ns", "thread.cpu_ns"):
        of = rows[rows["counter"] == counter].groupby("process")["value"].sum()
        assert of[0] > 0.25e9 and 0.25e9 < of[1] < 0.5 * of.sum() + 0.1e9
