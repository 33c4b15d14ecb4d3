"""What a loader's setting is said to change, by what is known of the loaders."""

import pytest

from tracekit.advice.loader_effects import beside_results, effect_of, why_no_workers
from tracekit.run.manifest import Loader

SHUFFLED = Loader(num_workers=2, sampler="RandomSampler", predictability="epoch", draws_from="program")
SEEDED = Loader(
    num_workers=2, sampler="RandomSampler", predictability="run", draws_from="generator", has_generator=True
)
KEPT = Loader(
    num_workers=2, sampler="RandomSampler", predictability="run", draws_from="generator", has_generator=True,
    persistent_workers=True,
)  # fmt: skip
SHARDED = Loader(num_workers=2, sampler="DistributedSampler", predictability="epoch", draws_from="nothing")
IN_A_ROW = Loader(num_workers=2, sampler="SequentialSampler", predictability="run", draws_from="nothing")
SAME_LIST = Loader(num_workers=2, sampler="list", predictability="run", draws_from="nothing")
CHANGED_LIST = Loader(num_workers=2, sampler="list", predictability="epoch", draws_from="nothing")
ANY_ORDER = Loader(
    num_workers=2, sampler="SequentialSampler", predictability="run", draws_from="nothing", in_order=False
)
UNSEEN = Loader(num_workers=2, sampler="RandomSampler")
STREAM = Loader(num_workers=2, iterable=True, predictability="none")
KEPT_STREAM = Loader(num_workers=2, iterable=True, predictability="none", persistent_workers=True)
LEFT_EARLY = Loader(
    num_workers=2, sampler="RandomSampler", predictability="epoch", draws_from="program", persistent_workers=True,
    left_early=True,
)  # fmt: skip
NO_MORE = Loader(
    num_workers=0, sampler="RandomSampler", predictability="run", draws_from="generator", has_generator=True,
    ends_unasked=True,
)  # fmt: skip
TOLD_LATE = Loader(
    num_workers=2, sampler="DistributedSampler", predictability="run", draws_from="nothing", told_late=True
)
OWN_KIND = Loader(num_workers=2, sampler="Mine", predictability="none")
NAMED_SO = Loader(num_workers=2, sampler="DistributedSampler", predictability="none")


@pytest.mark.parametrize(
    ("loader", "others", "more", "ahead", "none", "persistent"),
    [
        (SHUFFLED, (), "augmentation", "identical", "order", "order"),
        (SEEDED, (), "augmentation", "identical", "augmentation", "order"),
        (SEEDED, (SHUFFLED,), "augmentation", "identical", "order", "order"),
        (KEPT, (), "augmentation", "identical", "order", "order"),  # without workers it draws a seed per epoch
        (SHARDED, (), "augmentation", "identical", "augmentation", "augmentation"),
        (IN_A_ROW, (), "augmentation", "identical", "augmentation", "augmentation"),
        (IN_A_ROW, (SHUFFLED,), "augmentation", "identical", "order", "order"),
        (IN_A_ROW, (SEEDED,), "augmentation", "identical", "augmentation", "augmentation"),
        (IN_A_ROW, (UNSEEN,), "augmentation", "identical", "order", "order"),
        (SAME_LIST, (), "augmentation", "identical", "augmentation", "augmentation"),
        (CHANGED_LIST, (), "order", "order", "order", "order"),  # the program shuffles it with who knows what
        (ANY_ORDER, (), "order", "order", "order", "augmentation"),
        (UNSEEN, (), "order", "order", "order", "order"),
        (LEFT_EARLY, (), "augmentation", "augmentation", "order", "order"),  # its workers have drawn for what was left
        (NO_MORE, (), "order", "identical", "order", "order"),
        (TOLD_LATE, (), "augmentation", "identical", "order", "augmentation"),  # workers are handed the last epoch's
        (OWN_KIND, (), "order", "order", "order", "order"),
        (NAMED_SO, (), "order", "order", "order", "order"),
        (STREAM, (), "order", "identical", "order", "order"),  # each worker reads on for itself
        (KEPT_STREAM, (), "order", "order", "order", "order"),  # and goes on from where it was, so far ahead
    ],
)
def test_labels(loader: Loader, others: tuple[Loader, ...], more: str, ahead: str, none: str, persistent: str) -> None:
    """More workers, batches further ahead, no workers, workers that persist."""
    found = [
        effect_of(loader, others, key, value)
        for key, value in (
            ("num_workers", 3), ("prefetch_factor", 5), ("num_workers", 0), ("persistent_workers", True),
        )
    ]  # fmt: skip
    assert found == [more, ahead, none, persistent]
    assert effect_of(loader, others, "pin_memory", True) == "identical"
    assert effect_of(loader, others, "in_order", False) == "order"


@pytest.mark.parametrize(("stateful", "key", "said"), [
    (True, "num_workers", "cannot be loaded"), (True, "in_order", "nothing is promised"), (True, "pin_memory", ""),
    (False, "num_workers", ""),
])  # fmt: skip
def test_what_a_saved_state_hangs_on_is_said(stateful: bool, key: str, said: str) -> None:
    told = beside_results(Loader(num_workers=2, stateful=stateful), key)
    assert said in told and bool(told) == bool(said)


def test_a_loader_whose_samples_start_workers_can_have_none() -> None:
    """GIVEN a loader whose data set starts processes THEN its samples are made by no worker, which starts none."""
    assert "starts processes" in why_no_workers(Loader(num_workers=0, starts_processes=True))
    assert not why_no_workers(Loader(num_workers=0)) and not why_no_workers(Loader(num_workers=1))
