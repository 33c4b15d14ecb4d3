"""A program that crashes prints the traceback it would print without us: the frames of our wrappers are left out."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from traceback import walk_tb
from types import TracebackType
from typing import Any

_OURS = os.path.dirname(os.path.abspath(__file__))


def hide_our_frames() -> None:
    """Filter the tracebacks that reach `sys.excepthook` and `threading.excepthook`, then hand them on."""
    hook, thread_hook = sys.excepthook, threading.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        _clean(error)
        hook(kind, error, without_our_frames(traceback))

    def thread_excepthook(arguments: threading.ExceptHookArgs) -> None:
        if arguments.exc_value is not None:
            _clean(arguments.exc_value)
        thread_hook(arguments)

    sys.excepthook, threading.excepthook = excepthook, thread_excepthook


def worded_without_us(original: Callable[..., None]) -> Callable[..., None]:
    """In place of `__init__` of torch's `ExceptionWrapper`, which turns an exception into text in a loader's worker."""

    def __init__(wrapper: Any, exc_info: Any = None, *args: Any, **kwargs: Any) -> None:
        kind, error, traceback = exc_info or sys.exc_info()
        if isinstance(error, BaseException):
            _clean(error)
        original(wrapper, (kind, error, without_our_frames(traceback)), *args, **kwargs)

    return __init__


def without_our_frames(traceback: TracebackType | None) -> TracebackType | None:
    """The same traceback less the frames of files in this folder."""
    kept = []
    while traceback is not None:
        if os.path.dirname(traceback.tb_frame.f_code.co_filename) != _OURS:
            kept.append(traceback)
        traceback = traceback.tb_next
    result = None
    for entry in reversed(kept):
        result = TracebackType(result, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return result


def _clean(error: BaseException) -> None:
    """Clean the error, its causes and contexts, and the members of groups: they may form cycles and long chains."""
    seen: dict[int, BaseException] = {}
    waiting = [error]
    while waiting:
        error = waiting.pop()
        if id(error) not in seen:
            seen[id(error)] = error
            error.__traceback__ = without_our_frames(error.__traceback__)
            waiting += [other for other in (error.__cause__, error.__context__) if other is not None]
            if isinstance(error, BaseExceptionGroup):
                waiting += error.exceptions


def comes_from_a_signal_handler(error: BaseException) -> bool:
    """Whether a signal handler of the program is among the functions that the exception came through."""
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {getattr(getattr(handler, "__func__", handler), "__code__", None) for handler in handlers} - {None}
    return any(frame.f_code in codes for frame, _ in walk_tb(error.__traceback__))
