"""Copies of torch's samplers, and Accelerate's, on copies of their generators: what they give, the program's will."""

import operator
import sys
from collections.abc import Iterator
from functools import cache
from itertools import accumulate
from types import ModuleType
from typing import Any

from .loaders import sampler_of, within

# Where the random numbers of an order come from: torch's default generator, one that the sampler was given, or nowhere
# that torch knows of.
PROGRAM, GENERATOR, NOTHING = "program", "generator", "nothing"
# The order of more samples is not predicted: a copy of it takes some 40 bytes a sample of the program's memory.
_MOST_SAMPLES = 2_000_000
_SEEDED = "SeedableRandomSampler"
# What a sampler asks how many samples there are.
_SIZED_BY = {
    "SequentialSampler": "data_source", "RandomSampler": "data_source", "DistributedSampler": "dataset",
    _SEEDED: "data_source", "_Seeded": "data_source",
}  # fmt: skip


class Twin:
    """A copy of a sampler, which draws from copies of its generators."""

    def __init__(self, sampler: Any) -> None:
        self.draws_from_default = False
        self._generators: dict[int, tuple[Any, Any]] = {}  # the program's, which lives as long as its copy, by its id
        self._shards: list[Any] = []  # copies of those that the program tells an epoch
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

    @property
    def batches(self) -> int:
        """How many an epoch has."""
        return len(self._sampler)

    def begin(self, length: int) -> Iterator[Any]:
        """The indices of an epoch over so many samples, the same number each time. Raises ValueError for too many."""
        inner, name = _sized_by(self._sampler)
        if name and type(getattr(inner, name)) is not range:
            setattr(inner, name, range(length))
        counts_up = type(inner).__name__ in ("SequentialSampler", "range")  # which takes no memory
        if max(length, len(inner)) > _MOST_SAMPLES and not counts_up:
            raise ValueError(f"more than {_MOST_SAMPLES} samples")
        return iter(self._sampler)

    def draw_base_seed(self, generator: Any) -> None:
        """A new iterator draws the base seed of its workers from the loader's generator."""
        if id(generator) in self._generators:
            _, twin = self._generators[id(generator)]
            _draw(twin)

    def set_epoch_like(self, now: "Twin") -> bool:
        """Take over the epochs of a copy made now, if they have moved on by 0 or 1, and by as much as ever. To those
        that do not shuffle they are nothing."""
        for mine, other in zip(self._shards, now._shards, strict=True):
            if not mine.shuffle:
                continue
            pace = other.epoch - mine.epoch
            if pace not in (0, 1) or self._pace not in (None, pace):
                return False
            self._pace, mine.epoch = pace, other.epoch
        return True

    def _copied(self, sampler: Any) -> Any:
        kind, data = type(sampler), _data()
        if kind is range:
            return sampler
        if _is_array_of_indices(sampler):
            if len(sampler) > _MOST_SAMPLES:
                raise ValueError(f"more than {_MOST_SAMPLES} samples")
            return sampler.copy()
        if kind in (list, tuple):
            samples = accumulate(len(each) if type(each) is list else 1 for each in sampler)
            if any(count > _MOST_SAMPLES for count in samples):
                raise ValueError(f"more than {_MOST_SAMPLES} samples")
            return kind(each[:] if type(each) is list else each for each in sampler)
        if _is_seeded(sampler):
            self._shards.append(_Seeded(sampler))
            return self._shards[-1]
        twin = object.__new__(kind)
        vars(twin).update(vars(sampler))
        if inside := within(sampler):
            setattr(twin, inside, self._copied(getattr(sampler, inside)))
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


class _Seeded:
    """A copy of Accelerate's sampler that seeds its generator anew for each epoch, with the epoch's number."""

    shuffle = True

    def __init__(self, sampler: Any) -> None:
        if sampler.generator is not None and sampler.generator.device.type != "cpu":
            raise ValueError("a device draws the order")
        self.epoch, self._seed = sampler.epoch, sampler.initial_seed
        self.data_source, self._kind = sampler.data_source, (sampler.replacement, sampler._num_samples)

    def __len__(self) -> int:
        return len(self._drawing())

    def __iter__(self) -> Iterator[int]:
        return iter(self._drawing())

    def _drawing(self) -> Any:
        import torch

        generator = torch.Generator().manual_seed(self.epoch + self._seed)
        return _data().RandomSampler(self.data_source, *self._kind, generator=generator)


class Length:
    """Stands in for the data set that a sampler asks for its length, until that has begun, and remembers the answer.
    Another thread that asks for anything else meanwhile gets it of the data set; a copy that it makes has that."""

    def __init__(self, sampler: Any, begun: Iterator[Any]) -> None:
        self._sampler, self._name = _sized_by(sampler)
        # What gave a plain iterator at once, without batches, was told before.
        self._told = operator.length_hint(begun, 0)
        if self._told and self._name == "dataset":
            raise TypeError("a DistributedSampler gives out a part, whose length does not tell that of the whole")
        if self._name:
            self._source = getattr(self._sampler, self._name)
            if type(self._source) is Length:
                raise TypeError("another thread begins an epoch of the same sampler")

    def put_in(self) -> None:
        if self._name:
            setattr(self._sampler, self._name, self)

    def __len__(self) -> int:
        self._told = len(self._source)
        return self._told

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def __getitem__(self, index: Any) -> Any:
        return self._source[index]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _itself, (self._source,)

    def taken_back(self) -> int:
        if self._name:
            setattr(self._sampler, self._name, self._source)
        return self._told


def _itself(data: Any) -> Any:
    return data


@cache
def _data() -> ModuleType:
    """torch.utils.data: an import statement takes 10 us where nothing of ours is in the caches."""
    from torch.utils import data

    return data


def _is_array_of_indices(sampler: Any) -> bool:
    """Whether it is an array of NumPy's of whole numbers, as what splits a data set gives."""
    kind = type(sampler)
    return (kind.__module__, kind.__name__) == ("numpy", "ndarray") and sampler.ndim == 1 and sampler.dtype.kind in "iu"


def are_of_torch(sampler: Any) -> bool:
    """Whether a sampler, and what it draws its batches from, are torch's own, or Accelerate's, or plain indices."""
    kind, data = type(sampler), _data()
    if kind in (range, list, tuple) or _is_array_of_indices(sampler):
        return True
    if not _is_as_it_came(kind):
        return False
    if inside := within(sampler):
        return are_of_torch(getattr(sampler, inside, None))
    if kind is data.SubsetRandomSampler:
        return are_of_torch(getattr(sampler, "indices", None))
    shuffling = (data.RandomSampler, data.DistributedSampler, data.WeightedRandomSampler)
    return kind in (data.SequentialSampler, *shuffling) or _is_seeded(sampler)


def _is_as_it_came(kind: type) -> bool:
    """Whether what a sampler's copy would be asked is all in the file of its module: a program may have put functions
    of its own there, which are to be called by itself alone."""
    for each in kind.__mro__:
        own = [vars(each).get(name) for name in ("__iter__", "__len__", "num_samples")]
        codes = [getattr(getattr(found, "fget", found), "__code__", None) for found in own if found is not None]
        file = getattr(sys.modules.get(each.__module__), "__file__", None)
        if any(code is None or code.co_filename != file for code in codes):
            return False
    return True


def decides_at_once(sampler: Any) -> bool:
    """Whether one of torch's samplers decides on its whole order as it is asked for the first index, so that nothing
    that the program does later changes it."""
    inner = sampler_of(sampler)
    kind = type(inner).__name__
    if kind in ("RandomSampler", _SEEDED):
        return inner.replacement is False and inner._num_samples is None
    return kind in ("SequentialSampler", "DistributedSampler", "WeightedRandomSampler")


def _sized_by(sampler: Any) -> tuple[Any, str]:
    """The sampler inside samplers of batches, and its attribute that is asked for the number of samples; "" where it
    knows that itself."""
    sampler = sampler_of(sampler)
    return sampler, _SIZED_BY.get(type(sampler).__name__, "")


def _is_seeded(sampler: Any) -> bool:
    return type(sampler).__name__ == _SEEDED and type(sampler).__module__ == "accelerate.data_loader"


def _generator_like(generator: Any) -> Any:
    if generator.device.type != "cpu":
        raise ValueError("a device draws the order")
    return generator.clone_state()


def _draw(generator: Any) -> int:
    """A seed, drawn as torch draws it."""
    import torch

    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
