"""What a program may say about itself: `tracekit.step()` and `tracekit.span(name)`. Free of effect when not recorded."""

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

# Set in every process below `tracekit record`: the folder that takes the process's evidence.
SPOOL_VARIABLE = "TRACEKIT_SPOOL"


class Listener(Protocol):
    """What takes the marks in a recorded process."""

    def step(self) -> None: ...
    def begin(self) -> int: ...
    def end(self, name: str, start: int) -> None: ...


_listener: Listener | None = None


def listen(listener: Listener | None) -> None:
    """Send the marks of this process to `listener`; None sends them nowhere."""
    global _listener
    _listener = listener


def step() -> None:
    """Say that a step of the program's main loop ends here. Overrides the steps that tracekit would derive."""
    if _listener is not None:
        _listener.step()


@contextmanager
def span(name: str) -> Iterator[None]:
    """Record the time spent in the `with` block under a name."""
    if _listener is None:
        yield
        return
    start = _listener.begin()
    try:
        yield
    finally:
        if _listener is not None:
            _listener.end(name, start)


if SPOOL_VARIABLE in os.environ:
    # A program without torch that marks its own steps: nothing else would have started the agent.
    try:
        importlib.import_module("tracekit.collectors.agent").start()
    except ImportError:
        pass
