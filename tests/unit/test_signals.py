"""Signals: exit codes, and telling a signal to the group from one to the supervisor alone."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tracekit.record import signals
from tracekit.record.signals import exit_code

# In a process group of its own: the signal must not reach the tests.
GROUP = """
import os, signal, threading
from tracekit.record.signals import Witness, block

block()
witness = Witness()
first = witness.pid
os.kill(os.getpid(), signal.SIGUSR1)
alone = witness.saw(signal.SIGUSR1)
same = witness.pid == first
os.kill(os.getpid(), signal.SIGTERM)  # by one that is kept from the CPU before it comes to the witness
threading.Timer(0.03, os.kill, (witness.pid, signal.SIGTERM)).start()
late = witness.saw(signal.SIGTERM)
os.killpg(0, signal.SIGTERM)
group = witness.saw(signal.SIGTERM)
os.killpg(0, signal.SIGINT)
again = witness.saw(signal.SIGINT)
os.killpg(0, signal.SIGTERM)
os.killpg(0, signal.SIGHUP)  # before the witness of the first is replaced
again = again and witness.saw(signal.SIGTERM) and witness.saw(signal.SIGHUP) and not witness.saw(signal.SIGUSR2)
last = witness.pid
witness.dismiss()
print(alone, same, group, again, last != first, late)
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("no child left")
"""

PASSES_ON = """
import os, signal
from tracekit.record.signals import Witness, block, wait_for

heard = block()

def ending_of(send):
    witness = Witness()
    child = os.posix_spawnp("sleep", ["sleep", "30"], {"PATH": os.environ["PATH"]}, setsigmask=[])
    send()
    print(os.WTERMSIG(wait_for(child, heard, witness)), flush=True)

for number in (signal.SIGXCPU, signal.SIGVTALRM, signal.SIGRTMIN, signal.SIGRTMAX):
    ending_of(lambda: os.kill(os.getpid(), number))
ending_of(lambda: signal.setitimer(signal.ITIMER_REAL, 0.01))
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

    assert (done.stdout.splitlines(), done.stderr) == (["False True True True True True", "no child left"], "")


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

    def mask(how: int, numbers: set[int]) -> set[int]:
        blocked.append(set(numbers))
        return {signal.SIGALRM, signal.SIGCHLD}  # so it was started

    monkeypatch.setattr(signal, "pthread_sigmask", mask)
    monkeypatch.setattr(
        signal, "getsignal", lambda number: signal.SIG_IGN if number == signal.SIGHUP else signal.SIG_DFL
    )

    heard = signals.block()

    assert heard == (signals.FORWARDED | {signal.SIGCHLD}) - {signal.SIGHUP, signal.SIGALRM}
    assert blocked == [set(), heard]


def test_what_would_end_us_goes_to_the_program() -> None:
    """GIVEN signals that batch systems and alarms set before us send THEN each reaches the program and not us."""
    done = subprocess.run(
        [sys.executable, "-c", PASSES_ON], capture_output=True, text=True, start_new_session=True, timeout=60
    )

    expected = [signal.SIGXCPU, signal.SIGVTALRM, signal.SIGRTMIN, signal.SIGRTMAX, signal.SIGALRM]
    assert (done.stdout.split(), done.stderr) == ([str(int(number)) for number in expected], "")


def test_after_the_program_its_signals_end_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    unblocked: list[set[int]] = []
    monkeypatch.setattr(signal, "pthread_sigmask", lambda how, numbers: unblocked.append(set(numbers)))

    signals.unblock({signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM, signal.SIGXCPU, signal.SIGCHLD})

    assert unblocked == [{signal.SIGINT, signal.SIGTERM}]


def test_a_program_that_takes_no_signal_of_ours_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a program of somebody else, as of `sudo`."""
    refused: list[int] = []
    ends = iter([None, object()])

    def refuse(child: int, number: int) -> None:
        refused.append(number)
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "waitid", lambda *arguments: next(ends))
    monkeypatch.setattr(os, "waitpid", lambda child, flags: (child, 3 << 8))
    monkeypatch.setattr(os, "kill", refuse)
    monkeypatch.setattr(
        signal, "sigtimedwait", lambda heard, seconds: SimpleNamespace(si_signo=signal.SIGTERM, si_code=0)
    )

    witness: Any = SimpleNamespace(saw=lambda number: False, dismiss=lambda: None)

    assert signals.wait_for(1234, {signal.SIGTERM}, witness) == 3 << 8
    assert refused == [signal.SIGTERM]


def test_a_witness_can_be_dismissed_twice() -> None:
    witness = signals.Witness()
    witness.dismiss()
    witness.dismiss()
