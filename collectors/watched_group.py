"""A process group of ours over the backends of another one, and a reducer that has it: what it sends is seen."""

from collections.abc import Callable
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .buckets import Buckets

# What else a reducer may ask of its group. Torch runs a method that a Python group does not have itself with the
# interpreter's lock held; and a thread of gloo waits for that lock, holding the queue that the method needs.
_PASSED_ON = (
    "broadcast", "reduce", "allreduce_coalesced", "allgather", "_allgather_base", "allgather_coalesced",
    "allgather_into_tensor_coalesced", "gather", "scatter", "reduce_scatter", "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced", "alltoall", "alltoall_base", "all_to_all_single", "send", "recv",
    "recv_anysource", "barrier", "monitored_barrier",
)  # fmt: skip
# Of these it is known that they count every bucket once.
_COUNTING_BACKENDS = ("gloo",)


def group_class(base: Any, buckets: "Buckets") -> Any:
    """A process group over the backends of another one; what the reducer reduces is seen."""

    class Watched(base):  # type: ignore[misc]
        def __init__(self, group: Any, state: Any) -> None:
            super().__init__(group.rank(), group.size())
            self._group, self.state = group, state
            if getattr(group, "bound_device_id", None) is not None:  # else the backend would lose it
                self.bound_device_id = group.bound_device_id
            for number, device in enumerate(group._device_types):
                backend = group._get_backend(device)
                kind = getattr(base.BackendType, backend.name().upper(), base.BackendType.CUSTOM)
                if number == 0:
                    self._set_default_backend(kind)
                self._register_backend(device, kind, backend)

        def allreduce(self, tensors: Any, *options: Any) -> Any:
            number = buckets.begin(self._group, counted=1)
            if buckets.passed_by(self.state, tensors, number):
                return self._group.allreduce(tensors, *options)
            op, ready = buckets.op_of(tensors), clock()
            work = self._group.allreduce(tensors, *options)
            buckets.reduced(self._group, self.state, tensors, op, number, ready, work)
            return work

        def getRank(self) -> Any:
            return self._group.rank()

        def getSize(self) -> Any:
            return self._group.size()

        def getBackendName(self) -> Any:
            return self._group.name()

    for name in _PASSED_ON:
        if hasattr(base, name):
            setattr(Watched, name, _passed_on(name, buckets))
    return Watched


def _passed_on(name: str, buckets: "Buckets") -> Callable[..., Any]:
    """A method that the group which ours stands for does, as it lets the interpreter's lock go."""

    def method(group: Any, *args: Any, **kwargs: Any) -> Any:
        buckets.begin_apart(group._group)
        try:
            return getattr(group._group, name)(*args, **kwargs)
        finally:
            buckets.begun(group._group)

    return method


def counter_of(group: Any) -> Callable[[], int] | None:
    """What says how many collectives the backend of a group has begun, where it counts each bucket once."""
    for device in group._device_types:
        backend = group._get_backend(device)
        if device.type == "cpu" and backend.name() in _COUNTING_BACKENDS:
            count: Callable[[], int] | None = getattr(backend, "_get_sequence_number_for_group", None)
            return count
    return None


def reducer_class(base: Any, buckets: "Buckets") -> Any:
    """The reducer with a group of ours, which lives as long as it does."""

    class Reducer(base):  # type: ignore[misc]
        _tracekit: tuple[Any, Any] = None, None  # the group of the program, and ours
        _tracekit_can_give = hasattr(base, "_update_process_group")

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            given = [buckets.group_for(each) for each in args]
            named = {name: buckets.group_for(each) for name, each in kwargs.items()}
            super().__init__(*given, **named)
            both = zip((*args, *kwargs.values()), (*given, *named.values()), strict=True)
            self._tracekit_have(*next((pair for pair in both if pair[0] is not pair[1]), (None, None)))

        def _tracekit_have(self, group: Any, ours: Any) -> None:
            self._tracekit = group, ours
            buckets.watches(self, ours is not None)

        def _tracekit_give(self, ours: bool) -> None:
            if self._tracekit_can_give and self._tracekit[1] is not None:
                super()._update_process_group(self._tracekit[ours])

        if _tracekit_can_give:

            def _update_process_group(self, group: Any) -> None:
                """The program has another group."""
                ours = buckets.group_for(group)
                super()._update_process_group(ours)
                self._tracekit_have(group, None if ours is group else ours)

    Reducer.__name__, Reducer.__qualname__, Reducer.__module__ = base.__name__, base.__qualname__, base.__module__
    return Reducer
