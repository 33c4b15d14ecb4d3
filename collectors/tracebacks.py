"""A traceback is put into words as it would be without us: the frames of our wrappers are left out."""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from traceback import walk_tb
from types import FrameType, TracebackType
from typing import Any

_OURS = os.path.dirname(os.path.abspath(__file__))
# What the functions of `traceback` find frames by. The second one is private, and not sure to stay.
_WALKS = ("walk_tb", "_walk_tb_with_full_positions", "walk_stack")


def hide_our_frames() -> None:
    """Filter the tracebacks that reach the hooks of the interpreter, then hand them on; and those that are formatted,
    by the program, by logging, or by a loader's worker for the program."""
    hook, thread_hook, ignored_hook = sys.excepthook, threading.excepthook, sys.unraisablehook

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        _clean(error)
        hook(kind, error, without_our_frames(trace))

    def unraisablehook(arguments: Any) -> None:
        kind, error, trace, *others = arguments
        if error is not None:
            _clean(error)
        ignored_hook(type(arguments)((kind, error, without_our_frames(trace), *others)))

    def thread_excepthook(arguments: threading.ExceptHookArgs) -> None:
        if arguments.exc_value is not None:
            _clean(arguments.exc_value)
        thread_hook(arguments)

    sys.excepthook, threading.excepthook, sys.unraisablehook = excepthook, thread_excepthook, unraisablehook
    for name in _WALKS:
        if hasattr(traceback, name):
            setattr(traceback, name, _less_our_frames(getattr(traceback, name)))


def _less_our_frames(walk: Callable[..., Any]) -> Callable[..., Any]:
    def walk_less(*args: Any, **kwargs: Any) -> Iterator[Any]:
        if None in (*args, *kwargs.values()):  # a stack from where it is asked for, by counting frames
            return walk(*args, **kwargs)
        return (entry for entry in walk(*args, **kwargs) if not _is_ours(entry[0]))

    return walk_less


def without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    """The same traceback less the frames of files in this folder."""
    kept = []
    while trace is not None:
        if not _is_ours(trace.tb_frame):
            kept.append(trace)
        trace = trace.tb_next
    result = None
    for entry in reversed(kept):
        result = TracebackType(result, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return result


def _is_ours(frame: FrameType) -> bool:
    return os.path.dirname(frame.f_code.co_filename) == _OURS


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
    codes = {*map(_code_of, handlers)} - {None}
    return any(frame.f_code in codes for frame, _ in walk_tb(error.__traceback__))


def _code_of(handler: Any) -> Any:
    while isinstance(handler, partial):
        handler = handler.func
    code = getattr(getattr(handler, "__func__", handler), "__code__", None)
    return code or getattr(vars(type(handler)).get("__call__"), "__code__", None)
