"""One call of a layer with thread counts of its own: around its forward, the layers inside it, and its backward."""

from typing import TYPE_CHECKING, Any, Protocol

from .backward import end_at, node_of
from .spool import threads

if TYPE_CHECKING:
    import torch


class Setter(Protocol):
    """Sets the count of the thread that calls."""

    @property
    def common(self) -> int: ...
    @property
    def in_force(self) -> bool: ...
    def current(self) -> int:
        """The count of the thread that calls."""

    def set(self, count: int) -> None: ...


class CountedCall:
    """One call of one planned module."""

    __slots__ = ("_before", "_count", "_setter", "_split", "follow")

    def __init__(self, setter: Setter, count: int | None, split: Any, follow: "Passage | None") -> None:
        self._setter = setter
        self._count = count
        self._split = split
        self.follow = follow

    def __enter__(self) -> None:
        self._before = self._setter.current()
        if self._count is not None:
            self._setter.set(self._count)
        if self._split is not None:
            self._split.__enter__()

    def __exit__(self, *error: object) -> None:
        if self._split is not None:
            self._split.__exit__(*error)
        if self._setter.in_force:  # else the program has set its own count meanwhile
            self._setter.set(self._before)  # also after a layer inside has raised


class Inside:
    """Told of each layer inside an RNN; for explorations."""

    def before(self, layer: int, input: "torch.Tensor") -> None: ...
    def after(self, layer: int, output: "torch.Tensor") -> None: ...


class CountedInside:
    """The counts of the layers inside one call of an RNN."""

    def __init__(self, setter: Setter, counts: list[tuple[int | None, int | None]], seen: Inside | None) -> None:
        self._setter = setter
        self._counts = counts
        self._seen = seen
        self._before = 0
        self._planned = False
        self._follow: Passage | None = None

    def before(self, layer: int, input: "torch.Tensor") -> None:
        self._planned = layer < len(self._counts)  # else this is another module's call
        if not self._planned:
            return
        forward, backward = self._counts[layer]
        if forward is not None:
            self._before = self._setter.current()
            self._setter.set(forward)
        self._follow = Passage(self._setter, backward, (input,)) if backward else None
        if self._seen is not None:
            self._seen.before(layer, input)

    def after(self, layer: int, output: "torch.Tensor") -> None:
        if not self._planned:
            return
        if self._seen is not None:
            self._seen.after(layer, output)
        if self._counts[layer][0] is not None and self._setter.in_force:
            self._setter.set(self._before)
        if self._follow is not None:
            self._follow.leave(output)


class Passage:
    """The count of one layer's backward pass: from the node that made its output to the one that made its input."""

    def __init__(self, setter: Setter, count: int | None, args: tuple[Any, ...]) -> None:
        self._setter = setter
        self._count = count
        self._input = _node_or_none(args)
        self.ends_at: object = None

    def leave(self, result: Any) -> None:
        output, node = _node_or_none((result,)), self._input
        self._input = None  # the graph must not live longer for our sake
        if output is None or output is node or self._count is None:
            return
        output.register_prehook(self._begin)
        if node is not None:
            self.ends_at = end_at(node, "tracekit.counted", self.passed)

    def _begin(self, gradients: object) -> None:
        if self._setter.in_force:
            threads.current().passage = self  # of two that meet at a node, the count of the one that begins holds
            self._setter.set(self._count or self._setter.common)

    def passed(self, end: object) -> None:
        """A node is about to run at which passages end, this one or another call's."""
        thread = threads.current()
        if isinstance(thread.passage, Passage) and thread.passage.ends_at is end:
            thread.passage = None
            if self._setter.in_force:
                self._setter.set(self._setter.common)


def _node_or_none(values: tuple[Any, ...]) -> Any:
    """The node as `backward.node_of` finds it; None where the program's tensors do not let us look."""
    try:
        return node_of(values)
    except Exception:  # a view whose base was changed, a list that holds itself
        return None


def shape_of(args: tuple[Any, ...]) -> str:
    """The dtype and shape of the first argument, `float32 2x24x48`; "" where it is no plain tensor."""
    import torch

    if args and type(args[0]) is torch.Tensor and not args[0].is_nested:
        tensor = args[0]
        return f"{str(tensor.dtype).removeprefix('torch.')} {'x'.join(map(str, tensor.shape))}"
    return ""


def key_of(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same as a key of a table, made quickly."""
    import torch

    first = args[0] if args else None
    return (first.shape, first.dtype) if type(first) is torch.Tensor and not first.is_nested else ()


def engine_ended(setter: Setter) -> None:
    """After a run of the autograd engine: what had no input node has ended too."""
    thread = threads.current()
    if thread.passage is not None:
        thread.passage = None
        if setter.in_force:
            setter.set(setter.common)
