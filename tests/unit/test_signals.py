"""Signals: exit codes, and telling a signal to the group from one to the supervisor alone."""

import os
import signal
import subprocess
import sys

import pytest

from tracekit.record import signals
from tracekit.record.signals import exit_code

# In a process group of its own: the signal must not reach the tests.
GROUP = """
import os, signal
from tracekit.record.signals import Witness, block

block()
witness = Witness()
first = witness.pid
os.kill(os.getpid(), signal.SIGUSR1)
alone = witness.saw(signal.SIGUSR1)
same = witness.pid == first
os.killpg(0, signal.SIGTERM)
group = witness.saw(signal.SIGTERM)
os.killpg(0, signal.SIGINT)
again = witness.saw(signal.SIGINT)
os.killpg(0, signal.SIGTERM)
os.killpg(0, signal.SIGHUP)  # before the witness of the first is replaced
again = again and witness.saw(signal.SIGTERM) and witness.saw(signal.SIGHUP) and not witness.saw(signal.SIGUSR2)
last = witness.pid
witness.dismiss()
print(alone, same, group, again, last != first)
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("no child left")
"""


@pytest.mark.parametrize(
    ("status", "code"), [(0, 0), (3 << 8, 3), (127 << 8, 127), (255 << 8, 255), (9, 137), (15, 143), (11 | 0x80, 139)]
)
def test_exit_code_is_a_shells(status: int, code: int) -> None:
    assert exit_code(status) == code


def test_witness_tells_a_signal_to_the_group_from_one_to_us() -> None:
    done = subprocess.run(
        [sys.executable, "-c", GROUP], capture_output=True, text=True, start_new_session=True, timeout=60
    )

    assert (done.stdout.splitlines(), done.stderr) == (["False True True True True", "no child left"], "")


def test_machine_without_the_witness_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a PATH without anything WHEN a recording starts THEN it starts: a group's signals are passed on as ours."""

    def none(*arguments: object, **options: object) -> int:
        raise FileNotFoundError(2, "No such file or directory", "cat")

    monkeypatch.setattr(os, "posix_spawnp", none)
    witness = signals.Witness()

    assert not witness.saw(signal.SIGINT)
    witness.dismiss()


def test_ignored_signals_stay_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """`nohup tracekit record …`: what the shell made the program ignore is not passed on to it."""
    blocked: list[set[int]] = []
    monkeypatch.setattr(signal, "pthread_sigmask", lambda how, numbers: blocked.append(set(numbers)))
    monkeypatch.setattr(
        signal, "getsignal", lambda number: signal.SIG_IGN if number == signal.SIGHUP else signal.SIG_DFL
    )

    heard = signals.block()

    assert heard == (signals.FORWARDED | {signal.SIGCHLD}) - {signal.SIGHUP}
    assert blocked == [heard]
