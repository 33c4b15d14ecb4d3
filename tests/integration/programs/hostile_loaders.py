"""Loaders that go wrong, or are odd: each prints what comes of it, the same with and without recording."""

import itertools
import os
import random
import signal

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset


class Numbers(Dataset):
    def __init__(self, size=12, claims=None):
        self.size, self.claims = size, claims

    def __len__(self):
        return self.size if self.claims is None else self.claims.pop()

    def __getitem__(self, index):
        return torch.tensor(index)


class Kills(Numbers):
    """The worker that comes to sample 7 is killed."""

    def __getitem__(self, index):
        if index == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.tensor(index)


class Raises(Numbers):
    def __getitem__(self, index):
        if index == 5:
            raise KeyError("no five")
        return torch.tensor(index)


class Endless(IterableDataset):
    def __iter__(self):
        return itertools.count()


class Nested(Numbers):
    """Each sample is made by a loader of its own."""

    def __getitem__(self, index):
        return sum(batch.sum() for batch in DataLoader(Numbers(4), batch_size=2, shuffle=True)) + index


class Odd:
    """What a loader gives need not be a tensor, nor answer for itself."""

    def __getattr__(self, name):
        raise RuntimeError("do not touch")


class Restless:
    """A sampler that is another each time it is looked at."""

    def __len__(self):
        return random.randrange(1, 5)

    def __iter__(self):
        return iter([random.randrange(12) for _ in range(6)])


def killed():
    # How many batches come before torch sees that a worker is gone varies.
    yield [batch.tolist() for batch in DataLoader(Kills(), batch_size=2, num_workers=2)]


def raising():
    yield from (batch.tolist() for batch in DataLoader(Raises(), batch_size=2, num_workers=1))


def raising_in_the_program():
    yield from (batch.tolist() for batch in DataLoader(Raises(), batch_size=2))


def abandoned():
    for _ in range(3):
        batches = iter(DataLoader(Numbers(), batch_size=2, num_workers=2, shuffle=True))
        yield next(batches).tolist()
        del batches


def claiming_more():
    yield from (batch.tolist() for batch in DataLoader(Raises(claims=[9] * 99), batch_size=2))


def claiming_something_else_each_time():
    claims = [3, 9, 4, 11, 5, 12, 7, 8] * 20
    yield from (batch.tolist() for batch in DataLoader(Numbers(claims=claims), batch_size=2, shuffle=True))


def endless():
    for workers in (0, 1):
        yield from (batch.tolist() for batch in itertools.islice(DataLoader(Endless(), 3, num_workers=workers), 4))


def without_batches():
    yield from (item.tolist() for item in DataLoader(Numbers(4), batch_size=None, num_workers=1))


def of_odd_things():
    yield from (type(item).__name__ for item in DataLoader(Numbers(4), batch_size=2, collate_fn=lambda _: Odd()))


def of_nothing():
    yield from (str(item) for item in DataLoader(Numbers(4), batch_size=2, collate_fn=lambda _: None))


def nested():
    for workers in (0, 1):
        yield from (batch.tolist() for batch in DataLoader(Nested(4), batch_size=2, num_workers=workers))


def with_a_restless_sampler():
    yield from (batch.tolist() for batch in DataLoader(Numbers(), batch_size=2, sampler=Restless()))


def made_in_a_loop():
    loaders = [DataLoader(Numbers(4 + number), batch_size=2, shuffle=True) for number in range(3)]
    yield from (batch.tolist() for both in zip(*loaders, strict=False) for batch in both)


if __name__ == "__main__":
    torch.manual_seed(3)
    random.seed(3)
    for case in (
        killed, raising, raising_in_the_program, abandoned, claiming_more, claiming_something_else_each_time, endless,
        without_batches, of_odd_things, of_nothing, nested, with_a_restless_sampler, made_in_a_loop,
    ):  # fmt: skip
        print(case.__name__)
        try:
            for item in case():
                print(item)
        except Exception as error:
            print(type(error).__name__)
        print(torch.rand(()).item(), random.random())
