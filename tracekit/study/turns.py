"""Runs side by side: each has the machine for a turn, and all others are stopped meanwhile.

A machine that is shared changes its speed from second to second. Runs one after the other meet it at different times,
and may differ by more than any setting is worth; runs that take turns meet the same.
"""

import contextlib
import math
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import psutil

from tracekit.errors import TracekitError
from tracekit.record.pid_namespaces import shows_ours

_PATIENCE_S = 10.0
# A run that takes some times what another one took, and some more, to come to its loop waits for another one.
_START_S, _START = 30.0, 3.0

_LOOK_EVERY_S = 0.02
_KILLED = 128  # and a signal's number: how who records a program tells that it was killed

Stop = tuple[int, int]  # from, to: CLOCK_MONOTONIC ns


def patience(usual_s: float) -> float:
    """How long to wait until a run comes to its loop that usually takes so long, s."""
    return _START_S + _START * usual_s


def refuse_foreign_numbers() -> None:
    """Raises TracekitError where /proc shows others by the numbers that processes have here: they would be stopped."""
    if not shows_ours():
        raise TracekitError(
            "/proc is that of another PID namespace, so no run can be stopped here: start tracekit with one of its own,"
            " as `unshare --pid --fork --mount-proc` does"
        )


class Launch(Protocol):
    """A process that is to be."""

    def start(self) -> subprocess.Popen[bytes]: ...

    def in_loop(self) -> bool:
        """Whether the loop has begun that its turns are about."""


class Turns:
    """A process, with all that it starts, that can be stopped; it is born running."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.stops: list[Stop] = []
        self.was_ended = False
        self._ending: list[psutil.Process] = []

    def has_turn(self, seconds: float) -> None:
        """Let it run for so long, or to its end; then stop it."""
        self._resume(self._tree())
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
            return
        self.stop()

    def stop(self) -> None:
        """Stop all of it where it is."""
        stopped = time.monotonic_ns()
        known: set[int] = set()
        while new := [each for each in self._tree() if each.pid not in known]:  # it may be starting others meanwhile
            for each in new:
                known.add(each.pid)
                _send(each.suspend)
        self.stops.append((stopped, stopped))

    def ask_to_end(self) -> None:
        """Have it end, if it has not ended yet."""
        if self.process.poll() is None and not self.was_ended:
            self.was_ended, self._ending = True, self._tree()
            self.process.terminate()
            self._resume(self._ending)

    def end(self) -> None:
        """End it with all that it has started, if it has not ended yet."""
        self.ask_to_end()
        if not self.was_ended:
            if self.process.returncode < 0 or self.process.returncode > _KILLED:  # so it could not end the others
                _end_all(self._group())
            return
        tree = self._ending
        try:
            self.process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            # Who records it completes what it has once the rest is gone.
            for each in {*tree, *self._tree()}:
                if each.pid != self.process.pid:
                    _send(each.kill)
            try:
                self.process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        # A worker of a loader that was just being started would wait for its parent forever. One that was started since
        # we looked has another parent now, but is in the group.
        _end_all([*tree, *self._group()])

    def kill(self) -> None:
        """End it with all that it has started, at once."""
        for each in {*self._tree(), *self._group()}:
            _send(each.kill)

    def _resume(self, tree: list[psutil.Process]) -> None:
        """Let all of it go on, if it is stopped."""
        for each in tree:
            _send(each.resume)
        if self.stops and self.stops[-1][0] == self.stops[-1][1]:
            self.stops[-1] = (self.stops[-1][0], time.monotonic_ns())

    def _group(self) -> list[psutil.Process]:
        """What is in the process group that the process has led, if it has."""
        return [each for each in psutil.process_iter() if _group_of(each) == self.process.pid]

    def _tree(self) -> list[psutil.Process]:
        if self.process.poll() is not None:  # its number may be another's
            return []
        try:
            root = psutil.Process(self.process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


def alone(launch: Launch, patience_s: float = math.inf, most_s: float = math.inf) -> Turns:
    """Start a process and let it run to its end, or until it has been in its loop for `most_s`, whereupon it is ended.
    It does not outlive this call, whatever ends it.

    Raises TimeoutError when it does not come to its loop in time.
    """
    run = Turns(launch.start())
    try:
        if most_s < math.inf:
            _come_to_loop(launch, run, patience_s)
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.process.wait(most_s if most_s < math.inf else None)
    finally:
        _end([run])
    return run


def take_turns(
    launches: Sequence[Launch], seconds: Sequence[float], patience_s: float = math.inf, most_s: float = math.inf
) -> list[Turns]:
    """Start one process after the other, each up to its loop; then they take turns of so many seconds, each its own, to
    their ends, or until `most_s` have gone by, whereupon they are ended.

    Raises TimeoutError when one does not come to its loop in time: it may wait for a lock that another holds.

    Every second cycle goes backwards, so that steady drift cancels. None outlives this call, whatever ends it. Give
    each a process group of its own in our session: should we be killed, the kernel wakes what is stopped (SIGHUP and
    SIGCONT for a group that nobody is left to wake).
    """
    runs: list[Turns] = []
    try:
        for launch in launches:  # not all at once: where each has a thread per CPU, their teams would fight for long
            run = Turns(launch.start())
            runs.append(run)
            if _come_to_loop(launch, run, patience_s):
                run.stop()
        order = [(run, turn_s) for run, turn_s in zip(runs, seconds, strict=True) if run.stops]
        deadline = time.monotonic() + most_s
        while order and time.monotonic() < deadline:
            order.reverse()
            for run, turn_s in order:
                run.has_turn(turn_s)
            order = [each for each in order if each[0].process.poll() is None]
    finally:
        _end(runs)
    return runs


def _end(runs: Sequence[Turns]) -> None:
    """End all of them, and those that are left at once where somebody does not wait for that."""
    left = list(runs)
    try:
        for run in left:  # all at once: who ends us does not wait for long
            run.ask_to_end()
        while left:
            left[0].end()
            del left[0]
    except BaseException:
        for run in left:
            run.kill()
        raise


def _come_to_loop(launch: Launch, run: Turns, patience_s: float) -> bool:
    """Wait until a process has come to its loop, or has ended. Raises TimeoutError when that is not in time."""
    deadline = time.monotonic() + patience_s
    while run.process.poll() is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {patience_s:.0f} s one had not come to its loop")
        time.sleep(_LOOK_EVERY_S)
        if launch.in_loop():
            return True
    return False


def _end_all(processes: Sequence[psutil.Process]) -> None:
    for act in (psutil.Process.terminate, psutil.Process.kill):
        for each in processes:
            _send(partial(act, each))
        deadline = time.monotonic() + _PATIENCE_S
        while any(map(_lives, processes)) and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY_S)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _group_of(process: psutil.Process) -> int:
    with contextlib.suppress(OSError):  # it has ended
        return os.getpgid(process.pid)
    return -1


def _send(act: Callable[[], None]) -> None:
    with contextlib.suppress(psutil.Error):  # it has ended
        act()
