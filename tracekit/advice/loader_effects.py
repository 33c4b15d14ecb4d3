"""What a setting of a loader changes in the results: nothing, what is drawn at random for samples, or their order; and
beside them. And whether the loader can have workers at all."""

from collections.abc import Iterable

from tracekit.run.manifest import Loader
from tracekit.settings.catalogue import Effect, find

# Samplers whose order hangs on no random numbers of the program or the loader, torch's and Accelerate's.
_DRAW_NOTHING = ("SequentialSampler", "DistributedSampler", "range", "SeedableRandomSampler")
# How far ahead an order is known (`tracekit.collectors.access_order`), and where its random numbers come from
# (`tracekit.collectors.sampler_twins`).
_FOR_THE_RUN, _FOR_THE_EPOCH, _NOT = "run", "epoch", "none"
_PROGRAM, _GENERATOR, _NOTHING = "program", "generator", "nothing"


def effect_of(loader: Loader, others: Iterable[Loader], key: str, value: int | bool | str) -> Effect:
    """What a setting of a loader, `key`, changes in the results, as far as is known of it and of the `others` of the
    process.

    Data sets draw their random numbers in workers, each seeded by its number; without workers they draw the program's,
    and orders may hang on these. Workers that persist are seeded once: one seed less is drawn per epoch, from the
    loader's generator or else the program's. How far a loader is ahead tells when its sampler draws what it draws as it
    goes, and what it draws of its generator when an epoch is left early; workers that persist then make all that they
    were asked for, and have drawn for it, before they begin the next one. Without workers none persists.
    """
    kind = find(f"loader.*.{key}")
    assert kind is not None
    if key == "prefetch_factor" and loader.iterable and loader.in_order is not False and not loader.persistent_workers:
        return kind.effect  # each worker reads on for itself, and begins anew with each epoch
    if key in ("num_workers", "prefetch_factor") and not _is_known(loader):
        return "order"
    if key == "prefetch_factor" and loader.persistent_workers and loader.left_early:
        return "augmentation"
    seeded_by = _GENERATOR if loader.has_generator else _PROGRAM
    drawn_from: set[str] = set()
    if key == "num_workers" and 0 in (loader.num_workers, value):
        if loader.told_late:
            return "order"
        drawn_from = {_PROGRAM, seeded_by} if loader.persistent_workers else {_PROGRAM}
        if loader.ends_unasked:  # with workers the sampler is asked for one more, and some draw then
            drawn_from.add(_GENERATOR)
    elif key == "persistent_workers":
        drawn_from = {seeded_by}
    if drawn_from:
        hangs_on = {_draws_from(each) for each in (loader, *others)}
        return "order" if hangs_on & {*drawn_from, ""} else "augmentation"
    return kind.effect


def beside_results(loader: Loader, key: str) -> str:
    """What a setting of a loader changes beside the results, in words; "" where nothing is known of."""
    if not loader.stateful:
        return ""
    told = {
        "num_workers": "a state that was saved with other workers cannot be loaded",
        "in_order": "nothing is promised of states that are saved then",
    }
    return told.get(key, "")


def why_no_workers(loader: Loader) -> str:
    """Why batches that the program makes itself can be made by no worker; "" where they can be, as far as was seen."""
    if loader.num_workers:
        return ""
    if loader.on_device:
        return "its batches are made on a GPU, which a process that is forked cannot use"
    if loader.daemonic:
        return "the process that goes through it is a daemon of multiprocessing, which may have no children"
    if loader.starts_processes:
        return "its data set starts processes, as a pool or a loader with workers, and a worker starts none"
    return ""


def _is_known(loader: Loader) -> bool:
    """Whether its order does not hang on how far ahead of the program it is."""
    if loader.in_order is False:
        return False
    if loader.predictability == _FOR_THE_RUN:
        return True
    return loader.predictability == _FOR_THE_EPOCH and (
        loader.draws_from == _PROGRAM or loader.sampler in _DRAW_NOTHING
    )


def _draws_from(loader: Loader) -> str:
    """Where the random numbers of its order come from; "" where that is not known."""
    if loader.sampler in _DRAW_NOTHING and loader.predictability != _NOT:  # a program may have one of that name
        return _NOTHING
    if loader.draws_from == _NOTHING and loader.predictability != _FOR_THE_RUN:
        return ""  # a list that the program shuffles
    return loader.draws_from
