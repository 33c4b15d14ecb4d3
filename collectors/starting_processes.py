"""Which loaders without workers start processes as they make a batch: a worker, which is a daemon, may start none."""

import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, ModuleType
from typing import Any

from .agent import Agent
from .patching import Patches


class StartingProcesses:
    """Notices that a process of multiprocessing is started while a batch is made."""

    def __init__(self, agent: Agent, patches: Patches, is_fetch: Callable[[object], bool]) -> None:
        """`is_fetch`: whether this is the code of torch's that makes a batch; what draws its indices may fork."""
        self._agent, self._patches, self._is_fetch = agent, patches, is_fetch
        self._make_batch: set[CodeType] = set()  # functions of torch's iterators without workers
        agent.when_imported("loading", "multiprocessing.process", self._hook)

    def see(self, kind: Any) -> None:
        """`kind`: a class of iterators that make batches themselves."""
        self._make_batch.add(kind._next_data.__code__)

    def _hook(self, module: ModuleType) -> None:
        self._patches.replace(module.BaseProcess, "start", self._noted)

    def _noted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def start(process: Any) -> None:
            try:
                for iterator in self._making_batches(sys._getframe(1)):
                    self._agent.loaders.facts_of(iterator._tracekit.loader)["starts_processes"] = True
            except Exception as error:
                self._agent.fail("loading", error)
            original(process)

        return start

    def _making_batches(self, frame: FrameType | None) -> Iterator[Any]:
        is_made = False
        while frame is not None:
            is_made |= self._is_fetch(frame.f_code)
            if is_made and frame.f_code in self._make_batch:
                yield frame.f_locals["self"]
            frame = frame.f_back
