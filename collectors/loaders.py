"""Loaders: which DataLoader of the program is which, told by where the program makes it."""

import os
import sys
import weakref
import zlib
from itertools import islice
from multiprocessing import current_process
from numbers import Integral
from operator import is_
from types import FrameType
from typing import Any

_OURS = os.path.dirname(os.path.abspath(__file__))
# A place is told by so many calls that lead to it; a loader made in a recursion deeper than that is one with others.
_DEEPEST = 64
# Of more that one place makes in a row, the rest share a name.
_MOST_IN_ONE_PLACE = 64
# What is told of a loader; a program may have put anything there.
_ATTRIBUTES = (
    "num_workers", "prefetch_factor", "in_order", "pin_memory", "persistent_workers", "batch_size", "drop_last",
)  # fmt: skip
# Of what is told of a loader, torch lets a program set these after it is made.
_MAY_CHANGE = ("num_workers", "prefetch_factor", "in_order", "pin_memory", "generator")
# A place whose loaders differ in one of these makes more than one kind of loader.
_ALIKE = (
    "num_workers", "prefetch_factor", "in_order", "persistent_workers", "iterable", "sampler", "has_generator",
)  # fmt: skip
_ITERABLE = 1  # of torch's `_DatasetKind`
_NOT_SEEN = -1
# Where torchdata has loaders that are torch's with a state to be saved: copies of most of its code.
TORCHDATA = "torchdata.stateful_dataloader"
# Where samplers of batches have the one that they ask.
_WITHIN = {
    ("torch.utils.data.sampler", "BatchSampler"): "sampler",
    ("accelerate.data_loader", "BatchSamplerShard"): "batch_sampler",  # those of one process
    ("accelerate.data_loader", "SkipBatchSampler"): "batch_sampler",  # but for the first ones
}

_DATA_SETS_WITHIN = {
    "Subset": "dataset",
    "ConcatDataset": "datasets",
    "ChainDataset": "datasets",
    "StackDataset": "datasets",
}
_MOST_NESTED, _MOST_WITHIN = 4, 64

Place = tuple[tuple[str, int, int], ...]  # file, line, instruction


class Loaders:
    """Names loaders `loader`, `loader#2`, … in the order in which the program first comes to the places that make them.

    The same place, with the same calls leading to it, makes the same loader again: one made anew for every epoch keeps
    its name, in this run and in the next. Where it makes several before the program iterates over any, as a
    comprehension does, each has its own. One that was not seen made, as where it is unpickled, is told by where
    it is used first.
    """

    def __init__(self) -> None:
        self._names: dict[tuple[Place, int], str] = {}
        self._uses = 0  # how often the program has begun to iterate over some loader
        self._last: dict[Place, tuple[int, int]] = {}  # when a place made its last one, in uses, and which it was
        self._made: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._seen: dict[int, list[Any]] = {}  # of loaders that were iterated over, what they had then
        self._facts: dict[str, dict[str, Any]] = {}

    def make(self) -> str:
        """The program is about to make a loader, in a function that called this one. The loader's name."""
        place = _place(sys._getframe(1))
        uses, turn = self._last.get(place, (-1, 0))
        turn = min(turn + 1, _MOST_IN_ONE_PLACE - 1) if uses == self._uses else 0
        self._last[place] = self._uses, turn
        name = self._name_of((place, turn))
        facts = self.facts_of(name)
        facts["made"] = facts.get("made", 0) + 1
        facts["origin"] = _mark_of(place, turn)
        if place:
            path, line, _ = place[0]
            facts["place"] = f"{os.path.basename(path)}:{line}"
        return name

    def keep(self, loader: Any, name: str) -> None:
        """The loader that was made has this name."""
        key = id(loader)
        self._made[key] = (weakref.ref(loader, lambda _: self._forget(key)), name)

    def _forget(self, key: int) -> None:
        self._made.pop(key, None)
        self._seen.pop(key, None)

    def name(self, loader: Any) -> str:
        if id(loader) not in self._made:
            self.keep(loader, self._name_of((_place(sys._getframe(1)), _NOT_SEEN)))
        return self._made[id(loader)][1]

    def iterated(self) -> None:
        """The program begins to iterate over some loader."""
        self._uses += 1

    def used(self, loader: Any) -> None:
        """What the settings of a loader are, now that the program iterates over it."""
        start_method, daemonic = _start_method(loader), current_process().daemon
        has = [*(getattr(loader, key, None) for key in _MAY_CHANGE), start_method, daemonic]
        had = self._seen.get(id(loader))
        if had is not None and all(map(is_, has, had)):
            return  # once more with the same; the rest takes 60 us
        self._seen[id(loader)] = has
        facts = {key: getattr(loader, key, None) for key in _ATTRIBUTES}
        facts |= {
            "iterable": loader._dataset_kind == _ITERABLE,
            "sampler": type(sampler_of(loader._index_sampler)).__name__,
            "has_generator": loader.generator not in (None, sys.modules["torch"].default_generator),
            "prepares": getattr(loader, "worker_init_fn", None) is not None,
            "told_epochs": _hears_of_epochs(loader.dataset),
            "pin_memory": bool(loader.pin_memory) and _can_pin(),
            "start_method": start_method,
            "daemonic": daemonic,
            "stateful": "StatefulDataLoader" in [each.__name__ for each in type(loader).__mro__],
        }
        plain = {key: _plain(value) for key, value in facts.items()}
        known = {key: value for key, value in plain.items() if type(value) in (int, bool, str)}
        told = self.facts_of(self.name(loader))
        told.setdefault("made", 0)
        if any(told.get(key, known.get(key)) != known.get(key) for key in _ALIKE):
            told["varied"] = True
        told.update(known)

    def facts_of(self, name: str) -> dict[str, Any]:
        """What is told of a loader, to be added to."""
        return self._facts.setdefault(name, {})

    def facts(self) -> dict[str, object]:
        return {"loaders": self._facts}

    def _name_of(self, place: tuple[Place, int]) -> str:
        number = len(self._names) + 1
        return self._names.setdefault(place, "loader" if number == 1 else f"loader#{number}")


def sampler_of(index_sampler: Any) -> Any:
    """What decides the order, inside samplers of batches: a loader that was given one of these has a sampler beside it
    that nobody asks."""
    while inside := within(index_sampler):
        index_sampler = getattr(index_sampler, inside)
    return index_sampler


def within(sampler: Any) -> str:
    """The attribute where a sampler of batches, torch's or Accelerate's, has the one that it asks; "" for others."""
    return _WITHIN.get((type(sampler).__module__, type(sampler).__name__), "")


def _hears_of_epochs(data_set: Any, depth: int = _MOST_NESTED) -> bool:
    """Whether a data set, or one within those of torch's, has a method by which the program tells it the epoch."""
    if hasattr(type(data_set), "set_epoch"):
        return True
    inside = _DATA_SETS_WITHIN.get(type(data_set).__name__, "")
    if not depth or not inside or type(data_set).__module__ != "torch.utils.data.dataset":
        return False
    found = getattr(data_set, inside)
    several = found.values() if isinstance(found, dict) else found if isinstance(found, list | tuple) else [found]
    return any(_hears_of_epochs(each, depth - 1) for each in islice(several, _MOST_WITHIN))


def _can_pin() -> bool:
    """Whether torch pins what it is asked to: else it warns, and has no thread for it."""
    torch = sys.modules["torch"]
    return bool(getattr(torch, "accelerator", torch.cuda).is_available())


def _plain(value: object) -> object:
    """A whole number of another type, as of numpy, as Python's own."""
    return int(value) if type(value) not in (int, bool) and isinstance(value, Integral) else value


def _start_method(loader: Any) -> str | None:
    """How it starts its workers; looked up without deciding it for the program."""
    multiprocessing = sys.modules["multiprocessing"]
    own = getattr(loader.multiprocessing_context, "_name", None)
    usual = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    return own or usual


def _mark_of(place: Place, turn: int) -> str:
    """Tells a place, and which of its loaders, from others, in whatever folder the program lies."""
    words = [f"{os.path.basename(path)}:{line}:{instruction}" for path, line, instruction in place]
    return f"{zlib.crc32(' '.join([*words, str(turn)]).encode('utf-8', 'backslashreplace')):08x}"


def _place(frame: FrameType | None) -> Place:
    """The calls that led here, innermost first, less torch's and ours."""
    torch = os.path.dirname(os.path.abspath(sys.modules["torch"].__file__ or ""))
    calls: list[tuple[str, int, int]] = []
    while frame is not None and len(calls) < _DEEPEST:
        path = frame.f_code.co_filename
        if not path.startswith((torch + os.sep, _OURS + os.sep, "<frozen ")):
            calls.append((path, frame.f_lineno, frame.f_lasti))
        frame = frame.f_back
    return tuple(calls)
