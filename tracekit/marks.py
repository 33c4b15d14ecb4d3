"""What a program may say about itself: `tracekit.step()` and `tracekit.span(name)`. No effect when not recorded."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


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
    listener = _listener
    if listener is None:
        yield
        return
    start = listener.begin()
    try:
        yield
    finally:
        listener.end(name, start)


# In a recorded process the bootstrap is loaded. A program without torch that marks its own steps needs the agent too.
_bootstrap = sys.modules.get("tracekit_start")
if _bootstrap is not None:
    _bootstrap.wake()
