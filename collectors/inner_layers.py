"""The layers and directions inside one nn.LSTM, nn.GRU or nn.RNN, which torch runs as a single call.

On a few detailed steps a dispatch mode watches the operations of that call: an operation that takes a weight of another
layer or direction begins the next section. The program's own operations run, in their own order, so the results are the
same bits on every path (oneDNN, per-step linear, packed sequences, projections). The watching inflates the call, so such
calls are marked and analyses take only the sections' shares from them.
"""

from collections.abc import Callable
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, Any

from tracekit.record.wire import FORWARD, Kind

if TYPE_CHECKING:
    import torch

    from .agent import Agent

# Told apart on the first detailed calls and then on every 16th: shares settle quickly, and the call is slower by some
# microseconds per operation.
_FIRST_CALLS = 2
_EVERY = 16


class InnerLayers:
    """The inner layers of one module, and whether a call of it is the turn to tell them apart."""

    def __init__(self, agent: "Agent", module: "torch.nn.RNNBase", name: str, numbers: dict[str, int]) -> None:
        self._agent = agent
        self._calls = 0
        self._sections: list[tuple[int, int]] = []
        directions = ("", ".reverse") if module.bidirectional else ("",)
        for layer in range(module.num_layers):
            for direction in directions:
                section = f"{name}.layer{layer}{direction}"
                number = numbers.setdefault(section, len(numbers))
                self._sections.append((agent.spool.intern(section), number))

    @classmethod
    def of(cls, module: "torch.nn.Module", name: str, agent: "Agent", numbers: dict[str, int]) -> "InnerLayers | None":
        """The inner layers of a module that has more than one."""
        import torch

        if isinstance(module, torch.nn.RNNBase) and (module.num_layers > 1 or module.bidirectional):
            return cls(agent, module, name, numbers)
        return None

    def worth_it(self, module: "torch.nn.RNNBase") -> bool:
        """Whether to tell the layers apart in this call: its turn has come, and nobody else watches the operations."""
        import torch

        self._calls += 1
        if self._calls > _FIRST_CALLS and self._calls % _EVERY:
            return False
        return (
            not torch._C._len_torch_dispatch_stack()
            and torch._C._get_tracing_state() is None
            and not torch.autograd._profiler_enabled()
            and torch._C._functorch.peek_interpreter_stack() is None
            and all(
                type(weight) is torch.nn.Parameter and weight.device.type == "cpu" for weight in module._flat_weights
            )
        )

    def run(
        self,
        original: Callable[..., Any],
        module: "torch.nn.RNNBase",
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        depth: int,
    ) -> Any:
        """Call the module and record its sections."""
        per_section = len(module._flat_weights) // len(self._sections)
        owners = {id(weight): index // per_section for index, weight in enumerate(module._flat_weights)}
        watch = _watch(owners)
        with watch:
            result = original(module, *args, **kwargs)
        recorded = clock()
        for section, start, end in watch.finished():
            name, number = self._sections[section]
            self._agent.spool.write(Kind.LAYER, name, start, end, number, 1, 0, 0, depth, FORWARD)
        self._agent.governor.spent_ns += clock() - recorded + watch.cost_ns
        return result


def _watch(owners: dict[int, int]) -> Any:
    """A dispatch mode that notes when the operations go over from one owner's weights to another's."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self._section: int | None = None
            self._start = self._end = 0
            self._closed: list[tuple[int, int, int]] = []
            self.cost_ns = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            began = clock()
            for value in args:
                owner = owners.get(id(value))
                if owner is not None and owner != self._section:
                    self._close()
                    self._section, self._start = owner, began
                    break
            called = clock()
            result = func(*args, **(kwargs or {}))
            self._end = clock()
            self.cost_ns += called - began
            return result

        def _close(self) -> None:
            if self._section is not None:
                self._closed.append((self._section, self._start, self._end))

        def finished(self) -> list[tuple[int, int, int]]:
            self._close()
            self._section = None
            return self._closed

    return Watch()
