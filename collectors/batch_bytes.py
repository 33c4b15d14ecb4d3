"""The size of a batch: the bytes of the tensors and arrays in it."""

from typing import Any

# Batches of few tensors, lists, tuples and dictionaries are measured each: so deep, so many parts.
_DEEPEST, _MOST_PARTS = 3, 64
# Others now and then, and up to so many parts.
_MOST_OF_ANY = 1024
_HOLD_NOTHING = (int, float, complex, bool, str, bytes, type(None), type, type(len), type(lambda: None))


def bytes_of(batch: Any) -> int:
    """The bytes of the tensors in a batch; -1 where it is not made of a few dense tensors, lists, tuples and
    dictionaries alone."""
    try:
        return _counted(batch)
    except RuntimeError:  # a sparse tensor does not say
        return -1


def bytes_of_any(batch: Any) -> int:
    """The bytes of the tensors and arrays in a batch of any kind, as far as it is made of Python's own containers and
    of objects with attributes; -1 where none was found, or too many parts."""
    try:
        return _found(batch) or -1
    except Exception:  # what the program has put there may be odd
        return -1


def _found(batch: Any) -> int:
    import torch

    total, met = 0, 0
    left, seen = [batch], {id(batch)}
    with torch._C.DisableTorchFunctionSubclass():  # else a program's class of tensors would see that we look
        while left and met <= _MOST_OF_ANY:
            part = left.pop()
            met += 1
            is_array = type(part).__name__ == "ndarray" and type(part).__module__ == "numpy"
            if is_array or isinstance(part, torch.Tensor):
                total += part.nbytes
                continue
            inside = {id(each): each for each in _parts(part)}
            left += [each for key, each in inside.items() if key not in seen]
            seen |= inside.keys()
    return 0 if left else total


def _parts(part: Any) -> list[Any]:
    if isinstance(part, _HOLD_NOTHING):
        return []
    if isinstance(part, (list, tuple)):
        kind: Any = list if isinstance(part, list) else tuple
        return [*kind.__iter__(part)]
    if isinstance(part, dict):
        return [*dict.values(part)]
    try:
        return [*object.__getattribute__(part, "__dict__").values()]
    except AttributeError:
        return []


def _counted(batch: Any) -> int:
    kind = type(batch)
    if kind.__name__ == "Tensor" and kind.__module__ == "torch":
        return int(batch.nbytes)
    total, parts, level = 0, 0, [batch]
    for _ in range(_DEEPEST):
        deeper: list[Any] = []
        for part in level:
            kind = type(part)
            if kind in (list, tuple):
                deeper += part
            elif kind is dict:
                deeper += part.values()
            elif kind.__module__ == "torch" and kind.__name__ == "Tensor":
                total += part.nbytes
            elif kind not in (int, float, bool, str, bytes, type(None)):
                return -1
        parts += len(deeper)
        if not deeper:
            return total
        if parts > _MOST_PARTS:
            return -1
        level = deeper
    return -1
