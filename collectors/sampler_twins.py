"""Copies of torch's samplers, on copies of their random generators: what they give out, the program's will."""

import operator
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

from .loaders import sampler_of

# Where the random numbers of an order come from: torch's default generator, one that the sampler was given, or nowhere
# that torch knows of.
PROGRAM, GENERATOR, NOTHING = "program", "generator", "nothing"
# The order of more samples is not predicted: a copy of it takes some 40 bytes a sample of the program's memory.
_MOST_SAMPLES = 2_000_000


class Twin:
    """A copy of one of torch's samplers, which draws from copies of its generators."""

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
        if kind in (list, tuple):
            if len(sampler) > _MOST_SAMPLES:
                raise ValueError(f"more than {_MOST_SAMPLES} samples")
            return kind(each[:] if type(each) is list else each for each in sampler)
        twin = object.__new__(kind)
        vars(twin).update(vars(sampler))
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


class Length:
    """Stands in for the data set that a sampler asks for its length, until that has begun, and remembers the answer."""

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
            setattr(self._sampler, self._name, self)

    def __len__(self) -> int:
        self._told = len(self._source)
        return self._told

    def taken_back(self) -> int:
        if self._name:
            setattr(self._sampler, self._name, self._source)
        return self._told


@cache
def _data() -> ModuleType:
    """torch.utils.data: an import statement takes 10 us where nothing of ours is in the caches."""
    from torch.utils import data

    return data


def are_of_torch(sampler: Any) -> bool:
    """Whether a sampler, and what it draws its batches from, are torch's own, or plain indices."""
    kind, data = type(sampler), _data()
    if kind is data.BatchSampler:
        return are_of_torch(getattr(sampler, "sampler", None))
    if kind is data.SubsetRandomSampler:
        return are_of_torch(getattr(sampler, "indices", None))
    shuffling = (data.RandomSampler, data.DistributedSampler, data.WeightedRandomSampler)
    return kind in (data.SequentialSampler, *shuffling, range, list, tuple)


def decides_at_once(sampler: Any) -> bool:
    """Whether one of torch's samplers decides on its whole order as it is asked for the first index, so that nothing
    that the program does later changes it."""
    inner = sampler_of(sampler)
    kind = type(inner).__name__
    if kind == "RandomSampler":
        return inner.replacement is False and inner._num_samples is None
    return kind in ("SequentialSampler", "DistributedSampler", "WeightedRandomSampler")


def _sized_by(sampler: Any) -> tuple[Any, str]:
    """The sampler inside samplers of batches, and its attribute that is asked for the number of samples; "" where it
    knows that itself."""
    sampler = sampler_of(sampler)
    names = {"SequentialSampler": "data_source", "RandomSampler": "data_source", "DistributedSampler": "dataset"}
    return sampler, names.get(type(sampler).__name__, "")


def _generator_like(generator: Any) -> Any:
    if generator.device.type != "cpu":
        raise ValueError("a device draws the order")
    return generator.clone_state()


def _draw(generator: Any) -> int:
    """A seed, drawn as torch draws it."""
    import torch

    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
