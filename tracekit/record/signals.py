"""Signals while the program runs: the program gets each one exactly once.

Supervisor and program share a process group, so the terminal's job control (Ctrl-C, Ctrl-Z, pipelines) works as without
tracekit. What the terminal or `kill -- -group` sends reaches both; what is sent to the supervisor alone must be passed
on. The kernel marks the terminal's signals; for others a witness tells: a process in the same group that blocks all
signals, so that those sent to the group stay pending on it for us to see. One that comes again before a new witness
stands, within 2 to 3 ms, is taken for sent to the same: to the group.
"""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tracekit.record.pid_namespaces import shown

_TO_END: set[int] = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
# What is sent to tell a program something and ends one that does not listen; batch systems warn by SIGXCPU, too.
FORWARDED: set[int] = {
    *_TO_END, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU, signal.SIGALRM, signal.SIGVTALRM,
    *range(signal.SIGRTMIN, signal.SIGRTMAX + 1),
}  # fmt: skip
_WATCHED = FORWARDED | {signal.SIGCHLD}
# si_code of the terminal's signals, of a limit of CPU time, which is ours alone, and of alarms.
_SENT_BY_KERNEL = 0x80
# `kill` goes through a group's processes one after the other: the witness's turn comes microseconds after ours, and
# later only where the sender is kept from the CPU meanwhile, as on a node whose CPUs are full. What asks to end can
# wait longer for it: it ends what gets it twice in another way than what gets it once.
_WITNESS_TURN_S, _TURN_OF_THE_LAST_S = 0.01, 0.1
_LOOK_EVERY_S = 0.0005


class Witness:
    """A process in our group on which the signals to the group stay pending; it ends when we do."""

    def __init__(self) -> None:
        self._pipe: tuple[int, ...] = os.pipe()
        self._noticed: set[int] = set()
        self.pid = self._start()

    def _start(self) -> int | None:
        # `cat` on a pipe of ours: it ends with us, whatever ends us.
        actions = [(os.POSIX_SPAWN_DUP2, self._pipe[0], 0), (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
        path = {"PATH": os.environ.get("PATH", os.defpath)}
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, []) | FORWARDED
        try:
            return os.posix_spawnp("cat", ["cat"], path, file_actions=actions, setsigmask=mask, setsigdef=FORWARDED)
        except OSError:  # no cat here: every signal is taken for one to the supervisor alone
            return None

    def saw(self, number: int) -> bool:
        """Whether the whole group got this signal, which has just come to us."""
        latest = time.monotonic() + (_TURN_OF_THE_LAST_S if number in _TO_END else _WITNESS_TURN_S)
        while True:
            self._noticed |= self._pending()
            if number in self._noticed:
                break
            if time.monotonic() > latest:
                return False
            time.sleep(_LOOK_EVERY_S)
        # What is pending stays so: the next one needs a new witness. It stands before the old one is read and goes, so
        # nothing that is sent to the group meanwhile is missed, but for this signal sent again.
        following = self._start()
        self._noticed |= self._pending()
        self._noticed.discard(number)
        self._end()
        self.pid = following
        if number in signal.sigpending() and number not in self._pending():
            self._noticed.add(number)
        return True

    def _pending(self) -> set[int]:
        if self.pid is None:
            return set()
        try:
            status = Path(f"/proc/{shown(self.pid)}/status").read_text(encoding="utf-8", errors="replace")
        except OSError:  # it is not shown: as without it
            return set()
        mask = next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("ShdPnd:")), 0)
        return {number for number in FORWARDED if mask >> (number - 1) & 1}

    def _end(self) -> None:
        if self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = None

    def dismiss(self) -> None:
        """End the witness, if it has not been."""
        self._end()
        for descriptor in self._pipe:
            os.close(descriptor)
        self._pipe = ()


def block() -> set[int]:
    """Block the signals that `wait_for` takes up; call before any thread starts. Returns those that were not ignored,
    nor blocked: the program inherits these as they are."""
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:  # then nobody could be told how the program ended
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    given = signal.pthread_sigmask(signal.SIG_BLOCK, []) - {signal.SIGCHLD}
    heard: set[int] = {number for number in _WATCHED - given if signal.getsignal(number) != signal.SIG_IGN}
    signal.pthread_sigmask(signal.SIG_BLOCK, heard)
    return heard


def wait_for(child: int, heard: set[int], witness: Witness, at_end: Callable[[], None] = lambda: None) -> int:
    """Wait until the child ends, passing signals on to it. `at_end` is called while it can still be read in /proc.

    The witness must be older than the child: a signal may come to the group as soon as the child lives. It is
    dismissed. Returns the child's wait status.
    """
    try:
        while True:
            if os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None:
                at_end()
                return os.waitpid(child, 0)[1]
            # The timeout covers a SIGCHLD that came before we listened.
            information = signal.sigtimedwait(heard, 1.0)
            if information is None or information.si_signo == signal.SIGCHLD:
                continue
            number = information.si_signo
            was_to_group = witness.saw(number)  # the terminal's are pending on it too: a new one is needed
            # An alarm that was set before us, as by `perl -e 'alarm 60; exec …'`, would have been the program's.
            was_to_us = information.si_code != _SENT_BY_KERNEL or number == signal.SIGALRM
            if was_to_us and not was_to_group:
                with suppress(OSError):  # one that runs as somebody else, as `sudo` does, takes none from us
                    os.kill(child, number)
    finally:
        witness.dismiss()


def unblock(heard: set[int]) -> None:
    """The program has ended: what asks to end is for us now. The rest was for it, and would change our exit code."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, heard & _TO_END)


def exit_code(status: int) -> int:
    """The exit code a shell shows for a wait status: 128 + the signal for a program that a signal ended."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
