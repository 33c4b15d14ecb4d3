"""What programs do with loaders that a recorder may trip over; each prints what it got."""

import inspect
import os
import pickle
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler, SubsetRandomSampler, TensorDataset

FILE = os.path.join(sys.argv[1], "numbers.bin")
NUMBERS = TensorDataset(torch.arange(42))


class Slices(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(np.fromfile(FILE, np.int64, count=4, offset=32 * index))


def read_slices() -> None:
    for workers in (0, 1):
        print([batch.tolist() for batch in DataLoader(Slices(), 4, num_workers=workers)])


def ask_for_parameters() -> None:
    settings = {"batch_size": 4, "lr": 0.1, "name": "mine", "args": []}
    for known in (DataLoader.__init__.__code__.co_varnames, inspect.getfullargspec(DataLoader.__init__).args):
        print(len(DataLoader(NUMBERS, **{key: value for key, value in settings.items() if key in known})))
    print(DataLoader.__init__.__defaults__)


def take_all_and_no_more() -> None:
    loader = DataLoader(NUMBERS, 4, shuffle=True, generator=torch.Generator().manual_seed(1))
    for _ in range(3):
        batches = iter(loader)
        print([next(batches)[0].tolist() for _ in range(len(loader))])


def unpickle() -> None:
    for size in (3, 7):
        again = pickle.loads(pickle.dumps(DataLoader(NUMBERS, size)))
        print(sum(len(batch) for batch in again))


def sort_for_long() -> None:
    class Sorted(Sampler[list[int]]):
        def __iter__(self) -> Iterator[list[int]]:
            time.sleep(0.5)
            return iter([[0, 1], [2, 3]])

    class SortedAsItGoes(Sampler[list[int]]):
        def __iter__(self) -> Iterator[list[int]]:
            time.sleep(0.5)
            yield from [[0, 1], [2, 3]]

    for sampler in (Sorted(), SortedAsItGoes()):
        print([batch[0].tolist() for batch in DataLoader(NUMBERS, batch_sampler=sampler, num_workers=1)])


def change_a_sampler() -> None:
    def shuffled(self: Any) -> Iterator[int]:
        return (self.indices[at] for at in torch.randperm(len(self.indices)))

    SubsetRandomSampler.__iter__ = shuffled  # type: ignore[method-assign]
    for _ in range(2):
        print([batch[0].tolist() for batch in DataLoader(NUMBERS, 4, sampler=SubsetRandomSampler(range(8)))])
    print(torch.rand(1))


if __name__ == "__main__":
    np.arange(32, dtype=np.int64).tofile(FILE)
    torch.manual_seed(0)
    for act in (read_slices, ask_for_parameters, take_all_and_no_more, unpickle, sort_for_long, change_a_sampler):
        act()
