"""Loaders whose data set draws random numbers. Prints a JSON line per loader: which samples each epoch gives, in order,
and what was drawn for them. The epochs of one are left early: 6 batches long, 2 are taken. The sampler of another one
is told the epoch after its iterator was made."""

import json
import random
from itertools import islice

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, RandomSampler


class Drawn(Dataset):
    """A sample is its index and a random number; some take longer, so that workers overtake each other."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        if index % 8 == 0:
            for _ in range(30):
                torch.ones(200, 200) @ torch.ones(200, 200)
        return torch.tensor([float(index), float(torch.rand(())), random.random()])


def default_order():
    return DataLoader(Drawn(), 3, shuffle=True, num_workers=WORKERS)


def order_of_a_generator():
    return DataLoader(Drawn(), 3, shuffle=True, num_workers=WORKERS, generator=torch.Generator().manual_seed(3))


def sharded():
    return DataLoader(Drawn(), 3, sampler=DistributedSampler(Drawn(), num_replicas=2, rank=1), num_workers=WORKERS)


def left_early():
    return DataLoader(Drawn(), 4, shuffle=True, num_workers=WORKERS, generator=torch.Generator().manual_seed(3))


def in_batches():
    return DataLoader(Drawn(), batch_sampler=BatchSampler(RandomSampler(Drawn()), 3, False), num_workers=WORKERS)


def told_late():
    return sharded()


if __name__ == "__main__":
    import sys

    WORKERS = int(sys.argv[1])
    for make in (default_order, order_of_a_generator, sharded, left_early, in_batches, told_late):
        torch.manual_seed(1)
        random.seed(1)
        loader = make()
        taken = 2 if make is left_early else None
        rows = []
        for epoch in range(1, 4):
            batches = iter(loader)
            if make is told_late:
                loader.sampler.set_epoch(epoch)
            rows += [row for batch in islice(batches, taken) for row in batch.tolist()]
        print(json.dumps({"order": [int(row[0]) for row in rows], "drawn": [row[1:] for row in rows]}))
