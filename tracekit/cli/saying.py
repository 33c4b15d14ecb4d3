"""What commands say beside their output."""

import os
import select
import sys
from typing import TextIO


def say(line: str) -> None:
    """A line on stderr, marked as ours, with what a terminal would obey made visible. Where that is closed, full or
    read by nobody, nobody can be told: the exit code is the same."""
    from tracekit.analysis.words import visible

    if sys.stderr is None:  # print would take stdout then, which is the program's
        return
    try:
        print(f"tracekit: {visible(line)}", file=sys.stderr, flush=True)
    except OSError:
        _lead_nowhere(sys.stderr)


def would_wait() -> bool:
    """Whether a line on stderr would wait until somebody reads what is there."""
    if sys.stderr is None:
        return False
    poll = select.poll()
    try:
        poll.register(sys.stderr, select.POLLOUT)
        return not poll.poll(0)
    except (OSError, ValueError):  # there is none
        return False


def forget_reader() -> bool:
    """Whether the reader of stdout has left, as `head` does; what is written there from now on goes nowhere."""
    if sys.stdout is None:
        return False
    poll = select.poll()
    poll.register(sys.stdout, 0)
    has_left = any(happened & (select.POLLERR | select.POLLHUP) for _, happened in poll.poll(0))
    if has_left:
        _lead_nowhere(sys.stdout)
    return has_left


def _lead_nowhere(stream: TextIO) -> None:
    """What still waits in it would fail again as Python ends, which then leaves with 120."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())
