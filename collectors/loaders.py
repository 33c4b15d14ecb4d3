"""Loaders: which DataLoader of the program is which, told by where the program makes it."""

import itertools
import os
import sys
import weakref
from types import FrameType
from typing import Any

_OURS = os.path.dirname(os.path.abspath(__file__))
# A place is told by so many calls that lead to it; a loader made in a recursion deeper than that is one with others.
_DEEPEST = 64
# Of more that one place makes before any is used, the rest share a name.
_MOST_IN_ONE_PLACE = 64
# What is told of a loader; a program may have put anything there.
_ATTRIBUTES = (
    "num_workers", "prefetch_factor", "in_order", "pin_memory", "persistent_workers", "batch_size", "drop_last",
)  # fmt: skip
_ITERABLE = 1  # of torch's `_DatasetKind`

Place = tuple[tuple[str, int, int], ...]  # file, line, instruction


class Loaders:
    """Names loaders `loader`, `loader#2`, … in the order in which the program first comes to the places that make them.

    The same place, with the same calls leading to it, makes the same loader again: one made anew for every epoch keeps
    its name, in this run and in the next. Where it makes several before the first of them is used, as a comprehension
    does, each has its own. One that was not seen made is told by itself.
    """

    def __init__(self) -> None:
        self._names: dict[tuple[Place, int] | int, str] = {}
        self._unused: dict[str, weakref.ref[Any]] = {}  # the loader that was made last under a name, until it is used
        self._made: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._facts: dict[str, dict[str, Any]] = {}

    def make(self) -> str:
        """The program is about to make a loader, in a function that called this one. The loader's name."""
        place = _place(sys._getframe(1))
        turn = next(turn for turn in itertools.count() if not self._is_taken((place, turn)))
        name = self._name_of((place, turn))
        facts = self.facts_of(name)
        facts["made"] = facts.get("made", 0) + 1
        if place:
            path, line, _ = place[0]
            facts["place"] = f"{os.path.basename(path)}:{line}"
        return name

    def keep(self, loader: Any, name: str) -> None:
        """The loader that was made has this name."""
        key = id(loader)
        self._unused[name] = weakref.ref(loader)
        self._made[key] = (weakref.ref(loader, lambda _: self._made.pop(key, None)), name)

    def name(self, loader: Any) -> str:
        if id(loader) not in self._made:
            self.keep(loader, self._name_of(id(loader)))
        return self._made[id(loader)][1]

    def used(self, loader: Any) -> None:
        """The program iterates over a loader: what its settings are now."""
        facts = {key: getattr(loader, key, None) for key in _ATTRIBUTES}
        facts |= {
            "iterable": loader._dataset_kind == _ITERABLE,
            "sampler": type(sampler_of(loader._index_sampler)).__name__,
            "has_generator": loader.generator is not None,
            "start_method": getattr(loader.multiprocessing_context, "_name", None),
        }
        known = {key: value for key, value in facts.items() if type(value) in (int, bool, str)}
        name = self.name(loader)
        self.facts_of(name).update(known)
        if name in self._unused and self._unused[name]() is loader:
            del self._unused[name]

    def facts_of(self, name: str) -> dict[str, Any]:
        """What is told of a loader, to be added to."""
        return self._facts.setdefault(name, {})

    def facts(self) -> dict[str, object]:
        return {"loaders": self._facts}

    def _is_taken(self, place: tuple[Place, int]) -> bool:
        """Whether a loader from there waits to be used."""
        name = self._names.get(place)
        return place[1] < _MOST_IN_ONE_PLACE and name in self._unused and self._unused[name]() is not None

    def _name_of(self, place: tuple[Place, int] | int) -> str:
        number = len(self._names) + 1
        return self._names.setdefault(place, "loader" if number == 1 else f"loader#{number}")


def sampler_of(index_sampler: Any) -> Any:
    """What decides the order, inside torch's samplers of batches: a loader that was given one of these has a sampler
    beside it that nobody asks."""
    kind = type(index_sampler)
    while kind.__name__ == "BatchSampler" and kind.__module__ == "torch.utils.data.sampler":
        index_sampler = index_sampler.sampler
        kind = type(index_sampler)
    return index_sampler


def _place(frame: FrameType | None) -> Place:
    """The calls that led here, innermost first, less torch's and ours."""
    torch = os.path.dirname(os.path.abspath(sys.modules["torch"].__file__ or ""))
    calls: list[tuple[str, int, int]] = []
    while frame is not None and len(calls) < _DEEPEST:
        path = frame.f_code.co_filename
        if not path.startswith((torch + os.sep, _OURS + os.sep)):
            calls.append((path, frame.f_lineno, frame.f_lasti))
        frame = frame.f_back
    return tuple(calls)
