"""The layers and directions inside one nn.LSTM, nn.GRU or nn.RNN, which torch runs as a single call.

On a few detailed steps a dispatch mode watches the operations of that call: an operation that takes a weight of another
layer or direction begins the next section. The program's own operations run, in their own order, so the results are the
same bits on every path (oneDNN, per-step linear, packed sequences, projections). The watching inflates the call, so
such calls are marked and analyses take only the sections' shares from them.
"""

from collections.abc import Callable
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, Any, cast

from tracekit.record.wire import FORWARD, Kind

if TYPE_CHECKING:
    import torch

    from .agent import Agent

# Told apart on the first detailed calls, so that a run of a few steps names them, and then on every 16th: shares settle
# quickly, and the call is slower by some microseconds per operation.
_FIRST_CALLS = 3
_EVERY = 16
_WHOLE = {"lstm", "gru", "rnn_tanh", "rnn_relu"}


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

    def watch(self, module: "torch.nn.Module", depth: int) -> "Any | None":
        """A context that watches a call of the module, when its turn has come and nobody else watches operations."""
        import torch

        self._calls += 1
        if self._calls > _FIRST_CALLS and self._calls % _EVERY:
            return None
        weights = cast("torch.nn.RNNBase", module)._flat_weights  # `of` gives inner layers to no other class
        if (
            torch._C._len_torch_dispatch_stack()
            or torch._C._get_tracing_state() is not None
            or torch.autograd._profiler_enabled()
            or torch._C._functorch.peek_interpreter_stack() is not None
            or not all(type(weight) is torch.nn.Parameter and weight.device.type == "cpu" for weight in weights)
        ):
            return None
        per_section = len(weights) // len(self._sections)
        owners = {id(weight): index // per_section for index, weight in enumerate(weights)}
        return _watch(owners, lambda sections: self._record(sections, depth))

    def _record(self, sections: list[tuple[int, int, int]], depth: int) -> None:
        for section, start, end in sections:
            name, number = self._sections[section]
            self._agent.spool.write(Kind.LAYER, name, start, end, number, 1, 0, 0, depth, FORWARD)


def _watch(owners: dict[int, int], record: Callable[[list[tuple[int, int, int]]], None]) -> Any:
    """A dispatch mode that notes when the operations go over from one owner's weights to another's."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self._section: int | None = None
            self._start = self._end = 0
            self._closed: list[tuple[int, int, int]] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            began = clock()
            for value in args:
                owner = owners.get(id(value))
                if owner is not None and owner != self._section:
                    self._close()
                    self._section, self._start = owner, began
                    break
            if func.overloadpacket.__name__ in _WHOLE:  # without autograd torch hands the call over in one piece
                with self:
                    return func.decompose(*args, **(kwargs or {}))
            result = func(*args, **(kwargs or {}))
            self._end = clock()
            return result

        def _close(self) -> None:
            if self._section is not None:
                self._closed.append((self._section, self._start, self._end))

        def record(self) -> None:
            """Record the sections of the call that has ended."""
            self._close()
            record(self._closed)

    return Watch()
