"""What a sampler gives out is noted on its way to the program, which gets the same as without."""

import copy
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.data_loader import BatchSamplerShard, SeedableRandomSampler, SkipBatchSampler
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler, SubsetRandomSampler

from tracekit.collectors.access_order import AccessOrder, Epoch
from tracekit.collectors.sampler_twins import Length


class Iterating:
    """What is asked of a loader's iterator."""

    _dataset_kind = 0

    def __init__(self, sampler: Any) -> None:
        self._index_sampler = sampler


def spend(act: Callable[..., None], *args: Any) -> None:
    act(*args)


def of(sampler: Any, facts: dict[str, Any], spend: Callable[..., None] = spend) -> tuple[Epoch, Iterator[Any], object]:
    """An epoch, what the program gets of it, and the iterator, which must live meanwhile."""
    order, iterating = AccessOrder(facts, lambda: False, lambda: False), Iterating(sampler)
    epoch = Epoch(order, iterating, None)
    most = order.most_compared(sampler)
    return epoch, epoch.watched(iter(sampler), type(sampler) is BatchSampler, most, spend), iterating


@pytest.mark.parametrize(
    ("sampler", "given"),
    [
        (BatchSampler(SequentialSampler(range(5)), 2, False), [[0, 1], [2, 3], [4]]),
        (BatchSampler(SequentialSampler(range(0)), 2, False), []),
        (SequentialSampler(range(3)), [0, 1, 2]),
        ([[0, 1], (2, 3), "a"], [[0, 1], (2, 3), "a"]),
    ],
)
def test_the_program_gets_what_the_sampler_gives(sampler: Any, given: list[Any]) -> None:
    facts: dict[str, Any] = {}
    epoch, got, _iterating = of(sampler, facts)
    assert [*got] == given and next(got, "over") == "over"
    epoch.settle()
    assert facts.get("checked") == facts.get("predicted") and facts["predictability"] in ("run", "epoch")


@pytest.mark.parametrize("kind", ["i8", "u2"])
def test_an_order_over_an_array_of_indices_is_foreseen(kind: str) -> None:
    """GIVEN the indices that NumPy or scikit-learn split a data set into."""
    subset = SubsetRandomSampler(np.arange(0, 40, 2, dtype=kind), generator=torch.Generator().manual_seed(0))  # type: ignore[arg-type]
    sampler = BatchSampler(subset, 3, False)
    facts: dict[str, Any] = {}
    order = AccessOrder(facts, lambda: False, lambda: False)
    assert order.can_be_known(Iterating(sampler))
    epoch, got, _iterating = of(sampler, facts)
    assert sorted(index for batch in got for index in batch) == list(range(0, 40, 2)) and next(got, "over") == "over"
    epoch.settle()
    assert facts["checked"] == facts["predicted"] > 0 and facts["predictability"] in ("run", "epoch")


def test_of_short_steps_only_the_first_batches_of_later_epochs_are_compared() -> None:
    """GIVEN a sampler with a generator of its own WHEN three epochs were as predicted THEN of the others eight batches
    are compared, and that still tells when the program has drawn from the generator too."""
    generator = torch.Generator().manual_seed(0)
    sampler = BatchSampler(RandomSampler(range(101), generator=generator), 2, False)
    facts: dict[str, Any] = {}
    order = AccessOrder(facts, lambda: False, lambda: True)

    def epoch() -> None:
        torch.manual_seed(1)
        iterating = Iterating(sampler)
        of_it = Epoch(order, iterating, None)
        got = [*of_it.watched(iter(sampler), True, order.most_compared(sampler), spend)]
        assert sorted(index for batch in got for index in batch) == [*range(101)]
        of_it.complete()

    for _ in range(6):
        epoch()
    assert facts["checked"] == facts["predicted"] == 3 * 101 + 3 * 8 * 2 and facts["predictability"] == "run"
    torch.rand(1, generator=generator)
    epoch()
    assert facts["predicted"] == facts["checked"] == 3 * 101 + 4 * 8 * 2 and facts["predictability"] == "epoch"


@pytest.mark.parametrize(("shuffle", "known_for"), [(False, "run"), (True, "epoch")])
def test_epochs_set_out_of_turn_are_nothing_to_a_sampler_that_does_not_shuffle(shuffle: bool, known_for: str) -> None:
    shard: DistributedSampler[int] = DistributedSampler(range(40), 2, 0, shuffle)  # type: ignore[arg-type]
    sampler = BatchSampler(shard, 5, False)
    facts: dict[str, Any] = {}
    order = AccessOrder(facts, lambda: False, lambda: False)
    for number in (0, 0, 1, 5):
        shard.set_epoch(number)
        iterating = Iterating(sampler)
        epoch = Epoch(order, iterating, None)
        assert len([*epoch.watched(iter(sampler), True, order.most_compared(sampler), spend)]) == 4
        epoch.complete()
    order.settle()
    assert facts["predicted"] == facts["checked"] == 80 and facts["predictability"] == known_for


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("processes", [1, 2])
def test_an_order_that_accelerate_seeds_is_known(processes: int, whole: bool) -> None:
    """GIVEN a sampler of Accelerate's, whose epochs it counts itself, and its part for one process, or what is left of
    an epoch WHEN three epochs are as predicted THEN it is known for the run, and draws nothing; and when the program
    tells it another epoch, it is known for the epoch."""
    seeded = SeedableRandomSampler(range(41), data_seed=3)
    sampler: Any = BatchSampler(seeded, 5, False)
    sampler = BatchSamplerShard(sampler, processes, processes - 1) if whole else SkipBatchSampler(sampler, 2)
    facts: dict[str, Any] = {}
    order = AccessOrder(facts, lambda: False, lambda: False)

    def epoch() -> list[Any]:
        torch.rand(1)
        iterating = Iterating(sampler)
        of_it = Epoch(order, iterating, None)
        got = [*of_it.watched(iter(sampler), False, order.most_compared(sampler), spend)]
        of_it.complete()
        return got

    epochs = [epoch() for _ in range(3)]
    indices = sum(len(batch) for batches in epochs for batch in batches)
    told = (facts["predicted"], facts["checked"], facts["predictability"], facts["draws_from"])
    assert told == (indices, indices, "run", "nothing") and epochs[0] != epochs[1]
    seeded.set_epoch(0)
    assert epoch() == epochs[0] and facts["predicted"] == facts["checked"] and facts["predictability"] == "epoch"


def test_that_an_epoch_is_left_early_is_seen_without_a_copy() -> None:
    """GIVEN short steps and three whole epochs, after which most are not copied WHEN the next ones are left early."""
    sampler = BatchSampler(RandomSampler(range(40)), 2, False)
    facts: dict[str, Any] = {}
    order = AccessOrder(facts, lambda: False, lambda: True)
    for taken in [20, 20, 20, 20, 5, 5]:
        assert "left_early" not in facts
        iterating = Iterating(sampler)
        epoch = Epoch(order, iterating, None)
        got = epoch.watched(iter(sampler), True, order.most_compared(sampler), spend)
        for number in range(1, taken + 1):
            next(got)
            if number == epoch.expected:
                epoch.all_given()
    assert epoch.known is None and facts["left_early"]


@pytest.mark.parametrize("late", [False, True])
def test_a_sampler_that_is_told_the_epoch_when_its_iterator_is_there_is_seen(late: bool) -> None:
    shard: DistributedSampler[int] = DistributedSampler(range(40), 2, 0)  # type: ignore[arg-type]
    facts: dict[str, Any] = {}
    for number in range(3):
        if not late:
            shard.set_epoch(number + 1)
        epoch, got, _iterating = of(BatchSampler(shard, 5, False), facts)
        if late:
            shard.set_epoch(number + 1)
        next(got)
        epoch.first_given()
    assert facts.get("told_late", False) == late


def test_of_large_batches_few_wait_to_be_compared() -> None:
    epoch, got, _iterating = of(BatchSampler(SequentialSampler(range(10**6)), 10**5, False), {})
    next(got), next(got)
    assert epoch.most_to_wait() == 2
    small, got, _iterating = of(BatchSampler(SequentialSampler(range(100)), 4, False), {})
    assert small.most_to_wait() > 1000 and next(got) and small.most_to_wait() > 1000


def test_who_meets_the_stand_in_of_a_data_set_gets_the_data_set() -> None:
    """GIVEN a sampler that is asked for its length, and another thread that uses its data set meanwhile."""
    met: list[Any] = []

    class Numbers(list[int]):
        def __len__(self) -> int:
            source: Any = sampler.data_source
            met.append((type(source), source[1], source.index(3), type(copy.deepcopy(sampler).data_source)))
            return 3

    numbers = Numbers([1, 2, 3])
    sampler = SequentialSampler(numbers)
    _epoch, got, _iterating = of(BatchSampler(sampler, 2, False), {})
    assert [*got] == [[0, 1], [2]] and sampler.data_source is numbers
    assert (Length, 2, 2, Numbers) in met


@pytest.mark.parametrize("asks_for_one_more", [True, False])
@pytest.mark.parametrize("is_short", [True, False])
@pytest.mark.parametrize("samples", [40, 41])
def test_an_epoch_is_complete_when_all_batches_were_given(
    samples: int, is_short: bool, asks_for_one_more: bool
) -> None:
    """GIVEN a loop that takes as many batches as there are, and does not ask for another one, as Lightning's WHEN its
    epochs are as predicted THEN the order is known for the run; also where only the first batches are compared, and
    where the sampler draws again as it comes to its end, as it does for the last of 41 samples."""
    generator = torch.Generator().manual_seed(0)
    sampler = BatchSampler(RandomSampler(range(samples), generator=generator), 2, False)
    facts: dict[str, Any] = {}
    order = AccessOrder(facts, lambda: False, lambda: is_short)
    for _ in range(6):
        iterating = Iterating(sampler)
        epoch = Epoch(order, iterating, None)
        got = epoch.watched(iter(sampler), True, order.most_compared(sampler), spend)
        for number in range(1, len(sampler) + 1):
            next(got)
            if number == epoch.expected:
                epoch.all_given()
        assert epoch.is_complete
        if asks_for_one_more:
            assert next(got, None) is None
            epoch.complete()
    order.settle()
    assert facts["predictability"] == "run" and "left_early" not in facts
    assert ("ends_unasked" in facts) != asks_for_one_more
    assert facts["checked"] == facts["predicted"] >= 3 * samples


def test_samplers_that_the_program_has_changed_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a method of the program's in one of torch's samplers THEN nobody but the program calls it."""
    asked: list[int] = []

    def given(self: Any) -> Iterator[int]:
        asked.append(len(self.indices))
        return iter(torch.randperm(len(self.indices)).tolist())

    sampler = SubsetRandomSampler(range(8))
    monkeypatch.setattr(SubsetRandomSampler, "__iter__", given)
    order = AccessOrder({}, lambda: False, lambda: False)
    assert not order.can_be_known(Iterating(sampler)) and not order.can_be_known(
        Iterating(BatchSampler(sampler, 2, True))
    )
    assert not asked


def test_orders_of_very_many_samples_are_not_copied() -> None:
    batches = [[0] * 1000] * 3000
    epoch, got, _iterating = of(batches, facts := {})  # type: ignore[var-annotated]
    assert next(got) == [0] * 1000 and epoch.known is None and facts["predictability"] == "none"


def test_threads_that_share_an_iterator_get_every_index_once() -> None:
    """GIVEN threads that ask while another is about to get the first index THEN all get theirs, to the end."""
    begun, go_on = threading.Event(), threading.Event()

    def slowly(act: Callable[..., None], *args: Any) -> None:
        begun.set()
        go_on.wait(10)
        act(*args)

    _epoch, got, _iterating = of(range(1000), {}, slowly)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.extend(got)) for _ in range(3)]
    threads[0].start()
    assert begun.wait(10)
    for thread in threads[1:]:
        thread.start()
    go_on.set()
    for thread in threads:
        thread.join()
    assert sorted(found) == [*range(1000)]


def test_a_program_that_goes_on_after_a_failure_gets_what_it_would_get() -> None:
    """GIVEN a data set that cannot tell its length at first, or a signal that interrupts us THEN the program sees the
    exception, no stand-in is left in its sampler, and what is left can be had."""

    class Uncounted:
        def __len__(self) -> int:
            raise OSError("no answer")

    inner = SequentialSampler(Uncounted())
    sampler = BatchSampler(inner, 2, False)
    facts: dict[str, Any] = {}
    epoch, got, _iterating = of(sampler, facts)
    with pytest.raises(OSError, match="no answer"):
        next(got)
    assert type(inner.data_source) is Uncounted and next(got, "over") == "over"
    epoch.settle()

    for interrupted_at in (0, 1):
        calls = iter(range(2))

        def interrupted(act: Callable[..., None], *args: Any, at: int = interrupted_at, of: Any = calls) -> None:
            if next(of) == at:
                raise KeyboardInterrupt
            act(*args)

        _epoch, got, _iterating = of(BatchSampler(SequentialSampler(range(3)), 2, False), {}, interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(got)
        assert [*got] == [[0, 1], [2]]


def test_another_iterator_in_the_place_of_ours_is_noticed() -> None:
    """GIVEN a loader that resumes in the middle of an epoch, on an iterator of its own THEN nothing is claimed."""
    facts: dict[str, Any] = {}
    epoch, _got, _iterating = of(SequentialSampler(range(3)), facts)
    epoch.settle()
    assert facts["predictability"] == "none"
