"""Memory: whether a loader's workers, and the batches that they have made, fit into what is free."""

from tracekit.analysis.loading import LoaderCosts
from tracekit.run.manifest import Memory


def needed(costs: LoaderCosts, workers: int, prefetch: int) -> tuple[int, int]:
    """The bytes that batches take in /dev/shm at most, where the largest that was seen follow each other: those that
    are ahead, and the one that the program has. And the bytes of memory, of these and the workers."""
    shared = (workers * prefetch + 1) * (costs.largest_batch or 0) if workers else 0
    return shared, shared + workers * costs.worker_bytes


def fits(costs: LoaderCosts, workers: int, prefetch: int) -> bool:
    """Whether so many workers and their batches fit into memory, and the batches into /dev/shm.

    What the program has fits. More of what is not known does not; into what is not limited all fits."""
    if workers <= costs.settings.num_workers and prefetch <= (costs.settings.prefetch_factor or 0):
        return True
    shared, free = costs.memory.shared, costs.memory.free
    if workers and what_is_not_known(costs):
        return False
    ahead, memory = needed(costs, workers, prefetch)
    return (shared is None or ahead <= shared) and (free is None or memory <= free)


def what_is_not_known(costs: LoaderCosts) -> str:
    """Why nobody can say whether more workers or batches would fit; "" where that can be said."""
    if costs.largest_batch is None and (costs.memory.shared, costs.memory.free) != (None, None):
        return "how large its batches are"
    if not costs.worker_bytes and costs.memory.free is not None:
        return "how much memory a worker takes (the collector `counters` sees it)"
    return ""


def left_by(costs: LoaderCosts, workers: int, prefetch: int) -> Memory:
    """What the loader leaves for others of what is free when it has so many workers in the place of its own."""
    now = needed(costs, costs.settings.num_workers, costs.settings.prefetch_factor or 0)
    then = needed(costs, workers, prefetch)
    shared, free = (max(after - before, 0) for before, after in zip(now, then, strict=True))
    memory = costs.memory
    return Memory(
        None if memory.free is None else max(memory.free - free, 0),
        None if memory.shared is None else max(memory.shared - shared, 0),
    )
