"""Memory: whether a loader's workers, and the batches that they have made, fit into what is free."""

from collections.abc import Iterable

from tracekit.analysis.loading import LoaderCosts
from tracekit.run.manifest import Memory

# Of the files that a process may have open the rest is for what else it opens.
_FOR_BATCHES = 0.5


def needed(costs: LoaderCosts, workers: int, prefetch: int) -> tuple[int, int]:
    """The bytes that batches take in /dev/shm at most, where the largest that was seen follow each other: those that
    are ahead, and the two that the program has where it keeps one until it has the next. And the bytes of memory, of
    these and the workers."""
    shared = (workers * prefetch + 2) * (costs.largest_batch or 0) if workers else 0
    return shared, shared + workers * costs.worker_bytes


def files_needed(costs: LoaderCosts, workers: int, prefetch: int) -> int:
    """How many files the program has open, one for each piece of memory that workers hand over, where all batches that
    are ahead wait for one that takes long."""
    return (workers * prefetch + 2) * costs.settings.storages if workers else 0


def has_room(costs: LoaderCosts, workers: int, prefetch: int) -> bool:
    """Whether so many workers and their batches have enough of everything, as far as there is a limit."""
    return has_memory(costs, workers, prefetch) and has_files(costs, workers, prefetch)


def has_files(costs: LoaderCosts, workers: int, prefetch: int) -> bool:
    """Whether the pieces of memory that they are handed over in do not need too many open files."""
    files = costs.memory.files
    return files is None or files_needed(costs, workers, prefetch) <= files * _FOR_BATCHES


def has_memory(costs: LoaderCosts, workers: int, prefetch: int) -> bool:
    """Whether so many workers and their batches fit into memory, and the batches into /dev/shm, as far as there is a
    limit. More of what nobody has seen does not."""
    if workers and (what_is_not_known(costs) or costs.memory.shared == 0):  # their queues need some of /dev/shm, too
        return False
    shared, free = costs.memory.shared, costs.memory.free
    ahead, memory = needed(costs, workers, prefetch)
    return (shared is None or ahead <= shared) and (free is None or memory <= free)


def fits(costs: LoaderCosts, workers: int, prefetch: int) -> bool:
    """The same; what the program has fits."""
    is_there = workers <= costs.settings.num_workers and prefetch <= (costs.settings.prefetch_factor or 0)
    return is_there or has_room(costs, workers, prefetch)


def what_is_not_known(costs: LoaderCosts) -> str:
    """Why nobody can say whether more workers or batches would fit; "" where that can be said."""
    if costs.largest_batch is None and (costs.memory.shared, costs.memory.free) != (None, None):
        return "how large its batches are"
    if not costs.worker_bytes and costs.memory.free is not None:
        return "how much memory a worker takes (the collector `counters` sees it)"
    return ""


def left_by(others: Iterable[tuple[LoaderCosts, int, int]], memory: Memory) -> Memory:
    """What other loaders leave of what was free when they have so many workers and batches ahead, all at once."""
    shared = free = files = 0
    for costs, workers, prefetch in others:
        ahead, every = needed(costs, workers, prefetch)
        shared, free, files = shared + ahead, free + every, files + files_needed(costs, workers, prefetch)
    return Memory(
        None if memory.free is None else max(memory.free - free, 0),
        None if memory.shared is None else max(memory.shared - shared, 0),
        None if memory.files is None else max(memory.files - int(files / _FOR_BATCHES), 0),
    )
