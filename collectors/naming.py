"""The names and numbers of layers: a module's qualified name below the module that was called outermost.

Nothing is stored in the user's modules: they are known by their ids, and forgotten when they are gone.
"""

import weakref
from typing import TYPE_CHECKING, Any

from .inner_layers import InnerLayers

if TYPE_CHECKING:
    import torch

    from .agent import Agent

# The number of modules that are no layers of the program: the graphs inside a torch.compile region.
LEFT_ALONE = -1


class Layer:
    """A module that has been called: its name, and its number in this process."""

    __slots__ = ("inner", "name", "number", "reference", "trains", "word")

    def __init__(
        self, reference: "weakref.ref[torch.nn.Module]", name: str, word: int, number: int, inner: InnerLayers | None
    ) -> None:
        self.reference = reference
        self.name = name
        self.word = word  # the name's id in the spool
        self.number = number
        self.inner = inner
        self.trains = False  # a step was seen to begin with it


class Naming:
    """All layers of one process."""

    def __init__(self, agent: "Agent") -> None:
        self._agent = agent
        self.known: dict[int, Layer] = {}
        self.tables: list[dict[int, Any]] = [self.known]  # by id of a module that has a name, forgotten with it
        self.numbers: dict[str, int] = {}
        self._holders: dict[str, weakref.ref[torch.nn.Module]] = {}

    def meet(self, module: "torch.nn.Module", depth: int) -> Layer:
        """Name a module called for the first time, and with an outermost one all modules inside it."""
        if depth and _is_compiled_graph(module):
            self._keep(module, "", 0, LEFT_ALONE, None)
        elif not depth:
            taken = any(self._is_taken(name) for name, _ in module.named_modules() if name)
            prefix = self._free(type(module).__name__) + "." if taken else ""
            for name, child in module.named_modules():
                if name and id(child) not in self.known:
                    self._add(child, prefix + name)
            if id(module) not in self.known:
                self._add(module, self._free(type(module).__name__))
        elif id(module) not in self.known:  # made or attached after its root was named
            self._add(module, self._free(type(module).__name__))
        return self.known[id(module)]

    def number(self, name: str) -> int:
        """The number of a name."""
        return self.numbers.setdefault(name, len(self.numbers))

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
        number = self.number(name)
        inner = None if self._agent.runs_inner_layers else InnerLayers.of(module, name, self._agent, self.numbers)
        self._keep(module, name, self._agent.spool.intern(name), number, inner)
        self._holders[name] = self.known[id(module)].reference

    def _keep(self, module: "torch.nn.Module", name: str, word: int, number: int, inner: InnerLayers | None) -> None:
        key, tables = id(module), self.tables

        def forget(reference: object) -> None:  # another module may have the id next
            for table in tables:
                table.pop(key, None)

        self.known[key] = Layer(weakref.ref(module, forget), name, word, number, inner)


def _is_compiled_graph(module: "torch.nn.Module") -> bool:
    import torch

    return isinstance(module, torch.fx.GraphModule)
