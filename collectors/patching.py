"""Replacing functions of torch by timed ones, so that they can be put back and torch.compile does not see them."""

import dis
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType
from typing import Any

# What stands in the names of importlib's own files.
_IMPORTLIB = "importlib_bootstrap_"
_STARS: dict[object, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
_OURS = os.path.dirname(os.path.abspath(__file__))


def dress(wrapper: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Make `wrapper` pass for `original`: to pickle (by name), to inspect, and to torch.compile, which traces the
    original when it meets the wrapper."""
    functools.update_wrapper(wrapper, original)
    wrapper._torchdynamo_inline = original  # type: ignore[attr-defined]
    return wrapper


def called_like(original: Callable[..., Any], wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """A function that hands all it is given to `wrapper`, and has the parameters and defaults of `original`, of which a
    program may ask its code."""
    if not isinstance(original, FunctionType) or original.__code__.co_posonlyargcount:
        return wrapper
    taken: list[str] = []
    given: list[str] = []
    for name, parameter in inspect.signature(original, follow_wrapped=False).parameters.items():
        kind = parameter.kind
        stars = _STARS.get(kind, "")
        if kind is inspect.Parameter.KEYWORD_ONLY and not any(each.startswith("*") for each in taken):
            taken.append("*")
        has_default = parameter.default is not inspect.Parameter.empty
        taken.append(f"{stars}{name}{'=None' if has_default else ''}")
        given.append(f"{name}={name}" if kind is inspect.Parameter.KEYWORD_ONLY else f"{stars}{name}")
    source = f"def {original.__name__}({', '.join(taken)}): return _tracekit_wrapper({', '.join(given)})"
    made: dict[str, Any] = {}
    exec(compile(source, os.path.join(_OURS, _IMPORTLIB + "called.py"), "exec"), {"_tracekit_wrapper": wrapper}, made)
    function = made[original.__name__]
    function.__defaults__, function.__kwdefaults__ = original.__defaults__, original.__kwdefaults__
    return function


def bound(known: inspect.Signature, *args: Any, **kwargs: Any) -> inspect.BoundArguments | None:
    """The arguments by name; None for those that torch does not take either, which it says itself."""
    try:
        return known.bind(*args, **kwargs)
    except TypeError:
        return None


def place_of(function: Callable[..., Any], parameter: str) -> int:
    """Where a parameter stands among the arguments; behind all of them, if there is none of that name."""
    names = list(inspect.signature(function).parameters)
    return names.index(parameter) if parameter in names else len(names)


def unseen_by_warnings() -> None:
    """Make warnings name what they would name without us: the program, or torch. They go up by a `stacklevel`, and do
    not count frames of importlib's own, which they know by what the file is called: so ours are called alike."""
    for name, module in list(sys.modules.items()):
        if name.startswith(__package__):
            for value in list(vars(module).values()):
                for function in _functions_of(value, name):
                    function.__code__ = _as_of_importlib(function.__code__)


def _as_of_importlib(code: CodeType) -> CodeType:
    folder, file = os.path.split(code.co_filename)
    if folder != _OURS:
        return code
    nested = (_as_of_importlib(each) if isinstance(each, CodeType) else each for each in code.co_consts)
    called = file if file.startswith(_IMPORTLIB) else _IMPORTLIB + file
    return code.replace(co_filename=os.path.join(folder, called), co_consts=tuple(nested))


def skip_our_frames(eval_frame: ModuleType) -> None:
    """Keep torch.compile from compiling our own functions where a graph break makes them run under it: it would break
    graphs at every clock reading. Functions that they call, the program's among them, are compiled as ever.
    `eval_frame` is `torch._dynamo.eval_frame`."""
    for name, module in list(sys.modules.items()):
        if name.startswith(__package__) or name == "tracekit.marks":
            for value in vars(module).values():
                for code in _codes_of(value, name):
                    eval_frame.skip_code(code)


def _codes_of(value: object, module: str) -> Iterator[CodeType]:
    """The code of a module's own function or class's methods, and of all functions inside them."""
    for function in _functions_of(value, module):
        yield from _nested(function.__code__)


def _functions_of(value: object, module: str) -> Iterator[FunctionType]:
    """A module's own function, or the methods of its class."""
    if isinstance(value, type) and value.__module__ == module:
        for member in vars(value).values():
            yield from _functions_of(getattr(member, "__func__", member), module)
    elif isinstance(value, FunctionType) and value.__module__ == module:
        yield inspect.unwrap(value)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def code_to_stand_in(original: Callable[..., Any]) -> CodeType | None:
    """The code that another function can take for its own, so that the original runs as if it were called itself; None
    where it needs more than its arguments. The other must be closed over nothing: code that has no use for what its
    function is closed over leaves holes in its frames, and Python crashes when somebody looks at their locals."""
    if not isinstance(original, FunctionType) or original.__closure__ or original.__defaults__:
        return None
    code = original.__code__
    if code.co_kwonlyargcount or any(
        instruction.opname.startswith(("LOAD_GLOBAL", "LOAD_NAME")) for instruction in dis.get_instructions(code)
    ):
        return None
    return code


_INHERITED = object()  # the owner had no such attribute of its own


@dataclass
class Patches:
    """The replacements of one collector."""

    _undo: list[tuple[object, str, object, object]] = field(default_factory=list)

    def replace(self, owner: object, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Set `owner.name` to `make(original)`, dressed. An owner that lacks the name raises AttributeError."""
        own = vars(owner).get(name, _INHERITED)
        original = inspect.getattr_static(owner, name) if isinstance(owner, type) else getattr(owner, name)
        replacement: object
        if isinstance(original, (staticmethod, classmethod)):  # what they hold is called, and stays static
            function = original.__func__
            replacement = type(original)(dress(make(function), function))
        else:
            replacement = dress(make(original), original)
        setattr(owner, name, replacement)
        self._undo.append((owner, name, own, replacement))

    def undo(self) -> None:
        """Put every original back, but where the program has replaced our replacement: it may hold on to it."""
        while self._undo:
            owner, name, own, replacement = self._undo.pop()
            if vars(owner).get(name) is not replacement:
                continue
            if own is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, own)
