"""One nn.LSTM, nn.GRU or nn.RNN call run layer by layer, with the same bits: to time each or to set its thread count.

torch runs all layers in one call of `torch._VF.lstm`, `gru`, `rnn_tanh` or `rnn_relu`, which is a loop over the layers
with a dropout between them (ATen/native/RNN.cpp, `apply_layer_stack`; ATen/native/mkldnn/RNN.cpp, `mkldnn_rnn`). The
same loop over single-layer calls with each layer's own slice of the weights takes the same kernels, draws the same from
the random generator and saves the same tensors for the backward.

A call is left whole where something looks at torch's operations (tracing, torch.compile, functorch, dispatch and
function modes) or chooses their types (autocast), and where its arguments are not those of an `nn.RNNBase` with CPU
parameters of one type: torch itself then says what is wrong with them.
"""

import functools
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, cast

from .patching import Patches

if TYPE_CHECKING:
    from torch import Tensor, nn

_FUNCTIONS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
# Biases, layers, dropout, training, bidirectional, batch first.
_FLAGS: tuple[type | tuple[type, ...], ...] = (bool, int, (float, int), bool, bool, bool)


class Observer(Protocol):
    """Told before and after each layer of a split call: tensors of shape (steps, batch, features), or (rows, features)
    of a packed sequence. Must not raise; a layer that raises has no `after`."""

    def before(self, layer: int, input: "Tensor") -> None: ...

    def after(self, layer: int, output: "Tensor") -> None: ...


class SplitRNN:
    """Runs the next RNN call of a thread layer by layer where that is asked for."""

    def __init__(self) -> None:
        self._patches = Patches()
        self._thread = _Thread()
        self._vf: ModuleType | None = None  # of which nothing is replaced yet

    def install(self, vf: ModuleType) -> None:
        """See that calls of this torch can be split, once it is imported. Raises AttributeError or ImportError with one
        that lacks what is needed for it."""
        from torch.jit import _builtins

        _is_watched()
        for name in _FUNCTIONS:
            getattr(vf, name)
        assert _builtins._builtin_ops
        self._vf = vf

    def _replace(self, vf: ModuleType) -> None:
        """Replace the functions of `torch._VF`: not before one is to be split, as a warning that torch gives inside one
        of them names the caller, which is then ours."""
        from torch.jit import _builtins

        for name in _FUNCTIONS:
            self._patches.replace(vf, name, functools.partial(self._splitting, name == "lstm"))
            # TorchScript knows builtins by identity, from a table that it makes of the list when it first needs it.
            # Ours stay there: a program may have kept them.
            function, operator = getattr(vf, name), f"aten::{name}"
            _builtins._builtin_ops.append((function, operator))
            if _builtins._builtin_table is not None:
                _builtins._builtin_table[id(function)] = operator

    def off(self) -> None:
        """Put torch's own functions back."""
        self._vf = None
        self._patches.undo()

    def asked(self, observer: Observer) -> AbstractContextManager[None]:
        """A block in which this thread's first RNN call is split, and the later ones are not. A first call that cannot
        be split runs whole, and the observer is told nothing."""
        if self._vf is not None:
            self._replace(self._vf)
            self._vf = None
        return _Asking(self._thread, observer)

    def _splitting(self, is_lstm: bool, original: Callable[..., Any]) -> Callable[..., Any]:
        thread = self._thread

        def call(*arguments: Any, **named: Any) -> Any:
            observer = thread.observer
            if observer is None:
                return original(*arguments, **named)
            thread.observer = None
            layers = None if named or _is_watched() else _understood(arguments, is_lstm)
            if layers is None:
                return original(*arguments, **named)
            return layers.run(original, observer)

        return call


def can_split(module: "nn.Module") -> bool:
    """Whether calls of the module can be split, as far as the module itself tells."""
    from torch import nn

    several = isinstance(module, nn.RNNBase) and module.num_layers > 1
    return several and _are_plain(cast("list[Tensor]", module._flat_weights))


class _Thread(threading.local):
    observer: Observer | None = None


class _Asking:
    def __init__(self, thread: _Thread, observer: Observer) -> None:
        self._thread, self._observer = thread, observer

    def __enter__(self) -> None:
        self._outer = self._thread.observer
        self._thread.observer = self._observer

    def __exit__(self, *exception: object) -> None:
        self._thread.observer = self._outer


@dataclass(slots=True)
class _Layers:
    """The arguments of a call, taken apart."""

    input: "Tensor"
    batch_sizes: "Sequence[Tensor]"  # one of a packed sequence, none of a padded one
    states: "Sequence[Tensor]"  # hidden and, for LSTM, cell
    weights: "Sequence[Tensor]"
    has_biases: bool
    number: int
    dropout: float
    train: bool
    bidirectional: bool
    batch_first: bool

    def run(self, original: Callable[..., Any], observer: Observer) -> "tuple[Tensor, ...]":
        """What `original` returns for the whole call."""
        import torch

        is_lstm = len(self.states) == 2
        flags = (self.has_biases, 1, 0.0, self.train, self.bidirectional, *(() if self.batch_sizes else (False,)))
        size = len(self.weights) // self.number
        output = self.input.transpose(0, 1) if self.batch_first else self.input
        final = []
        for layer, states in enumerate(zip(*(state.chunk(self.number) for state in self.states), strict=True)):
            if layer and self.train and self.dropout != 0:
                output = torch.dropout(output, self.dropout, True)
            weights = self.weights[layer * size : (layer + 1) * size]
            observer.before(layer, output)
            output, *last = original(output, *self.batch_sizes, states if is_lstm else states[0], weights, *flags)
            observer.after(layer, output)
            final.append(last)
        if self.batch_first:  # a view for LSTM alone, as torch has it: it matters to what changes the output in place
            output = output.transpose(0, 1) if is_lstm else output.transpose_(0, 1)
        return output, *map(torch.cat, zip(*final, strict=True))


def _understood(arguments: tuple[Any, ...], is_lstm: bool) -> _Layers | None:
    """The call taken apart, if it is one of more than one layer that splits without a difference."""
    if len(arguments) != 9:  # of the padded form and of the packed one
        return None
    is_packed = isinstance(arguments[3], (list, tuple))
    input, *batch_sizes = arguments[: 1 + is_packed]
    hx, weights, *flags = arguments[1 + is_packed :]
    flags += [False] * is_packed
    if (
        not isinstance(weights, (list, tuple))
        or not all(isinstance(flag, kind) for flag, kind in zip(flags, _FLAGS, strict=True))
        or (is_lstm and (not isinstance(hx, (list, tuple)) or len(hx) != 2))
    ):
        return None
    layers = _Layers(input, batch_sizes, hx if is_lstm else (hx,), weights, *flags)
    sections = layers.number * (1 + layers.bidirectional)
    if (
        layers.number < 2
        or not _are_plain((input, *layers.states, *weights))
        or not all(_are_plain([sizes]) for sizes in batch_sizes)
        or input.is_nested
        or input.dim() != (2 if is_packed else 3)
        or not input.numel()  # torch's choice of kernels asks for it, and a layer makes something of nothing
        or any(state.dim() != 3 or state.size(0) != sections for state in layers.states)
    ):
        return None
    projects = is_lstm and hx[0].size(2) != hx[1].size(2)
    return layers if len(weights) == sections * ((4 if layers.has_biases else 2) + projects) else None


def _are_plain(tensors: "Sequence[Tensor]") -> bool:
    """Whether they are dense tensors on the CPU, of one data type and of no class of somebody's."""
    import torch

    return set(map(type, tensors)) <= {torch.Tensor, torch.nn.Parameter} and {
        (tensor.is_cpu, tensor.layout, tensor.dtype) for tensor in tensors
    } == {(True, torch.strided, tensors[0].dtype)}


def _is_watched() -> bool:
    """Whether something looks at, or changes, each operation of this thread."""
    import torch
    from torch._C._dynamo.eval_frame import get_eval_frame_callback

    return bool(
        torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or torch._C._get_tracing_state() is not None
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch.compiler.is_compiling()
        or get_eval_frame_callback() is not None
        or torch.is_autocast_enabled("cpu")
    )
