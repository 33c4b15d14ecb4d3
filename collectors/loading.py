"""Loading: how long the program waits for each batch, and how long a worker takes to make one."""

import weakref
from collections.abc import Callable
from inspect import signature
from time import perf_counter_ns as clock
from types import ModuleType
from typing import Any

from tracekit.record.wire import Kind

from .agent import Agent
from .patching import Patches
from .steps import BATCH
from .tracebacks import worded_without_us


class Loading:
    """Times every batch of every DataLoader.

    1. `__next__` of the loader's iterators: one row per batch that the program got, and which worker made it.
    2. `fetch` of the data set fetchers, in the worker or, without workers, in the program: one row per batch made.
    3. The loop of a worker process: its role.
    """

    def __init__(self) -> None:
        self._patches = Patches()
        self._loaders: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._count = 0
        self._epochs: dict[str, int] = {}

    def install(self, agent: Agent) -> None:
        self._agent = agent
        agent.when_imported("loading", "torch.utils.data.dataloader", self._hook_iterators)
        agent.when_imported("loading", "torch.utils.data._utils.fetch", self._hook_fetchers)
        agent.when_imported("loading", "torch.utils.data._utils.worker", self._hook_worker)
        agent.when_imported("loading", "torch._utils", self._hook_errors)

    def off(self) -> None:
        self._patches.undo()

    def _hook_iterators(self, module: ModuleType) -> None:
        self._patches.replace(module._BaseDataLoaderIter, "__init__", self._named_iterator)
        self._patches.replace(module._BaseDataLoaderIter, "_reset", self._new_epoch)
        self._patches.replace(module._BaseDataLoaderIter, "__next__", self._timed_next)
        of_workers = module._MultiProcessingDataLoaderIter
        if "worker_idx" in signature(of_workers._process_data).parameters:  # older versions do not tell
            self._patches.replace(of_workers, "_process_data", self._told_worker)

    def _named_iterator(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __init__(iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            iterator._tracekit_worker = -1
            original(iterator, loader, *args, **kwargs)
            try:
                iterator._tracekit_loader = self._name(loader)
                iterator._tracekit_epoch = self._next_epoch(iterator._tracekit_loader)
            except Exception as error:
                self._agent.fail("loading", error)

        return __init__

    def _told_worker(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _process_data(iterator: Any, data: Any, worker_idx: int) -> Any:
            iterator._tracekit_worker = worker_idx
            return original(iterator, data, worker_idx)

        return _process_data

    def _name(self, loader: Any) -> str:
        """`loader`, `loader#2`, … in the order in which the program first iterates over them."""
        key = id(loader)
        if key not in self._loaders:
            self._count += 1
            name = "loader" if self._count == 1 else f"loader#{self._count}"
            self._loaders[key] = (weakref.ref(loader, lambda _: self._loaders.pop(key, None)), name)
        return self._loaders[key][1]

    def _next_epoch(self, loader: str) -> int:
        epoch = self._epochs.get(loader, -1) + 1
        self._epochs[loader] = epoch
        return epoch

    def _new_epoch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _reset(iterator: Any, loader: Any, first_iter: bool = False) -> None:
            original(iterator, loader, first_iter)
            if not first_iter and hasattr(iterator, "_tracekit_loader"):
                iterator._tracekit_epoch = self._next_epoch(iterator._tracekit_loader)

        return _reset

    def _timed_next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        agent = self._agent

        def __next__(iterator: Any) -> Any:
            try:
                if agent.step_source_rank >= BATCH:
                    agent.step_source(BATCH)
                if agent.safe_point_due:
                    agent.safe_point()
            except Exception as error:
                agent.fail("loading", error)
            start = clock()
            batch = original(iterator)
            end = clock()
            try:
                name = agent.spool.intern(iterator._tracekit_loader)
                index = iterator._num_yielded - 1
                agent.spool.write(
                    Kind.BATCH, name, start, end, iterator._tracekit_epoch, index, iterator._tracekit_worker, -1
                )
                agent.governor.spent_ns += clock() - end
            except Exception as error:
                agent.fail("loading", error)
            return batch

        return __next__

    def _hook_fetchers(self, module: ModuleType) -> None:
        for fetcher in (module._MapDatasetFetcher, module._IterableDatasetFetcher):
            self._patches.replace(fetcher, "fetch", self._timed_fetch)

    def _hook_errors(self, module: ModuleType) -> None:
        self._patches.replace(module.ExceptionWrapper, "__init__", worded_without_us)

    def _timed_fetch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        agent = self._agent
        made = 0

        def fetch(fetcher: Any, possibly_batched_index: Any) -> Any:
            nonlocal made
            start = clock()
            batch = original(fetcher, possibly_batched_index)
            end = clock()
            try:
                agent.spool.write(Kind.FETCH, agent.spool.intern("fetch"), start, end, made, self._worker)
                agent.governor.spent_ns += clock() - end
                made += 1
            except Exception as error:
                agent.fail("loading", error)
            return batch

        return fetch

    _worker = -1

    def _hook_worker(self, module: ModuleType) -> None:
        self._patches.replace(module, "_worker_loop", self._named_worker)

    def _named_worker(self, original: Callable[..., Any]) -> Callable[..., Any]:
        names = original.__code__.co_varnames[: original.__code__.co_argcount]
        position = names.index("worker_id")

        def _worker_loop(*args: Any, **kwargs: Any) -> Any:
            try:
                worker = kwargs["worker_id"] if "worker_id" in kwargs else args[position]
                self._worker = worker
                self._agent.describe(worker=worker)
            except Exception as error:
                self._agent.fail("loading", error)
            return original(*args, **kwargs)

        return _worker_loop
