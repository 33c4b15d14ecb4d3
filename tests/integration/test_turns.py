"""Processes that take turns."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from recording import TRACEKIT

from tracekit.run.reader import open_run
from tracekit.study.turns import Launch, alone, take_turns

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
import subprocess
from tracekit.study.turns import take_turns

class Sleeps:
    def start(self):
        process = subprocess.Popen(["sleep", "300"], process_group=0)
        print(process.pid, flush=True)
        return process

    def in_loop(self):
        return True

take_turns([Sleeps(), Sleeps()], [0.2, 0.2])
"""


@dataclass
class Starts:
    """Starts these words in a group of their own; it takes some looks until they are in their loop."""

    words: list[str]
    looks: int = 3

    def start(self) -> subprocess.Popen[bytes]:
        self.process = subprocess.Popen(self.words, process_group=0)
        return self.process

    def in_loop(self) -> bool:
        self.looks -= 1
        return self.looks < 0


class Interrupted(Starts):
    def start(self) -> subprocess.Popen[bytes]:
        raise KeyboardInterrupt


def test_who_records_a_program_that_does_not_end_completes_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a program that hears of its end and goes on THEN it is killed, and what was recorded of it is all there."""
    monkeypatch.setattr("tracekit.study.turns._PATIENCE_S", 4.0)
    code = "import signal, time; signal.signal(signal.SIGTERM, lambda *args: None); [time.sleep(1) for _ in range(99)]"
    words = [*TRACEKIT, "record", "-q", "-o", str(tmp_path / "run"), "--", sys.executable, "-c", code]
    run = alone(Starts(words, looks=10), most_s=2.0)
    assert run.was_ended and open_run(tmp_path / "run").manifest.ended_ns
    assert len(open_run(tmp_path / "run").sql("SELECT * FROM processes")) == 1


def test_one_runs_at_a_time_and_all_to_their_end(tmp_path: Path) -> None:
    launches = [Starts([sys.executable, "-c", NOTES, str(tmp_path / f"{number}"), f"{number}"]) for number in range(3)]

    runs = take_turns(launches, [0.1] * len(launches))

    assert [run.process.returncode for run in runs] == [0, 1, 2]
    stops = [len(run.stops) for run in runs]
    assert min(stops) >= 4
    noted = [(int(line), number) for number in range(3) for line in (tmp_path / f"{number}").read_text().split()]
    began = max(run.stops[0][0] for run in runs)
    owners = [number for noted_ns, number in sorted(noted) if noted_ns > began]
    changes = sum(a != b for a, b in itertools.pairwise(owners))
    assert changes <= 2 * (sum(stops) + len(runs)) < len(owners) / 10


def test_whoever_is_alone_is_never_stopped(tmp_path: Path) -> None:
    run = alone(Starts([sys.executable, "-c", NOTES, str(tmp_path / "0"), "7"]))

    assert run.process.returncode == 7
    assert run.stops == []


def test_whoever_is_alone_is_ended_when_its_time_is_up() -> None:
    """GIVEN a time that begins when it is in its loop, at the third look THEN it is not stopped, but ended."""
    began = time.monotonic()
    run = alone(Starts(["sleep", "300"]), patience_s=10.0, most_s=0.5)

    assert 0.5 <= time.monotonic() - began < 10
    assert (run.process.returncode, run.stops, run.was_ended) == (-signal.SIGTERM, [], True)
    with pytest.raises(TimeoutError, match="had not come to its loop"):
        alone(Starts(["sleep", "300"], looks=10**9), patience_s=0.5, most_s=0.5)


def test_one_that_ends_before_its_loop_has_no_turn(tmp_path: Path) -> None:
    launches = [Starts(["false"]), Starts([sys.executable, "-c", NOTES, str(tmp_path / "1"), "1"], looks=10**9)]

    runs = take_turns(launches, [0.1] * len(launches))

    assert [(run.process.returncode, run.stops) for run in runs] == [(1, []), (1, [])]


def test_when_the_time_is_up_all_are_ended_with_what_they_have_started() -> None:
    """GIVEN programs whose children outlive them, as a worker does that was just being started THEN neither is left."""
    words = ["sh", "-c", "sleep 302 & sleep 302"]

    began = time.monotonic()
    runs = take_turns([Starts(words), Starts(words)], [0.1, 0.2], most_s=0.7)

    assert 0.7 <= time.monotonic() - began < 10
    assert all(run.was_ended and len(run.stops) >= 3 for run in runs)
    # To be ended they go on for a moment.
    assert all(resumed > stopped for run in runs for stopped, resumed in run.stops)
    assert not [each for each in psutil.process_iter() if _words_of(each) == ["sleep", "302"]]


def test_what_was_started_as_it_ended_is_ended_too() -> None:
    """GIVEN a program that starts another one as it is told to end, nobody's child a moment later THEN none is left."""
    startles = ["sh", "-c", "trap 'sleep 301 & sleep 0.2; exit' TERM; while true; do sleep 0.05; done"]
    take_turns([Starts(startles)], [0.2], most_s=0.5)

    assert not [each for each in psutil.process_iter() if _words_of(each) == ["sleep", "301"]]


def _words_of(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline() if process.status() != psutil.STATUS_ZOMBIE else []
    return []


def test_none_outlives_a_failure() -> None:
    launches = [Starts(["sleep", "300"]), Starts(["sleep", "300"])]

    with pytest.raises(KeyboardInterrupt):
        take_turns([*launches, Interrupted([])], [0.1] * 3)

    assert [launch.process.poll() for launch in launches] == [-signal.SIGTERM] * 2


@pytest.mark.parametrize(
    "go", [lambda run: alone(run, most_s=0.3), lambda run: take_turns([run, run], [0.1, 0.1], most_s=0.3)]
)
def test_none_outlives_who_does_not_wait_for_its_end(go: Callable[[Launch], object]) -> None:
    """GIVEN somebody who interrupts us while we wait for a program that hears of its end and goes on, as its child does
    THEN both are killed."""
    hangs = Starts(["sh", "-c", "trap '' TERM; sleep 303 & while true; do sleep 0.05; done"])

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 2.0)
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            go(hangs)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - began < 8  # it has ten seconds to end
    deadline = time.monotonic() + 5
    while left := [each for each in psutil.process_iter() if _words_of(each) == ["sleep", "303"]]:
        assert time.monotonic() < deadline, left


def test_one_that_waits_for_another_is_given_up() -> None:
    """GIVEN a program that comes to its loop only when another one, which is stopped, has ended THEN nobody waits."""
    launches = [Starts(["sleep", "300"]), Starts(["sleep", "300"], looks=10**9)]

    with pytest.raises(TimeoutError, match="had not come to its loop"):
        take_turns(launches, [0.1] * 2, patience_s=1.0)

    assert [launch.process.poll() for launch in launches] == [-signal.SIGTERM] * 2


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
