"""The size of a batch: the bytes of the tensors and arrays in it."""

from itertools import islice
from typing import Any

from .tracebacks import comes_from_a_signal_handler

# Batches of few tensors, lists, tuples and dictionaries are measured each: so deep, so many parts.
_DEEPEST, _MOST_PARTS = 3, 64
# Others now and then, up to so many parts; of so many in one, the first ones tell what they are.
_MOST_OF_ANY, _MOST_LOOKED_AT = 1024, 4096
# How much of a batch was seen: but for parts that do not show what they hold, or not all parts, as they are too many.
_TOO_MANY, _IN_PART, _WHOLE = range(3)
# What a number takes where it is pickled; bytes and text take what they are long.
_NUMBER = 9
_HOLD_NOTHING = (int, float, complex, bool, str, bytes, type(None), type, type(len), type(lambda: None))


def bytes_of(batch: Any) -> int:
    """The bytes of the tensors in a batch; -1 where it is not made of a few dense tensors, lists, tuples and
    dictionaries alone."""
    try:
        return _counted(batch)
    except RuntimeError as error:  # a sparse tensor does not say
        if comes_from_a_signal_handler(error):
            raise
        return -1


def bytes_of_any(batch: Any) -> int:
    """The bytes of the tensors and arrays in a batch of any kind, as far as it is made of Python's own containers and
    of objects with attributes; -1 where too many parts were found, or only parts that do not show what they hold."""
    try:
        return _found(batch)
    except Exception as error:  # what the program has put there may be odd
        if comes_from_a_signal_handler(error):
            raise
        return -1


def pieces_of(batch: Any) -> tuple[int, int, bool]:
    """How many pieces of memory the tensors in a batch have, as far as `bytes_of_any` looks, 0 where that does not
    show; the bytes of all else in it, which a worker pickles; and whether a tensor is not in the memory of the CPU.
    """
    import torch

    try:
        with torch._C.DisableTorchFunction():
            arrays, plain, _ = _arrays(batch)
            tensors = [each for each in arrays if isinstance(each, torch.Tensor)]
            pickled = plain + sum(each.nbytes for each in arrays if not isinstance(each, torch.Tensor))
            if any(each.device.type != "cpu" for each in tensors):
                return len(tensors), pickled, True
            return len({each.untyped_storage().data_ptr() for each in tensors}), pickled, False
    except Exception as error:  # what the program has put there may be odd
        if comes_from_a_signal_handler(error):
            raise
        return 0, 0, False


def _found(batch: Any) -> int:
    import torch

    with torch._C.DisableTorchFunction():  # else a mode, or a class of tensors, would see that we look
        arrays, _, is_known = _arrays(batch)
        total = sum(each.nbytes for each in arrays)
    return total if is_known and (total or is_known == _WHOLE) else -1


def _arrays(batch: Any) -> tuple[list[Any], int, int]:
    """The tensors and arrays in a batch, the bytes of numbers, bytes and text, as far as was looked, and how much is
    known of it."""
    import torch

    arrays, plain, met, known = [], _plain(batch), 0, _WHOLE
    left, seen = [batch], {id(batch)}
    while left and met <= _MOST_OF_ANY:
        part = left.pop()
        met += 1
        is_array = type(part).__name__ == "ndarray" and type(part).__module__ == "numpy"
        if is_array or isinstance(part, torch.Tensor):
            arrays.append(part)
            continue
        found = _parts(part)
        if found is None:
            known = _IN_PART
        parts, count = found or ([], 0)
        held = [each for each in parts if not isinstance(each, _HOLD_NOTHING)]
        if first := parts[:_MOST_PARTS]:  # they tell what the others are
            plain += sum(map(_plain, first)) * count // len(first)
        inside = {id(each): each for each in held}
        left += [each for key, each in inside.items() if key not in seen]
        seen |= inside.keys()
    return arrays, plain, _TOO_MANY if left else known


def _plain(part: Any) -> int:
    if isinstance(part, (bytes, bytearray, str)):
        return len(part)
    return _NUMBER if isinstance(part, (int, float, complex)) else 0


def _parts(part: Any) -> tuple[list[Any], int] | None:
    """What is inside a part, or the first of it, and how many there are; None where that does not show."""
    if isinstance(part, _HOLD_NOTHING):
        return [], 0
    if isinstance(part, (list, tuple)):
        kind: Any = list if isinstance(part, list) else tuple
        inside, count = kind.__iter__(part), kind.__len__(part)
    else:
        try:
            named = part if isinstance(part, dict) else object.__getattribute__(part, "__dict__")
        except AttributeError:
            return None
        inside, count = iter(dict.values(named)), dict.__len__(named)
    return list(islice(inside, _MOST_LOOKED_AT)), count


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
