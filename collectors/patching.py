"""Replacing functions of torch by timed ones, so that they can be put back and torch.compile does not see them."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


def dress(wrapper: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Make `wrapper` pass for `original`: to pickle (by name), to inspect, and to torch.compile, which traces the
    original when it meets the wrapper and does not compile the wrapper's own frame."""
    functools.update_wrapper(wrapper, original)
    wrapper._torchdynamo_inline = original  # type: ignore[attr-defined]
    from torch._C._dynamo.eval_frame import skip_code

    skip_code(wrapper.__code__)
    return wrapper


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
