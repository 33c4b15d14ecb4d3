"""Replacing functions of torch by timed ones, so that they can be put back and torch.compile does not see them."""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType
from typing import Any


def dress(wrapper: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Make `wrapper` pass for `original`: to pickle (by name), to inspect, and to torch.compile, which traces the
    original when it meets the wrapper."""
    functools.update_wrapper(wrapper, original)
    wrapper._torchdynamo_inline = original  # type: ignore[attr-defined]
    return wrapper


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
    """The code of a function or of a class's methods, and of all functions inside them."""
    if isinstance(value, type) and value.__module__ == module:
        for member in vars(value).values():
            yield from _codes_of(getattr(member, "__func__", member), module)
    elif isinstance(value, FunctionType):
        yield from _nested(inspect.unwrap(value).__code__)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


@dataclass
class Patches:
    """The replacements of one collector."""

    _undo: list[tuple[object, str, object]] = field(default_factory=list)

    def replace(self, owner: object, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Set `owner.name` to `make(original)`, dressed. An owner that lacks the name raises AttributeError."""
        original = owner.__dict__[name] if isinstance(owner, type) and name in owner.__dict__ else getattr(owner, name)
        setattr(owner, name, dress(make(original), original))
        self._undo.append((owner, name, original))

    def undo(self) -> None:
        """Put every original back."""
        while self._undo:
            owner, name, original = self._undo.pop()
            setattr(owner, name, original)
