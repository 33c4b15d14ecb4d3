"""Signals while the program runs: the program gets each one exactly once.

Supervisor and program share a process group, so the terminal's job control (Ctrl-C, Ctrl-Z, pipelines) works as
without tracekit. What the terminal or `kill -- -group` sends reaches both; what is sent to the supervisor alone must be
passed on. The kernel marks the terminal's signals; for others a witness tells: a process in the same group that does
nothing but die of a signal sent to the whole group.
"""

import os
import select
import signal
from collections.abc import Callable

FORWARDED = {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGQUIT}
_WATCHED = FORWARDED | {signal.SIGCHLD}
_SENT_BY_KERNEL = 0x80  # si_code of the terminal's signals
# How long a signal to the group may take to end the witness, on a machine whose CPUs are all taken: a few time slices.
# A signal to the supervisor alone is passed on this much later.
_WITNESS_PATIENCE_MS = 200


class Witness:
    """A process in our group that ends when the group gets a signal, or when we do."""

    def __init__(self) -> None:
        self._pipe = os.pipe()
        self._start()

    def _start(self) -> None:
        # `cat` on a pipe of ours: it ends with us, whatever ends us.
        actions = [(os.POSIX_SPAWN_DUP2, self._pipe[0], 0), (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
        path = {"PATH": os.environ.get("PATH", os.defpath)}
        try:
            self.pid: int | None = os.posix_spawnp(
                "cat", ["cat"], path, file_actions=actions, setsigmask=[], setsigdef=FORWARDED
            )
        except OSError:  # no `cat` on the PATH: signals to the group then reach the program a second time through us
            self.pid = None
            return
        self._descriptor = os.pidfd_open(self.pid)

    def saw(self, number: int) -> bool:
        """Whether the whole group got this signal."""
        if self.pid is None:
            return False
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        if not poll.poll(_WITNESS_PATIENCE_MS):
            return False
        _, status = os.waitpid(self.pid, 0)
        os.close(self._descriptor)
        self.pid = None
        self._start()
        return os.WIFSIGNALED(status) and os.WTERMSIG(status) == number

    def dismiss(self) -> None:
        """End the witness."""
        for descriptor in self._pipe:
            os.close(descriptor)
        if self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            os.close(self._descriptor)


def block() -> set[int]:
    """Block the signals that `wait_for` takes up; call before any thread starts. Returns those not ignored."""
    heard: set[int] = {number for number in _WATCHED if signal.getsignal(number) != signal.SIG_IGN}
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
            from_terminal = information.si_code == _SENT_BY_KERNEL
            if not from_terminal and not witness.saw(information.si_signo):
                os.kill(child, information.si_signo)
            elif from_terminal:
                witness.saw(information.si_signo)  # it died of it too: a new one is needed
    finally:
        witness.dismiss()


def exit_code(status: int) -> int:
    """The exit code a shell shows for a wait status: 128 + the signal for a program that a signal ended."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
