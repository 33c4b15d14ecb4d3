"""Layers: the time of every `nn.Module` call, forward and backward, under the module's qualified name.

`torch.nn.Module.__call__` is replaced once, before anything else refers to it. Nothing is stored in the user's modules
(hooks of theirs would be pickled with the model, and torch.compile would trace them), and a call costs a quarter of what a
hook pair costs. Code that torch.compile has compiled does not come through here: only the outside of it is timed.

1. An outermost call is recorded on every step; the calls inside it on detailed steps (`governor`).
2. A module met for the first time as an outermost one names all modules inside it.
3. On detailed steps the autograd nodes at a layer's input and output tell when its backward began and ended.
4. Now and then the layers inside an nn.LSTM, nn.GRU or nn.RNN are told apart (`inner_layers`).
"""

import weakref
from collections.abc import Callable
from time import perf_counter_ns as clock
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tracekit.record.wire import FORWARD, Kind

from .agent import Agent
from .backward import Backward
from .inner_layers import InnerLayers
from .patching import Patches
from .spool import thread
from .steps import CALL, Steps

if TYPE_CHECKING:
    import torch


class Layer:
    """A module that has been called: its name and number in this process."""

    __slots__ = ("inner", "name", "number", "reference")

    def __init__(
        self, reference: "weakref.ref[torch.nn.Module]", name: int, number: int, inner: InnerLayers | None
    ) -> None:
        self.reference = reference
        self.name = name
        self.number = number
        self.inner = inner


# Stands for modules that are not layers of the program: the graphs inside a torch.compile region.
_LEFT_ALONE = Layer(lambda: None, 0, -1, None)  # type: ignore[arg-type]


class Layers:
    """Times module calls."""

    def __init__(self) -> None:
        self._patches = Patches()
        self._layers: dict[int, Layer] = {}
        self._numbers: dict[str, int] = {}
        self._holders: dict[str, weakref.ref[torch.nn.Module]] = {}
        self._backward: Backward | None = None

    def install(self, agent: Agent) -> None:
        self._agent = agent
        steps = agent.collectors.get("steps")
        if isinstance(steps, Steps):
            self._backward = Backward(agent)
            steps.after_backward.append(self._backward.engine_ended)
        agent.when_imported("layers", "torch.nn.modules.module", self._hook)

    def off(self) -> None:
        self._patches.undo()
        self._layers.clear()

    def _hook(self, module: ModuleType) -> None:
        self._patches.replace(module.Module, "__call__", self._timed_call)

    def _timed_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        agent = self._agent
        record = self._recorded_call

        def call(module: "torch.nn.Module", *args: Any, **kwargs: Any) -> Any:
            depth = thread.depth
            if depth and not agent.governor.detailed:
                return original(module, *args, **kwargs)
            return record(original, depth, module, args, kwargs)

        return call

    def _recorded_call(
        self,
        original: Callable[..., Any],
        depth: int,
        module: "torch.nn.Module",
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        agent = self._agent
        entered = clock()
        try:
            if not depth:
                agent.step_source(CALL)
                agent.safe_point()
            detailed = agent.governor.detailed
            layer = self._layers.get(id(module)) or self._meet(module, depth)
            if layer is _LEFT_ALONE:
                return original(module, *args, **kwargs)
            inner = layer.inner if detailed and layer.inner is not None and layer.inner.worth_it(module) else None
            follow = self._backward.enter(args) if detailed and self._backward is not None else None
        except Exception as error:
            agent.fail("layers", error)
            return original(module, *args, **kwargs)
        thread.depth = depth + 1
        start = clock()
        try:
            result = (
                inner.run(original, module, args, kwargs, depth + 1) if inner else original(module, *args, **kwargs)
            )
        finally:
            end = clock()
            thread.depth = depth
        try:
            agent.spool.write(Kind.LAYER, layer.name, start, end, layer.number, inner is not None, 0, 0, depth, FORWARD)
            if follow is not None:
                follow.leave(result, layer.name, layer.number, depth)
            agent.governor.spent_ns += clock() - end + start - entered
        except Exception as error:
            agent.fail("layers", error)
        return result

    def _meet(self, module: "torch.nn.Module", depth: int) -> Layer:
        """Name a module called for the first time, and with an outermost one all modules inside it."""
        if depth and _is_compiled_graph(module):
            self._layers[id(module)] = _LEFT_ALONE
            return _LEFT_ALONE
        if not depth:
            taken = any(self._is_taken(name) for name, _ in module.named_modules() if name)
            prefix = self._free(type(module).__name__) + "." if taken else ""
            for name, child in module.named_modules():
                if name and id(child) not in self._layers:
                    self._add(child, prefix + name)
            if id(module) not in self._layers:
                self._add(module, self._free(type(module).__name__))
        elif id(module) not in self._layers:  # made or attached after its root was named
            self._add(module, self._free(type(module).__name__))
        return self._layers[id(module)]

    def _free(self, name: str) -> str:
        """The name itself, or with a number behind it when another living module has it: the model of the next fold
        goes on under the names of the last."""
        number = 1
        free = name
        while self._is_taken(free):
            number += 1
            free = f"{name}#{number}"
        return free

    def _is_taken(self, name: str) -> bool:
        holder = self._holders.get(name)
        return holder is not None and holder() is not None

    def _add(self, module: "torch.nn.Module", name: str) -> None:
        layers, key = self._layers, id(module)
        reference = weakref.ref(module, lambda _: layers.pop(key, None))
        self._holders[name] = reference
        number = self._numbers.setdefault(name, len(self._numbers))
        inner = InnerLayers.of(module, name, self._agent, self._numbers)
        layers[key] = Layer(reference, self._agent.spool.intern(name), number, inner)


def _is_compiled_graph(module: "torch.nn.Module") -> bool:
    import torch

    return isinstance(module, torch.fx.GraphModule)
