"""What is told of a loader that the program iterates over again and again."""

from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, StackDataset, Subset, TensorDataset

from tracekit.collectors.loaders import Loaders


def test_what_a_program_changes_between_epochs_is_told() -> None:
    """GIVEN a loader that is used twice alike, THEN with other workers THEN these are told, and that they varied; and
    what does not make it another kind of loader is told of its last use."""
    loaders, loader = Loaders(), DataLoader(TensorDataset(torch.zeros(4)), 2)
    for _ in range(2):
        loaders.used(loader)
    facts = loaders.facts_of(loaders.name(loader))
    assert facts["num_workers"] == 0 and not facts["pin_memory"] and "varied" not in facts
    loader.pin_memory = True
    loaders.used(loader)
    assert facts["pin_memory"] == torch.accelerator.is_available() and "varied" not in facts
    loader.num_workers, loader.generator = 2, torch.Generator()
    loaders.used(loader)
    assert facts["num_workers"] == 2 and facts["has_generator"] and facts["varied"]


@pytest.mark.parametrize("accelerated", [True, False])
def test_what_is_pinned_is_told_where_there_is_something_to_pin_for(
    accelerated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: accelerated)
    loaders, loader = Loaders(), DataLoader(TensorDataset(torch.zeros(4)), pin_memory=True)
    loaders.used(loader)
    assert loaders.facts_of(loaders.name(loader))["pin_memory"] is accelerated


class Hears(TensorDataset):
    def set_epoch(self, epoch: int) -> None: ...


NONE, ONE = TensorDataset(torch.zeros(4)), Hears(torch.zeros(4))


@pytest.mark.parametrize(
    ("data_set", "hears"),
    [
        (NONE, False),
        (ONE, True),
        (Subset(ConcatDataset([NONE, ONE]), [1]), True),
        (ConcatDataset([NONE, Subset(NONE, [0])]), False),
        (StackDataset(a=NONE, b=ONE), True),
    ],
)
def test_a_data_set_that_is_told_the_epoch_is_seen_within_others(data_set: Dataset[Any], hears: bool) -> None:
    loaders, loader = Loaders(), DataLoader(data_set)
    loaders.used(loader)
    assert loaders.facts_of(loaders.name(loader))["told_epochs"] is hears


def test_a_loader_in_the_place_of_one_that_is_gone_is_told_anew() -> None:
    """GIVEN loaders one after the other, which may get each other's ids THEN each is told."""
    loaders = Loaders()
    for size in range(1, 20):
        loader = DataLoader(TensorDataset(torch.zeros(64)), size)
        loaders.used(loader)
        assert loaders.facts_of(loaders.name(loader))["batch_size"] == size
        del loader
