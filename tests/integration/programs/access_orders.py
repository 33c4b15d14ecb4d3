"""Loaders of all kinds, each in a function of its own, with the class of its order and the indices it issues.

Prints what each loader gives, and a random number after each: both are the same with and without recording.
"""

import sys

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

SIZE, EPOCHS = 50, 3
CASES = []


def case(predictability, checked):
    """Add a function to the cases."""

    def add(function):
        CASES.append((function, predictability, checked))
        return function

    return add


class Numbers(Dataset):
    def __init__(self, size=SIZE):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.tensor(index)


class Emptied(Numbers):
    """A data set that does with the list of indices what it likes."""

    def __getitems__(self, indices):
        indices.sort()
        return [torch.tensor(indices.pop()) for _ in range(len(indices))]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(5))


class Backwards(Sampler):
    def __len__(self):
        return SIZE

    def __iter__(self):
        return iter(range(SIZE - 1, -1, -1))


def seeded(seed=7):
    return torch.Generator().manual_seed(seed)


def loader(data=None, **given):
    return DataLoader(data or Numbers(), **{"batch_size": 4, **given})


def epochs(loader, count=EPOCHS, before=lambda epoch: None):
    for epoch in range(count):
        before(epoch)
        for batch in loader:
            print(batch.tolist(), end=" ")


@case("epoch", 150)
def random_order():
    epochs(loader(shuffle=True))


@case("run", 150)
def random_order_of_a_generator():
    epochs(loader(shuffle=True, generator=seeded()))


@case("run", 144)
def generator_of_the_sampler_alone():
    epochs(loader(sampler=RandomSampler(Numbers(), generator=seeded()), drop_last=True))


@case("run", 360)
def more_samples_than_there_are():
    epochs(loader(sampler=RandomSampler(Numbers(), num_samples=120, generator=seeded())))


@case("run", 150)
def workers():
    epochs(loader(shuffle=True, generator=seeded(), num_workers=2))


@case("run", 150)
def workers_that_persist():
    epochs(loader(shuffle=True, generator=seeded(), num_workers=2, persistent_workers=True))


@case("epoch", 150)
def workers_that_persist_without_a_generator():
    epochs(loader(shuffle=True, num_workers=2, persistent_workers=True))


@case("run", 51)
def sharded_with_set_epoch():
    sampler = DistributedSampler(Numbers(), num_replicas=3, rank=1, seed=3)
    epochs(loader(sampler=sampler), before=sampler.set_epoch)


@case("run", 51)
def sharded_without_set_epoch():
    epochs(loader(sampler=DistributedSampler(Numbers(), num_replicas=3, rank=2)))


@case("epoch", 51)
def sharded_with_epochs_at_random():
    sampler = DistributedSampler(Numbers(), num_replicas=3, rank=1)
    epochs(loader(sampler=sampler), before=lambda epoch: sampler.set_epoch([4, 9, 1][epoch]))


@case("epoch", 60)
def weighted():
    epochs(loader(sampler=WeightedRandomSampler(range(1, 51), 20)))


@case("run", 60)
def weighted_of_a_generator():
    epochs(loader(sampler=WeightedRandomSampler(range(1, 51), 20, generator=seeded())))


@case("epoch", 60)
def weights_that_change():
    sampler = WeightedRandomSampler([1.0] * SIZE, 20, generator=seeded())
    epochs(loader(sampler=sampler), before=lambda epoch: sampler.weights[: 16 * epoch].zero_())


@case("run", 150)
def batches_as_samples():
    sampler = BatchSampler(RandomSampler(Numbers(), generator=seeded()), 5, False)
    epochs(DataLoader(Numbers(), sampler=sampler, batch_size=None))


@case("run", 144)
def batches_of_a_batch_sampler():
    epochs(DataLoader(Numbers(), batch_sampler=BatchSampler(RandomSampler(Numbers(), generator=seeded()), 8, True)))


@case("run", 150)
def lists_that_the_data_set_changes():
    epochs(loader(Emptied(), shuffle=True, generator=seeded()))


@case("run", 12)  # a tuple is taken for one index, as it may be
def lists_and_tuples():
    epochs(DataLoader(Numbers(), batch_sampler=[[0, 1], (2, 3), [4]]))


@case("none", 0)
def lists_of_the_program_that_the_data_set_changes():
    epochs(DataLoader(Emptied(), batch_sampler=[[3, 1, 2], [5, 4]]), count=1)


@case("run", 150)
def one_by_one():
    epochs(DataLoader(Numbers(), batch_size=None))


@case("none", 0)
def sharded_one_by_one():
    epochs(DataLoader(Numbers(), sampler=DistributedSampler(Numbers(), num_replicas=3, rank=1), batch_size=None))


@case("run", 60)
def subset():
    epochs(loader(sampler=SubsetRandomSampler(range(0, 40, 2), generator=seeded())))


@case("run", 50)
def in_sequence_once():
    epochs(loader(), count=1)


@case("run", 9)
def a_list():
    epochs(loader(sampler=[5, 1, 3]))


@case("epoch", 50)
def a_single_epoch():
    epochs(loader(shuffle=True, generator=seeded()), count=1)


def first_batches(loader):
    for _ in range(EPOCHS):
        for batch in loader:
            print(batch.tolist())
            break


@case("epoch", 12)
def left_early():
    first_batches(loader(shuffle=True, generator=seeded()))


@case("epoch", 60)
def left_early_with_workers():
    first_batches(loader(shuffle=True, generator=seeded(), num_workers=2))


@case("epoch", 150)
def dropout_between_epochs():
    epochs(loader(shuffle=True), before=lambda _: torch.nn.functional.dropout(torch.ones(9)))


@case("epoch", 150)
def draws_between_epochs():
    generator = seeded()
    epochs(loader(shuffle=True, generator=generator), before=lambda _: torch.rand(3, generator=generator))


@case("none", 36)
def draws_within_an_epoch():
    generator = seeded()
    for batch in loader(sampler=RandomSampler(Numbers(), True, 100, generator)):
        print(batch.tolist(), torch.rand((), generator=generator).item())


@case("none", 36)
def draws_within_an_epoch_left_early():
    generator = seeded()
    batches = loader(sampler=RandomSampler(Numbers(), True, 100, generator))
    for epoch in range(EPOCHS):
        for number, batch in enumerate(batches):
            print(batch.tolist(), torch.rand((), generator=generator).item() if epoch == 0 else "")
            if number == 20:
                break


@case("epoch", 150)
def shared_generator():
    generator = seeded()
    other = loader(shuffle=True, generator=generator)
    epochs(loader(shuffle=True, generator=generator), before=lambda _: next(iter(other)))


@case("epoch", 150)
def seeded_for_every_epoch():
    generator = torch.Generator()
    epochs(loader(shuffle=True, generator=generator), before=generator.manual_seed)


@case("run", 150)
def made_for_every_epoch():
    generator = seeded()
    for _ in range(EPOCHS):
        epochs(loader(shuffle=True, generator=generator), count=1)


@case("epoch", 180)
def grows():
    data = Numbers()
    epochs(
        loader(data, sampler=RandomSampler(data, generator=seeded())),
        before=lambda epoch: setattr(data, "size", SIZE + 10 * epoch),
    )


@case("epoch", 100)
def two_iterators_at_once():
    both = loader(shuffle=True, generator=seeded())
    for first, second in zip(both, both, strict=True):
        print(first.tolist(), second.tolist())


@case("none", 0)
def a_sampler_of_its_own():
    epochs(loader(sampler=Backwards()))


@case("none", 0)
def iterable():
    epochs(DataLoader(Stream()))


if __name__ == "__main__":
    torch.manual_seed(int(sys.argv[1]))
    for function, *_ in CASES:
        function()
        print(torch.rand(()).item())
