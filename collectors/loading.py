"""Loading: how long the program waits for each batch, and who made it."""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from time import perf_counter_ns as clock
from types import ModuleType
from typing import Any

from tracekit.record.wire import Kind

from .access_order import AccessOrder, Epoch
from .agent import Agent
from .fetching import Fetching
from .patching import Patches
from .spool import threads
from .steps import BATCH
from .tracebacks import worded_without_us

_BATCH = int(Kind.BATCH)
# A batch is searched this deep and this wide for the tensors that it is made of.
_DEEPEST, _MOST_PARTS = 3, 64


class Loading:
    """Times every batch of every DataLoader.

    1. `__init__` of loaders' iterators: which epoch it is, and one row per worker that was started; one more when they
       are stopped.
    2. `_next_index` of the iterators: whether the order of the samples is the one that was predicted.
    3. `__next__` of the iterators: one row per batch that the program got, and which worker made it.
    4. In the workers: `Fetching`.
    """

    def __init__(self) -> None:
        self._patches = Patches()
        self._epochs: dict[str, int] = {}
        self._orders: dict[str, AccessOrder] = {}

    def install(self, agent: Agent) -> None:
        self._agent = agent
        self._fetching = fetching = Fetching(agent, self._patches)
        agent.when_imported("loading", "torch.utils.data.dataloader", self._hook_iterators)
        agent.when_imported("loading", "torch.utils.data._utils.fetch", fetching.hook_fetchers)
        agent.when_imported("loading", "torch.utils.data._utils.worker", fetching.hook_worker)
        agent.when_imported("loading", "torch._utils", self._hook_errors)
        agent.before_exit.append(self._settle)

    def off(self) -> None:
        self._patches.undo()
        self._fetching.off()

    def _hook_errors(self, module: ModuleType) -> None:
        self._patches.replace(module.ExceptionWrapper, "__init__", worded_without_us)

    def _hook_iterators(self, module: ModuleType) -> None:
        self._patches.replace(module._BaseDataLoaderIter, "__init__", self._named_iterator)
        self._patches.replace(module._BaseDataLoaderIter, "_reset", self._new_epoch)
        self._patches.replace(module._BaseDataLoaderIter, "_next_index", self._checked_index)
        self._patches.replace(module._BaseDataLoaderIter, "__next__", self._timed_next)
        of_workers = module._MultiProcessingDataLoaderIter
        self._patches.replace(of_workers, "__init__", self._timed_start)
        self._patches.replace(of_workers, "_shutdown_workers", self._timed_stop)
        if "worker_idx" in signature(of_workers._process_data).parameters:  # older versions do not tell
            self._patches.replace(of_workers, "_process_data", self._told_worker)

    def _named_iterator(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __init__(iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            original(iterator, loader, *args, **kwargs)
            try:
                name = self._agent.loaders.name(loader)
                iterator._tracekit = _Iteration(
                    name, self._agent.spool.intern(name), self._next_epoch(name), loader.generator
                )
                self._agent.loaders.used(loader)
            except Exception as error:
                self._agent.fail("loading", error)

        return __init__

    def _timed_start(self, original: Callable[..., Any]) -> Callable[..., Any]:
        spool = self._agent.spool

        def __init__(iterator: Any, *args: Any, **kwargs: Any) -> None:
            start = clock()
            original(iterator, *args, **kwargs)
            end = clock()
            try:
                of = iterator._tracekit
                name = spool.intern(of.loader)
                for worker, process in enumerate(iterator._workers):
                    spool.write(Kind.WORKER, name, start, end, of.epoch, worker, process.pid)
            except Exception as error:
                self._agent.fail("loading", error)

        return __init__

    def _timed_stop(self, original: Callable[..., Any]) -> Callable[..., Any]:
        spool = self._agent.spool

        def _shutdown_workers(iterator: Any) -> None:
            start = clock()
            stops = not getattr(iterator, "_shutdown", True)
            original(iterator)
            try:
                if stops and iterator._shutdown:
                    of = iterator._tracekit
                    count = len(iterator._workers)
                    spool.write(Kind.WORKER, spool.intern(of.loader), start, clock(), of.epoch, -1, count)
            except Exception as error:
                self._agent.fail("loading", error)

        return _shutdown_workers

    def _told_worker(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _process_data(iterator: Any, data: Any, worker_idx: int) -> Any:
            if hasattr(iterator, "_tracekit"):
                iterator._tracekit.worker = worker_idx
            return original(iterator, data, worker_idx)

        return _process_data

    def _next_epoch(self, loader: str) -> int:
        epoch = self._epochs.get(loader, -1) + 1
        self._epochs[loader] = epoch
        return epoch

    def _new_epoch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _reset(iterator: Any, loader: Any, first_iter: bool = False) -> None:
            original(iterator, loader, first_iter)
            if not first_iter and hasattr(iterator, "_tracekit"):
                iterator._tracekit.begin(self._next_epoch(iterator._tracekit.loader))

        return _reset

    def _checked_index(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _next_index(iterator: Any) -> Any:
            of: _Iteration | None = getattr(iterator, "_tracekit", None)
            order = None if of is None else of.order or self._order_of(iterator)
            try:
                index = original(iterator)
            except StopIteration:
                self._note(order, None)
                raise
            except BaseException:
                if order is not None:
                    order.failed()
                raise
            self._note(order, index)
            return index

        return _next_index

    def _order_of(self, iterator: Any) -> Epoch | None:
        try:
            began = clock()
            of: _Iteration = iterator._tracekit
            if of.loader not in self._orders:
                facts = self._agent.loaders.facts_of(of.loader)
                self._orders[of.loader] = AccessOrder(facts, self._agent.window_is_open)
            of.order = self._orders[of.loader].begin(iterator, of.generator)
            self._agent.governor.spent_ns += clock() - began
            return of.order
        except Exception as error:
            self._agent.fail("loading", error)
            return None

    def _note(self, order: Epoch | None, index: Any) -> None:
        """What the sampler gave out, None at its end; compared with what was predicted when there is enough of it."""
        try:
            if order is not None and order.issued(index):
                began = clock()
                order.settle()
                self._agent.governor.spent_ns += clock() - began
        except Exception as error:
            self._agent.fail("loading", error)

    def _settle(self) -> None:
        for order in self._orders.values():
            order.settle()

    def _timed_next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        import torch

        agent, spool, note = self._agent, self._agent.spool, self._agent.spool.note
        modes = torch._C._len_torch_function_stack  # they would see what is asked of tensors

        def __next__(iterator: Any) -> Any:
            try:
                if agent.step_source_rank >= BATCH:
                    agent.step_source(BATCH)
                if agent.safe_point_due:
                    agent.safe_point()
            except Exception as error:
                agent.fail("loading", error)
            start = clock()
            try:
                batch = original(iterator)
            except StopIteration:
                self._end(iterator)
                raise
            end = clock()
            try:
                of: _Iteration = iterator._tracekit
                index = iterator._num_yielded - 1
                size = _bytes_of(batch) if not modes() else -1
                note((of.name, threads.current().tid, start, end, of.epoch, index, of.worker, size, 0, 0, _BATCH))
                if spool.has_many_notes():
                    agent.write_noted()
                agent.governor.spent_ns += clock() - end
            except Exception as error:
                agent.fail("loading", error)
            return batch

        return __next__

    def _end(self, iterator: Any) -> None:
        """The program has had all batches of an epoch."""
        try:
            self._agent.write_noted()
            if iterator._tracekit.order is not None:
                iterator._tracekit.order.is_complete = True
        except Exception as error:
            self._agent.fail("loading", error)


@dataclass
class _Iteration:
    """What is known of a loader's iterator: its loader, the epoch it is in, and who made the batch that is due."""

    loader: str
    name: int  # the same, interned
    epoch: int
    generator: Any  # the loader's own, if it has one
    worker: int = -1
    order: Epoch | None = None

    def begin(self, epoch: int) -> None:
        self.epoch, self.order = epoch, None


def _bytes_of(batch: Any) -> int:
    """The bytes of the tensors in a batch; -1 where it is not made of dense tensors, lists, tuples and dictionaries
    alone."""
    try:
        return _counted_bytes(batch)
    except RuntimeError:  # a sparse tensor does not say
        return -1


def _counted_bytes(batch: Any) -> int:
    kind = type(batch)
    if kind.__name__ == "Tensor" and kind.__module__ == "torch":
        return int(batch.nbytes)
    total, parts, level = 0, 0, [batch]
    for _ in range(_DEEPEST):
        deeper: list[Any] = []
        for part in level:
            kind = type(part)
            if kind in (list, tuple):
                deeper += part
            elif kind is dict:
                deeper += part.values()
            elif kind.__module__ == "torch" and kind.__name__ == "Tensor":
                total += part.nbytes
            elif kind not in (int, float, bool, str, bytes, type(None)):
                return -1
        parts += len(deeper)
        if not deeper:
            return total
        if parts > _MOST_PARTS:
            return -1
        level = deeper
    return -1
