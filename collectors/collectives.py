"""Collectives: the communication calls that the program makes itself, and who the ranks are.

Gradient buckets of DistributedDataParallel are reduced by C++ code that does not come through here; they show in
profiler windows.
"""

from collections.abc import Callable
from time import perf_counter_ns as clock
from types import ModuleType
from typing import Any

from tracekit.record.wire import Kind

from .agent import Agent
from .patching import Patches

_CALLS = (
    "all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_to_all", "all_to_all_single",
    "barrier", "broadcast", "broadcast_object_list", "gather", "gather_object", "recv", "reduce", "reduce_scatter",
    "reduce_scatter_tensor", "scatter", "scatter_object_list", "send",
)  # fmt: skip


class Collectives:
    """Times every call of the c10d interface."""

    def __init__(self) -> None:
        self._patches = Patches()
        self._sequence = 0

    def install(self, agent: Agent) -> None:
        self._agent = agent
        agent.when_imported("collectives", "torch.distributed.distributed_c10d", self._hook)
        agent.when_imported("collectives", "torch.nn.parallel.distributed", self._hook_ddp)

    def off(self) -> None:
        self._patches.undo()

    def _hook(self, module: ModuleType) -> None:
        for name in _CALLS:
            if hasattr(module, name):
                self._patches.replace(module, name, lambda original: self._timed(original, module))
        self._patches.replace(module, "init_process_group", lambda original: self._described(original, module))

    def _hook_ddp(self, module: ModuleType) -> None:
        self._patches.replace(module.DistributedDataParallel, "__init__", self._noted_ddp)

    def _noted_ddp(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __init__(*args: Any, **kwargs: Any) -> None:
            self._agent.note_missing(
                "the gradient buckets of DistributedDataParallel", "reduced in C++: seen in profiler windows only"
            )
            original(*args, **kwargs)

        return __init__

    def _described(self, original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            try:
                self._agent.describe(rank=module.get_rank(), world_size=module.get_world_size())
            except Exception as error:
                self._agent.fail("collectives", error)
            return result

        return init_process_group

    def _timed(self, original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
        agent = self._agent
        op = agent.spool.intern(original.__name__)

        def call(*args: Any, **kwargs: Any) -> Any:
            start = clock()
            try:
                return original(*args, **kwargs)
            finally:
                end = clock()
                try:
                    self._record(op, start, end, args, kwargs)
                    agent.governor.spent_ns += clock() - end
                except Exception as error:
                    agent.fail("collectives", error)

        return call

    def _record(self, op: int, start: int, end: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        size, dtype = _largest((*args, *kwargs.values()))
        spool = self._agent.spool
        group = kwargs.get("group")
        name = getattr(group, "group_name", "") if group is not None else "world"
        self._sequence += 1
        spool.write(
            Kind.COLLECTIVE, op, start, end, spool.intern(str(name)), self._sequence, size, spool.intern(dtype),
            int(bool(kwargs.get("async_op"))),
        )  # fmt: skip


def _largest(values: tuple[Any, ...]) -> tuple[int, str]:
    """Bytes and dtype of the largest argument: a tensor, or a list of tensors taken together; (0, "") for objects."""
    import torch

    best = (0, "")
    for value in values:
        members = value if type(value) is list else [value]
        tensors = [member for member in members if type(member) in (torch.Tensor, torch.nn.Parameter)]
        if tensors:
            size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            best = max(best, (size, str(tensors[0].dtype).removeprefix("torch.")))
    return best
