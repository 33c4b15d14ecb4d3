"""Tracebacks that a program prints: without our frames, otherwise as ever."""

import sys
import threading
import traceback
from traceback import walk_tb
from types import SimpleNamespace
from typing import Any

import pytest

from tracekit.collectors import tracebacks
from tracekit.collectors.tracebacks import _WALKS, hide_our_frames, without_our_frames

OURS = compile("def wrapper(function):\n    return function()\n", tracebacks._OURS + "/layers.py", "exec")
NAMESPACE: dict[str, object] = {}
exec(OURS, NAMESPACE)
wrapper = NAMESPACE["wrapper"]  # a function of ours, around one of the program's


@pytest.fixture
def hooked(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """Hooks that keep what reaches them, below ours."""
    seen: list[BaseException] = []

    def hook(kind: object, error: BaseException, trace: object) -> None:
        assert error.__traceback__ is trace or names(error) == names_in(trace)
        seen.append(error)

    def ignored_hook(arguments: Any) -> None:
        assert names(arguments.exc_value) == names_in(arguments.exc_traceback)
        seen.append(arguments.exc_value)

    for walk in _WALKS:
        monkeypatch.setattr(traceback, walk, getattr(traceback, walk))
    monkeypatch.setattr(sys, "excepthook", hook)
    monkeypatch.setattr(sys, "unraisablehook", ignored_hook)
    monkeypatch.setattr(threading, "excepthook", lambda arguments: seen.append(arguments.exc_value))
    hide_our_frames()
    return seen


def users() -> None:
    raise ValueError("the program's")


def caught(function: object = users) -> BaseException:
    try:
        wrapper(lambda: wrapper(function))  # type: ignore[operator]
    except BaseException as error:
        return error
    raise AssertionError


def names(error: BaseException) -> list[str]:
    return names_in(error.__traceback__)


def names_in(trace: Any) -> list[str]:
    return [frame.f_code.co_name for frame, _ in walk_tb(trace)]  # Python's own: also where ours are left out


def crash(error: BaseException) -> None:
    sys.excepthook(type(error), error, error.__traceback__)


def test_our_frames_are_left_out_and_the_others_stay() -> None:
    error = caught()
    assert names(error) == ["caught", "wrapper", "<lambda>", "wrapper", "users"]

    cleaned = without_our_frames(error.__traceback__)

    kept = traceback.extract_tb(cleaned)
    assert [frame.name for frame in kept] == ["caught", "<lambda>", "users"]
    theirs = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.name != "wrapper"]
    assert [(f.lineno, f.line, f.filename) for f in kept] == [(f.lineno, f.line, f.filename) for f in theirs]


def test_traceback_of_our_frames_only_and_none_at_all() -> None:
    assert without_our_frames(None) is None
    assert names(caught(users))[1] == "wrapper"
    inner = caught(users).__traceback__
    assert inner and inner.tb_next
    alone = type(inner)(None, inner.tb_next.tb_frame, inner.tb_next.tb_lasti, inner.tb_next.tb_lineno)
    assert without_our_frames(alone) is None


def test_causes_and_contexts_are_cleaned(hooked: list[BaseException]) -> None:
    def chained() -> None:
        try:
            raise caught()
        except ValueError as first:
            try:
                raise caught() from first
            except ValueError:
                raise KeyError("last") from caught()

    error = caught(chained)
    crash(error)

    parts = [error, error.__cause__, error.__context__, error.__context__ and error.__context__.__cause__]
    assert hooked == [error] and all(parts)
    assert not any("wrapper" in names(part) for part in parts if part)
    assert names(error) == ["caught", "<lambda>", "chained"]


def test_members_of_a_group_are_cleaned(hooked: list[BaseException]) -> None:
    members = [caught(), caught()]
    group = BaseExceptionGroup("many", [members[0], BaseExceptionGroup("inner", [members[1]])])

    crash(group)

    assert not any("wrapper" in names(member) for member in members)


def test_cycles_and_long_chains_end(hooked: list[BaseException]) -> None:
    first, second = caught(), caught()
    first.__context__, second.__context__ = second, first
    first.__cause__ = first
    crash(first)
    assert not any("wrapper" in names(error) for error in (first, second))

    last = newest = caught()
    for _ in range(5_000):  # deeper than Python's recursion limit
        error = caught()
        error.__context__, newest = newest, error
    crash(newest)
    assert "wrapper" not in names(last)


def test_hooks_of_threads(hooked: list[BaseException]) -> None:
    error = caught()

    threading.excepthook(SimpleNamespace(exc_type=ValueError, exc_value=error, exc_traceback=None, thread=None))  # type: ignore[arg-type]
    threading.excepthook(SimpleNamespace(exc_type=SystemExit, exc_value=None, exc_traceback=None, thread=None))  # type: ignore[arg-type]

    assert hooked == [error, None]
    assert "wrapper" not in names(error)


def test_what_is_formatted_is_without_our_frames(hooked: list[BaseException]) -> None:
    """Also of causes and of members of groups, and with the error as it is."""
    error = BaseExceptionGroup("many", [caught()])
    error.__cause__ = caught()

    text = "".join(traceback.format_exception(error))

    assert text.count("in users\n") == 2 and "wrapper\n" not in text
    listed = traceback.extract_tb(error.__cause__.__traceback__)
    assert [frame.name for frame in listed] == ["caught", "<lambda>", "users"]
    assert [frame.f_code.co_name for frame, _ in traceback.walk_tb(caught().__traceback__)] == [
        "caught",
        "<lambda>",
        "users",
    ]
    assert "wrapper" in names(error.__cause__) and not hooked


def test_exceptions_that_are_ignored_are_without_our_frames(hooked: list[BaseException]) -> None:
    class Closes:
        def __del__(self) -> None:
            wrapper(users)  # type: ignore[operator]

    Closes()
    assert [names(error) for error in hooked] == [["__del__", "users"]]
