"""Access order: which samples a loader will ask for, known beforehand where torch's own samplers decide it.

Copies of a sampler run beside the program's, on copies of its random generators, and every index that the program's
sampler gives out is compared with theirs. The program's own samplers and generators are left as they are. No data set
is asked for its length that would not have been: the copies learn what the program's sampler was told.
"""

import copy
import operator
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from .loaders import sampler_of

# How far ahead the order is known: when the run begins, when an epoch begins, or not.
RUN, EPOCH, NONE = "run", "epoch", "none"
# Where the random numbers of an order come from: torch's default generator, one that the sampler was given, or nowhere
# that torch knows of.
PROGRAM, GENERATOR, NOTHING = "program", "generator", "nothing"
# The order of more samples is not predicted: a copy of it takes some 40 bytes a sample of the program's memory.
_MOST_SAMPLES = 2_000_000
# Index by index is compared, but so many batches at once: one at a time costs several times as much.
_AT_ONCE = 64
_MOST_WAITING = 1024
_ITERABLE = 1  # of torch's `_DatasetKind`


class AccessOrder:
    """The order of one loader. Its `facts` are its class, and of the indices that were `checked` those `predicted`.

    Two copies of the sampler run ahead. One is made when an epoch begins: what it gets right was known then. The other
    one was made when the first epoch began and goes on by itself: what it gets right was known for the whole run.

    `window_is_open` tells whether the profiler that runs is a window of ours.
    """

    def __init__(self, facts: dict[str, Any], window_is_open: Callable[[], bool]) -> None:
        self._facts = facts
        self._window_is_open = window_is_open
        self._twin: _Twin | None = None  # the one that goes on; None once it was wrong
        self._epochs = 0
        self._last: Epoch | None = None

    def begin(self, iterator: Any, generator: Any) -> "Epoch":
        """An epoch begins: its iterator is about to ask for the first index. `generator`: the loader's own, if any."""
        self.settle()
        epoch = Epoch(self, iterator)
        if self._facts.get("predictability") != NONE:
            try:
                self._copy(epoch, iterator, generator)
            except Exception:  # a sampler of the program's own
                self.is_not_known()
        self._last = epoch
        return epoch

    def settle(self) -> None:
        """Compare what has been given out and not been compared yet."""
        if self._last is not None:
            self._last.settle()

    def _copy(self, epoch: "Epoch", iterator: Any, generator: Any) -> None:
        if iterator._dataset_kind == _ITERABLE:
            raise TypeError("an iterable data set has an order of its own")
        self._epochs += 1
        with self.unseen() as is_unseen:
            if not is_unseen:
                if "predictability" in self._facts:
                    self.is_not_foreseen()
                return
            sampler = iterator._index_sampler
            twin = _Twin(sampler)
            self._facts["draws_from"] = twin.draws_from
            if self._epochs == 1:
                self._twin = None if twin.draws_from_default else _Twin(sampler)
            elif self._twin is not None and not self._goes_on(self._twin, twin, iterator, generator):
                self._twin = None
            epoch.twin, epoch.length = twin, _Length(sampler, iterator._sampler_iter)

    def _goes_on(self, foreseen: "_Twin", now: "_Twin", iterator: Any, generator: Any) -> bool:
        """Bring the copy that goes on to where the next epoch begins; False where that is not known."""
        last = self._last
        if last is None or not (last.is_complete or foreseen.draws_from == NOTHING):
            return False
        if not last.is_of(iterator):
            foreseen.draw_base_seed(generator)
        return foreseen.set_epoch_like(now)

    def run_ahead(self, epoch: "Epoch", twin: "_Twin", length: int) -> None:
        """The program's sampler has begun, told that there are so many samples: so do the copies."""
        try:
            with self.unseen():
                epoch.known = twin.begin(length)
                if self._twin is not None:
                    epoch.foreseen = self._twin.begin(length)
        except Exception:  # too many samples
            self.is_not_known()
            return
        shown = self._epochs > 1 or twin.is_the_same_each_time
        self._facts["predictability"] = RUN if self._twin is not None and shown else EPOCH

    @contextmanager
    def unseen(self) -> Iterator[bool]:
        """A block for operations of the copies, which a window of ours does not record. False: somebody else would see
        them, a profiler or a mode of the program's."""
        import torch

        is_profiled = torch._C._autograd._profiler_enabled()
        if is_profiled and self._window_is_open():
            torch._C._autograd._enable_record_function(False)
            try:
                yield not _modes()
            finally:
                torch._C._autograd._enable_record_function(True)
        else:
            yield not is_profiled and not _modes()

    def count(self, batches: list[Any], predicted: bool) -> None:
        indices = sum(len(batch) if type(batch) is list else batch is not None for batch in batches)
        self._facts["checked"] = self._facts.get("checked", 0) + indices
        self._facts["predicted"] = self._facts.get("predicted", 0) + indices * predicted

    def is_not_foreseen(self) -> None:
        self._twin = None
        self._facts["predictability"] = EPOCH

    def is_not_known(self) -> None:
        self._twin = None
        self._facts["predictability"] = NONE


class Epoch:
    """One pass over a sampler, compared with what was predicted of it when it began and when the run began."""

    def __init__(self, order: AccessOrder, iterator: Any) -> None:
        self.is_complete = False  # the program has had all of its batches
        self.twin: _Twin | None = None
        self.length: _Length | None = None
        self.known: Iterator[Any] | None = None
        self.foreseen: Iterator[Any] | None = None
        self._order = order
        self._iterator = weakref.ref(iterator)
        self._issued: list[Any] = []  # what is not compared yet
        self._foretold = 0  # batches that the copy which goes on was right about

    def is_of(self, iterator: Any) -> bool:
        return self._iterator() is iterator

    def issued(self, index: Any) -> bool:
        """The sampler gave out an index, or those of a batch; None: it has no more. Whether it is time to `settle`.

        The copies are asked once more when it has no more: some samplers draw random numbers when they end.
        """
        if self.length is not None and self.twin is not None:
            self._order.run_ahead(self, self.twin, self.length.taken_back())
            self.length = self.twin = None
        if self.known is not None:
            self._issued.append(index[:] if type(index) is list else index)
        return index is None or len(self._issued) >= _AT_ONCE

    def settle(self) -> None:
        """Compare what was given out since the last time; if somebody would see it, later, if that is not too late."""
        if self.known is None or not self._issued:
            return
        with self._order.unseen() as is_unseen:
            if is_unseen:
                self._compare()
            elif len(self._issued) >= _MOST_WAITING:
                self.known = self.foreseen = None
                self._order.is_not_foreseen()

    def _compare(self) -> None:
        issued, self._issued = self._issued, []
        assert self.known is not None
        if self.foreseen is not None:
            if _agreed(self.foreseen, issued) == len(issued):
                self._foretold += len(issued)
                self._order.count(issued, True)
                return
            self.foreseen = None
            self._order.is_not_foreseen()
            next(islice(self.known, self._foretold, self._foretold), None)  # the other copy has been idle
        agreed = _agreed(self.known, issued)
        self._order.count(issued[:agreed], True)
        if agreed < len(issued):
            self._order.count(issued[agreed : agreed + 1], False)
            self.known = None
            self._order.is_not_known()

    def failed(self) -> None:
        """The sampler raised an exception."""
        if self.length is not None:
            self.length.taken_back()
        self.length = self.known = self.foreseen = None


def _agreed(ahead: Iterator[Any], issued: list[Any]) -> int:
    """How many of the batches that were given out a copy gives out too, before it gives another."""
    expected = [*islice(ahead, len(issued))]
    expected += [None] * (len(issued) - len(expected))
    if expected == issued:
        return len(issued)
    return next(at for at, (mine, other) in enumerate(zip(expected, issued, strict=True)) if mine != other)


class _Twin:
    """A copy of one of torch's samplers, which draws from copies of its generators. Raises TypeError for others."""

    def __init__(self, sampler: Any) -> None:
        self.draws_from_default = False
        self._generators: dict[int, tuple[Any, Any]] = {}  # the program's, which lives as long as its copy, by its id
        self._shards: list[Any] = []  # copies of DistributedSamplers
        self._pace: int | None = None  # by which the program moves their `epoch` on
        self._sampler = self._copied(sampler)

    @property
    def draws_from(self) -> str:
        import torch

        if id(torch.default_generator) in self._generators:
            return ""  # as it goes, too
        if self.draws_from_default:
            return PROGRAM
        return GENERATOR if self._generators else NOTHING

    @property
    def is_the_same_each_time(self) -> bool:
        return self.draws_from == NOTHING and not any(each.shuffle for each in self._shards)

    def begin(self, length: int) -> Iterator[Any]:
        """The indices of an epoch over so many samples, the same number each time. Raises ValueError for too many."""
        inner, name = _sized_by(self._sampler)
        if name and type(getattr(inner, name)) is not range:
            setattr(inner, name, range(length))
        if max(length, len(inner)) > _MOST_SAMPLES:
            raise ValueError(f"more than {_MOST_SAMPLES} samples")
        return iter(self._sampler)

    def draw_base_seed(self, generator: Any) -> None:
        """A new iterator draws the base seed of its workers from the loader's generator."""
        if id(generator) in self._generators:
            _, twin = self._generators[id(generator)]
            _draw(twin)

    def set_epoch_like(self, now: "_Twin") -> bool:
        """Take over the epochs of a copy made now, if they have moved on by 0 or 1, and by as much as ever."""
        for mine, other in zip(self._shards, now._shards, strict=True):
            pace = other.epoch - mine.epoch
            if pace not in (0, 1) or self._pace not in (None, pace):
                return False
            self._pace, mine.epoch = pace, other.epoch
        return True

    def _copied(self, sampler: Any) -> Any:
        from torch.utils import data

        kind = type(sampler)
        of_torch = (data.SequentialSampler, data.RandomSampler, data.BatchSampler, data.DistributedSampler)
        by_index = (data.SubsetRandomSampler, data.WeightedRandomSampler)
        if kind not in (*of_torch, *by_index, range, list, tuple):
            raise TypeError(f"{kind.__name__} is not one of torch's samplers")
        if kind in (list, tuple) and len(sampler) > _MOST_SAMPLES:
            raise ValueError(f"more than {_MOST_SAMPLES} samples")
        twin = copy.copy(sampler)
        if kind is data.BatchSampler:
            twin.sampler = self._copied(sampler.sampler)
        elif kind is data.DistributedSampler:
            self._shards.append(twin)
        elif kind is data.SubsetRandomSampler:
            twin.indices = self._copied(sampler.indices)
        elif kind is data.WeightedRandomSampler:
            if len(sampler.weights) > _MOST_SAMPLES:
                raise ValueError(f"more than {_MOST_SAMPLES} samples")
            twin.weights = sampler.weights.clone()
        if hasattr(sampler, "generator"):
            twin.generator = self._generator(sampler)
        return twin

    def _generator(self, sampler: Any) -> Any:
        import torch

        if sampler.generator is not None:
            twin = _generator_like(sampler.generator)
            self._generators[id(sampler.generator)] = sampler.generator, twin
            return twin
        self.draws_from_default = True
        default = _generator_like(torch.default_generator)
        if type(sampler).__name__ != "RandomSampler":
            return default
        return torch.Generator().manual_seed(_draw(default))  # it shuffles with a generator that it seeds so


class _Length:
    """Stands in for the data set that a sampler asks for its length, until that has begun, and remembers the answer."""

    def __init__(self, sampler: Any, begun: Iterator[Any]) -> None:
        self._sampler, self._name = _sized_by(sampler)
        # What gave a plain iterator at once, without batches, was told before.
        self._told = operator.length_hint(begun, 0)
        if self._name:
            self._source = getattr(self._sampler, self._name)
            if type(self._source) is _Length:
                raise TypeError("another thread begins an epoch of the same sampler")
            setattr(self._sampler, self._name, self)

    def __len__(self) -> int:
        self._told = len(self._source)
        return self._told

    def taken_back(self) -> int:
        if self._name:
            setattr(self._sampler, self._name, self._source)
        return self._told


def _sized_by(sampler: Any) -> tuple[Any, str]:
    """The sampler inside samplers of batches, and its attribute that is asked for the number of samples; "" where it
    knows that itself."""
    sampler = sampler_of(sampler)
    names = {"SequentialSampler": "data_source", "RandomSampler": "data_source", "DistributedSampler": "dataset"}
    return sampler, names.get(type(sampler).__name__, "")


def _generator_like(generator: Any) -> Any:
    import torch

    return torch.Generator().set_state(generator.get_state())


def _draw(generator: Any) -> int:
    """A seed, drawn as torch draws it."""
    import torch

    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def _modes() -> int:
    """How many modes the program is in, which would see the operations of our copies."""
    import torch

    return int(torch._C._len_torch_function_stack() + torch._C._len_torch_dispatch_stack())
