"""Processes that take turns."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tracekit.study.turns import take_turns

# Notes the time again and again, in a child of its own, which a stop must reach too.
NOTES = """
import os, sys, time
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
with open(sys.argv[1], "w") as file:
    end = time.process_time() + 0.6
    while time.process_time() < end:
        print(time.monotonic_ns(), file=file)
        for _ in range(1000): pass
sys.exit(int(sys.argv[2]))
"""
TAKES_TURNS = """
import subprocess, sys
from tracekit.study.turns import take_turns

def start():
    process = subprocess.Popen(["sleep", "300"], process_group=0)
    print(process.pid, flush=True)
    return process

take_turns([start, start], 0.2)
"""


def test_one_runs_at_a_time_and_all_to_their_end(tmp_path: Path) -> None:
    def start(number: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", NOTES, str(tmp_path / f"{number}"), f"{number}"], process_group=0
        )

    runs = take_turns([lambda number=number: start(number) for number in range(3)], 0.1)  # type: ignore[misc]

    assert [run.process.returncode for run in runs] == [0, 1, 2]
    stops = [len(run.stops) for run in runs]
    assert min(stops) >= 4
    noted = [(int(line), number) for number in range(3) for line in (tmp_path / f"{number}").read_text().split()]
    owners = [number for _, number in sorted(noted)]
    changes = sum(a != b for a, b in itertools.pairwise(owners))
    assert changes <= 2 * (sum(stops) + len(runs)) < len(noted) / 10


def test_whoever_is_alone_is_never_stopped(tmp_path: Path) -> None:
    (run,) = take_turns([lambda: subprocess.Popen([sys.executable, "-c", NOTES, str(tmp_path / "0"), "7"])], None)

    assert run.process.returncode == 7
    assert run.stops == []


def test_none_outlives_a_failure() -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        if len(started) == 2:
            raise KeyboardInterrupt
        started.append(subprocess.Popen(["sleep", "300"], process_group=0))
        return started[-1]

    with pytest.raises(KeyboardInterrupt):
        take_turns([start] * 3, 0.1)

    assert [process.poll() for process in started] == [-signal.SIGTERM] * 2


def test_nothing_stays_stopped_behind_one_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", TAKES_TURNS], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(parent.stdout.readline()) for _ in range(2)]
        time.sleep(0.5)
        os.kill(parent.pid, signal.SIGKILL)
    left = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    try:
        deadline = time.monotonic() + 60
        while any(process.is_running() and process.status() == psutil.STATUS_STOPPED for process in left):
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
