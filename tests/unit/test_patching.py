"""Replacing functions: put in, put back, and not to be told from the originals."""

import functools
import inspect
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

from tracekit.collectors.patching import Patches, _codes_of, called_like, code_to_stand_in, dress, skip_our_frames

calls: list[str] = []


def counted(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        calls.append(original.__name__)
        return original(*args, **kwargs)

    return call


def function(x: int, *, y: int = 2) -> int:
    """What it does."""
    return x + y


class Base:
    def method(self, x: int) -> tuple[str, int]:
        return type(self).__name__, x

    @staticmethod
    def static(x: int) -> int:
        return -x

    @classmethod
    def made(cls, x: int) -> tuple[str, int]:
        return cls.__name__, x


class Child(Base):
    pass


@pytest.fixture(autouse=True)
def no_calls() -> Iterator[None]:
    calls.clear()
    yield
    assert function.__module__ == __name__ and not hasattr(function, "_torchdynamo_inline")


def here() -> ModuleType:
    return sys.modules[__name__]


def test_function_of_a_module_is_replaced_and_put_back() -> None:
    original, patches = function, Patches()
    patches.replace(here(), "function", counted)

    assert function is not original
    assert function(1, y=5) == 6 and calls == ["function"]
    patches.undo()
    assert function is original
    patches.undo()  # twice does no harm
    assert function is original


def test_replacement_passes_for_the_original() -> None:
    original, patches = function, Patches()
    patches.replace(here(), "function", counted)
    try:
        assert (function.__name__, function.__qualname__, function.__doc__, function.__module__) == (
            original.__name__,
            original.__qualname__,
            original.__doc__,
            original.__module__,
        )
        assert inspect.signature(function) == inspect.signature(original)
        assert inspect.unwrap(function) is original
        assert function._torchdynamo_inline is original  # type: ignore[attr-defined]
        assert pickle.dumps(function) == reference
        assert pickle.loads(reference) is function
    finally:
        patches.undo()
    assert pickle.loads(reference) is original


reference = pickle.dumps(function)


@pytest.mark.parametrize("owner", [Base, Child])
@pytest.mark.parametrize(("name", "expected"), [("method", ("Child", 3)), ("static", -3), ("made", ("Child", 3))])
def test_method_of_any_kind_own_or_inherited(owner: type, name: str, expected: object) -> None:
    before, patches = dict(vars(owner)), Patches()
    patches.replace(owner, name, counted)

    assert getattr(Child(), name)(3) == expected
    if name != "method":
        assert getattr(Child, name)(3) == expected
    assert set(calls) == {name}
    if owner is Child:
        calls.clear()
        getattr(Base(), name)(3)
        assert calls == []

    patches.undo()
    assert dict(vars(owner)) == before  # what was inherited is inherited again


def test_replacements_stack() -> None:
    original, first, second = function, Patches(), Patches()
    first.replace(here(), "function", counted)
    second.replace(here(), "function", counted)
    assert function(1) == 3 and len(calls) == 2

    second.undo()
    assert function(1) == 3 and len(calls) == 3
    first.undo()
    assert function is original


def test_what_the_program_put_over_ours_stays() -> None:
    """GIVEN a program that replaced our replacement WHEN a collector switches itself off THEN the program's stays."""
    original, patches = function, Patches()
    patches.replace(here(), "function", counted)
    ours = function

    @functools.wraps(ours)
    def theirs(x: int) -> int:
        return 10 * ours(x)

    here().function = theirs  # type: ignore[attr-defined]
    try:
        patches.undo()
        assert here().function is theirs
        assert theirs(1) == 30
    finally:
        here().function = original  # type: ignore[attr-defined]


def test_name_that_is_not_there() -> None:
    patches = Patches()
    for owner in (here(), Base):
        with pytest.raises(AttributeError):
            patches.replace(owner, "nothing", counted)
    patches.undo()


def test_codes_of_nested_functions_are_found() -> None:
    codes = {code.co_name for code in _codes_of(counted, __name__)}
    assert codes == {"counted", "call"}
    assert {"method", "static", "made"} <= {code.co_name for code in _codes_of(Base, __name__)}
    assert list(_codes_of(Base, "elsewhere")) == []
    assert list(_codes_of(len, __name__)) == list(_codes_of(3, __name__)) == []


def test_codes_of_a_dressed_function_are_the_originals() -> None:
    """A wrapper of ours around a function of torch must not take torch's function from torch.compile."""
    assert {code.co_name for code in _codes_of(dress(counted(function), function), __name__)} <= {"function"}


def test_all_our_code_and_no_other_is_skipped() -> None:
    skipped: list[CodeType] = []
    eval_frame = ModuleType("eval_frame")
    eval_frame.skip_code = skipped.append  # type: ignore[attr-defined]

    skip_our_frames(eval_frame)

    files = {code.co_filename.rpartition("/")[2] for code in skipped}
    assert "patching.py" in files
    assert not {"inspect.py", "dataclasses.py", "functools.py", "contextlib.py"} & files  # only imported by ours
    assert {"replace", "undo", "skip_our_frames"} <= {code.co_name for code in skipped}


class Doubling:
    """As torch's module call is: it needs its arguments alone."""

    def act(self, value: Any) -> Any:
        return value + value


def stand_in(*args: Any) -> Any:
    """A wrapper that is closed over nothing."""
    calls.append("wrapped")
    return Doubling.act(*args)


def test_originals_code_stands_in_for_a_wrapper() -> None:
    wrapper = FunctionType(stand_in.__code__, globals())
    code = code_to_stand_in(Doubling.act)
    assert code is not None

    wrapper.__code__ = code
    calls.clear()
    assert wrapper(Doubling(), 3) == 6
    with pytest.raises(TypeError) as caught:
        wrapper(Doubling(), None)
    assert [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)][1:] == ["act"]
    assert calls == []

    wrapper.__code__ = stand_in.__code__
    assert wrapper(Doubling(), 3) == 6
    assert calls == ["wrapped"]


def test_locals_of_a_frame_that_stands_in_can_be_looked_at() -> None:
    wrapper = FunctionType(stand_in.__code__, globals())
    code = code_to_stand_in(Doubling.act)
    assert code is not None
    wrapper.__code__ = code
    seen: list[dict[str, Any]] = []

    class Looks:
        def __add__(self, other: object) -> int:
            seen.append(dict(sys._getframe(1).f_locals))
            return 0

    value = Looks()
    assert wrapper(None, value) == 0
    assert seen == [{"self": None, "value": value}]


def test_code_that_needs_more_than_its_arguments_cannot_stand_in() -> None:
    needs: list[Callable[..., Any]] = [
        lambda value: len(calls) + value,  # global names
        function,  # a keyword of its own
        counted(function),  # what it is closed over
        lambda value, by=2: value * by,
        len,
    ]
    assert [code_to_stand_in(one) for one in needs] == [None] * len(needs)


def _default(of: object) -> None: ...


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((1,), {}),
        ((1, 2, 3), {"key": 4}),
        ((1,), {"second": [5], "more": 6, "args": 7, "wrapper": 8}),
        ((), {}),
        ((1,), {"first": 2}),
    ],
)
def test_what_is_called_like_the_original_is_taken_for_it(arguments: tuple[Any, ...], words: dict[str, Any]) -> None:
    """It has the original's parameters and defaults, whoever asks for them, and takes what the original takes."""

    def original(first: Any, second: Any = _default, *rest: Any, key: Any = _default, **others: Any) -> object:
        return first, second, rest, key, others

    def wrapper(*args: Any, **kwargs: Any) -> object:
        return original(*args, **kwargs)

    ours = dress(called_like(original, wrapper), original)
    count = original.__code__.co_argcount + original.__code__.co_kwonlyargcount + 2
    assert ours.__code__.co_varnames == original.__code__.co_varnames[:count]
    assert inspect.getfullargspec(ours) == inspect.getfullargspec(original)
    assert ours.__defaults__ == original.__defaults__ and ours.__kwdefaults__ == original.__kwdefaults__
    assert outcome(ours, arguments, words) == outcome(original, arguments, words)


def outcome(function: Callable[..., Any], arguments: tuple[Any, ...], words: dict[str, Any]) -> object:
    try:
        return function(*arguments, **words)
    except TypeError as error:
        return str(error)
