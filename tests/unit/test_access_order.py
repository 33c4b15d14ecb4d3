"""What a sampler gives out is noted on its way to the program, which gets the same as without."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler

from tracekit.collectors.access_order import AccessOrder, Epoch


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
