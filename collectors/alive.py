"""Objects that somebody else keeps."""

from collections.abc import Iterator
from typing import Generic, TypeVar
from weakref import ref

Kept = TypeVar("Kept")


class Alive(Generic[Kept]):
    """What somebody else keeps. No WeakSet: its code is not ours, and torch.compile would compile it as it lets torch
    import what makes us one."""

    def __init__(self) -> None:
        self._refs: dict[int, ref[Kept]] = {}

    def add(self, kept: Kept) -> None:
        refs, key = self._refs, id(kept)
        refs[key] = ref(kept, lambda _: refs.pop(key, None))

    def discard(self, kept: Kept) -> None:
        self._refs.pop(id(kept), None)

    def clear(self) -> None:
        self._refs.clear()

    def __iter__(self) -> Iterator[Kept]:
        return iter([kept for each in list(self._refs.values()) if (kept := each()) is not None])
