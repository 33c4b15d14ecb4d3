"""The backward pass of a layer, seen from the autograd nodes at its ends; the graph itself is not changed.

A layer's backward begins when the node that made its output is about to run, and ends when the node that made its input
is: all nodes in between belong to the layer. Where the input has no node (the first layer of a model), it ends with the
run of the engine, parameter gradients included.
"""

from collections.abc import Callable, Sequence
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, Any

from tracekit.record.wire import BACKWARD, Kind

if TYPE_CHECKING:
    from .agent import Agent


class Backward:
    """The layers whose backward is under way in the current run of the engine."""

    def __init__(self, agent: "Agent") -> None:
        self.agent = agent
        self.open: list[_Passage] = []
        self._runs = 0  # of the engine that are under way, as far as they are seen
        agent.after_fork.append(self._forget)

    def enter(self, args: tuple[Any, ...]) -> "_Passage":
        """Note a layer's input as its forward begins."""
        return _Passage(self, node_of(args))

    def passed(self, end: object) -> None:
        """A node is about to run at which passages end."""
        try:
            now = clock()
            for passage in [each for each in self.open if each.ends_at is end]:
                passage.close(now)
                self.open.remove(passage)
        except Exception as error:
            self.agent.fail("layers", error)

    def engine_begins(self) -> "Sequence[_Passage]":
        """What is under way as a run of the engine begins: of one that it is inside, as that of a checkpoint is."""
        self._runs += 1
        return [*self.open] if self.open and self._runs > 1 else ()

    def engine_ended(self, outer: "Sequence[_Passage]") -> None:
        """Close what began in this run of the engine and has no input node to end it."""
        self._runs -= 1
        if not self.open:
            return
        now = clock()
        ended = [each for each in self.open if each not in outer]
        self.open[:] = [each for each in self.open if each in outer]
        try:
            for passage in ended:
                passage.close(now)
        except Exception as error:
            self.agent.fail("layers", error)

    def is_seen(self) -> bool:
        """Whether somebody will tell when the engine ends: it may rest, or a program may run it by itself."""
        return self._runs > 0 and not self.agent.resting.is_on

    def _forget(self) -> None:
        """In a forked child: they are its parent's."""
        self._runs = 0
        self.open.clear()


class _Passage:
    """One call of one layer, from its forward to the end of its backward."""

    __slots__ = ("_backward", "_began", "_depth", "_input", "_layer", "_name", "ends_at")

    def __init__(self, backward: Backward, node: Any) -> None:
        self._backward = backward
        self._input = node
        self._began = 0
        self.ends_at: object = None

    def leave(self, result: Any, name: int, layer: int, depth: int) -> None:
        """Watch the nodes at both ends, if the output has one of its own."""
        output, node = node_of((result,)), self._input
        self._input = None  # the graph must not live longer for our sake
        if output is None or output is node:
            return
        self._name, self._layer, self._depth = name, layer, depth
        output.register_prehook(self._begin)
        if node is not None:
            self.ends_at = end_at(node, "tracekit.recorded", self._backward.passed)

    def _begin(self, gradients: object) -> None:
        if not self._backward.is_seen():
            return
        try:
            self._began = clock()
            self._backward.open.append(self)
        except Exception as error:
            self._backward.agent.fail("layers", error)

    def close(self, end: int) -> None:
        """Record the backward pass."""
        agent = self._backward.agent
        agent.spool.write(Kind.LAYER, self._name, self._began, end, self._layer, 0, 0, 0, self._depth, BACKWARD)
        if agent.tally is not None:
            agent.tally(self._layer, BACKWARD, self._depth, end - self._began)
        self._began = 0
        agent.governor.spent_ns += clock() - end


def end_at(node: Any, name: str, passed: Callable[[object], None]) -> object:
    """What tells this node from others; `passed` is told of it whenever the node is about to run.

    A node has one hook for each `name`, however many calls it made the input of: that of features which are computed
    once sees the calls of a whole training.
    """
    end = node.metadata.get(name)
    if end is None:
        end = node.metadata[name] = object()
        node.register_prehook(lambda gradients: passed(end))
    return end


def node_of(values: tuple[Any, ...]) -> Any:
    """The autograd node of the first tensor among plain values; nothing else of the user's is touched."""
    import torch

    for value in values:
        if type(value) in (tuple, list):
            node = node_of(tuple(value))
            if node is not None:
                return node
        elif type(value) in (torch.Tensor, torch.nn.Parameter):
            node = value.grad_fn
            if node is not None:
                return node
    return None
