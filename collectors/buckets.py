"""The gradient buckets of DistributedDataParallel: when each was ready, sent, and back.

Its reducer is C++ code that gives each bucket to the process group. It gets a group of ours over the same backends,
which notes the time and passes the bucket on: so the sums are those of the program, bit by bit. A communication hook of
ours would not be: without one the reducer divides while it copies, or in the bucket, as the case may be, and with one
not at all. A hook that the program has is timed around.

In steps that are not followed the reducer has the program's own group again, where it can change its group and the
group's backend counts what goes past us: that torch calls Python for a bucket costs 20 to 40 us, whatever we do then.
"""

from collections import deque
from collections.abc import Callable
from time import perf_counter_ns as clock
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tracekit.record.wire import ALL_USED, ASYNC_CALL, BUCKET, PASSED, SOME_UNUSED, USED

from .agent import Agent
from .alive import Alive
from .ddp_configuration import MOST_MODELS, configuration_of, facts_of
from .gradient_pass import Pass, Sort
from .groups import NO_SEQUENCE, Numbers
from .in_flight import InFlight, Sent
from .patching import Patches
from .phase_clock import COMMUNICATION, FORWARD
from .watched_group import counter_of, group_class, reducer_class

if TYPE_CHECKING:
    from .collectives import Collectives
    from .groups import Groups

_MOST_BUCKETS = 2**16 - 1 - BUCKET  # what a record has room for
_NOT_KNOWN = object()  # the group of a reducer that has none of ours


class Buckets:
    """Watches all models that DistributedDataParallel wraps."""

    def __init__(self, agent: Agent, collectives: "Collectives", groups: "Groups", in_flight: InFlight) -> None:
        self._agent, self._collectives, self._groups, self._in_flight = agent, collectives, groups, in_flight
        self._patches = Patches()
        self._is_off = False
        self._passes: Alive[Pass] = Alive()
        self._reducers: Alive[Any] = Alive()  # those with a group of ours
        self._past: Numbers | None = None  # of the group whose buckets go past us, of a step that is not followed
        self._is_joined = False  # ranks with fewer inputs go on without a backward pass
        spool = agent.spool
        self._bucket, self._passed, self._used = spool.intern("bucket"), spool.intern(PASSED), spool.intern(USED)
        self._all_used, self._some_unused = spool.intern(ALL_USED), spool.intern(SOME_UNUSED)
        self._configurations: deque[dict[str, object]] = deque(maxlen=MOST_MODELS)
        self._distributed: Any = None
        self._unseen: Any = None  # within it no mode of the program's sees what we ask of tensors

    def hook(self, module: ModuleType) -> None:
        """`module` is torch.nn.parallel.distributed, which finds the reducer in torch.distributed."""
        import torch

        distributed, ddp, self._unseen = module.dist, module.DistributedDataParallel, torch._C.DisableTorchFunction
        if not hasattr(distributed, "Reducer"):
            return
        self._group_class = group_class(distributed.ProcessGroup, self)
        self._original = distributed.Reducer
        distributed.Reducer = self._reducer = reducer_class(distributed.Reducer, self)
        self._distributed = distributed
        self._patches.replace(distributed, "_register_comm_hook", self._timed_registration)
        self._patches.replace(ddp, "__init__", self._described)
        self._patches.replace(ddp, "forward", self._in_forward)
        if hasattr(ddp, "join_hook"):
            self._patches.replace(ddp, "join_hook", self._joined)
        if hasattr(ddp, "_match_unused_params_allreduce"):
            self._patches.replace(ddp, "_match_unused_params_allreduce", self._matched)
        if hasattr(ddp, "_distributed_broadcast_coalesced"):
            self._patches.replace(ddp, "_distributed_broadcast_coalesced", self._timed_broadcast)
        if "steps" not in self._agent.session["collectors"]:
            why = "the collector `steps` was not asked for, which tells where a backward pass ends"
            self._agent.note_missing("which pass a gradient bucket is of", why)
        self._agent.after_backward.append(self._backward_ended)
        self._agent.facts_now.append(self._facts)

    def off(self) -> None:
        self._is_off = True
        self._patches.undo()
        if self._distributed is not None and self._distributed.Reducer is self._reducer:
            self._distributed.Reducer = self._original

    # The reducer's group.

    def group_for(self, value: Any) -> Any:
        """Ours in place of a group; anything else as it is."""
        # One that a program has made a class of its own for answers more than ours passes on.
        if self._is_off or type(value) is not self._distributed.ProcessGroup:
            return value
        try:
            state = Pass()
            group = self._group_class(value, state)
            self._passes.add(state)
            if count := counter_of(value):
                self._groups.count_by(self._groups.name(value), count)
            return group
        except Exception as error:
            self._agent.note_missing(
                "the gradient buckets of DistributedDataParallel",
                f"its process group cannot be watched in this torch ({type(error).__name__}: {error})"[:200],
            )
            return value

    def watches(self, reducer: Any, these: bool) -> None:
        """Whether it has a group of ours."""
        (self._reducers.add if these else self._reducers.discard)(reducer)

    def turn(self, follows: bool) -> None:
        """Let buckets go past us where steps are not followed, if we can number them afterwards: those of all models
        that share one group. Not of those that look for unused parameters: what they never find is worth to be told."""
        if follows:
            self._see_all()
            return
        for state in list(self._passes):
            state.seen = state.sent = 0
        states = {each: each._tracekit[1].state for each in list(self._reducers)}
        sorts = {each: state.sort for each, state in states.items()}
        may_pass = [each for each, state in states.items() if each._tracekit_can_give and not state.looks]
        past = {each: sort for each in may_pass if (sort := sorts[each]) and not sort.on_device}
        if self._is_joined or len({sort.group for sort in past.values()}) != 1 or self._collectives.entered is None:
            return
        last = list(past.values())[-1]
        numbers = self._groups.numbers_for_unseen(last.group)
        if numbers is None:
            return
        self._past = numbers
        numbers.turn(is_seen=False)
        self._collectives.entered.passes(self._passed, last.words, numbers)
        for reducer in past:
            reducer._tracekit_give(ours=False)
        if len(past) == len(sorts) and self._in_flight.is_empty and self._backward_ended in self._agent.after_backward:
            self._agent.after_backward.remove(self._backward_ended)

    def _see_all(self) -> None:
        past, self._past = self._past, None
        if past is not None:
            past.turn(is_seen=True)
        if self._collectives.entered is not None:
            self._collectives.entered.sees()
        if self._backward_ended not in self._agent.after_backward:
            self._agent.after_backward.append(self._backward_ended)
        for reducer in list(self._reducers) if past is not None else ():
            reducer._tracekit_give(ours=True)

    def start_anew(self) -> None:
        """In a forked child, whose parent's models these are."""
        self._configurations.clear()
        self._reducers.clear()
        self._see_all()

    def _holds_gradients(self, tensor: Any) -> bool:
        with self._unseen():
            return bool(tensor.is_floating_point() or tensor.is_complex())

    def passed_by(self, state: Pass, tensors: Any, number: int) -> bool:
        """Whether what the reducer is about to send is a bucket of a step that is not followed."""
        try:
            phases, sort = self._agent.phases, state.sort
            if phases is None or phases.follows or sort is None or self._is_off:
                return False
            begun = clock()
            if not self._holds_gradients(tensors[0]):
                return False
            self._enter(self._bucket, sort, number)
            self._agent.governor.spent_ns += clock() - begun
            return True
        except Exception as error:
            self._agent.fail("collectives", error)
            return False

    def op_of(self, tensors: Any) -> int:
        """What the reducer is about to send: a bucket, or which parameters this rank has used in the pass."""
        try:
            tensor = tensors[0]
            if self._holds_gradients(tensor):
                return self._bucket
            with self._unseen():
                if tensor.device.type != "cpu":
                    return self._used
                # Without an operator, which a profiler or a mode of the program's would see.
                return self._all_used if tensor.numpy().all() else self._some_unused
        except Exception:
            return self._used

    def begin(self, group: Any, counted: int) -> int:
        """The number of what the reducer is about to send, which the backend will count so many times."""
        if self._is_off:
            return NO_SEQUENCE
        try:
            return self._groups.begin(self._groups.name(group), counted)
        except Exception as error:
            self._agent.fail("collectives", error)
            return NO_SEQUENCE

    def begin_apart(self, group: Any) -> None:
        """The reducer is about to send what has no number."""
        try:
            self._groups.begin_apart(self._groups.name(group))
        except Exception as error:
            self._agent.fail("collectives", error)

    def begun(self, group: Any) -> None:
        """What the backend counts an unknown number of times has been sent."""
        try:
            self._groups.begun(self._groups.name(group))
        except Exception as error:
            self._agent.fail("collectives", error)

    def reduced(self, group: Any, state: Pass, tensors: Any, op: int, number: int, ready: int, work: Any) -> None:
        """The reducer has sent something."""
        if self._is_off:
            return
        try:
            begun, sort = clock(), self._sort(group, tensors[0])
            is_bucket = op == self._bucket
            state.has_looked |= not is_bucket
            how = self._number(state, sort) if is_bucket else ASYNC_CALL
            self._add(op, sort, number, ready, ready, how, work.is_completed)
            if is_bucket and state.seen == state.before:
                self._wait_where_all_is_there()
            self._spent(clock() - begun)
        except Exception as error:
            self._agent.fail("collectives", error)

    def _wait_where_all_is_there(self) -> None:
        """When all gradients are there, what is left of the backward pass is waiting for the buckets; as far as is
        known, and of all models: the pass may go on through another one."""
        if self._agent.phases is not None and all(each.seen == each.before for each in self._passes if each.before > 0):
            self._agent.phases.enter_wait()

    def _spent(self, ns: int) -> None:
        if self._agent.phases is not None:
            self._agent.phases.spent(ns)
        else:
            self._agent.governor.spent_ns += ns

    def _sort(self, group: Any, tensor: Any) -> Sort:
        with self._unseen():
            dtype = str(tensor.dtype).removeprefix("torch.")
            size, on_device = tensor.numel() * tensor.element_size(), tensor.device.type != "cpu"
        spool, name = self._agent.spool, self._groups.name(group)
        return Sort(name, spool.intern(name) | spool.intern(dtype) << 32, size, on_device)

    def _number(self, state: Pass, sort: Sort) -> int:
        state.seen, state.sent, state.sort = state.seen + 1, state.sent + sort.size, sort
        return BUCKET + min(state.seen - 1, _MOST_BUCKETS)

    def _add(
        self, op: int, sort: Sort, number: int, ready: int, begun: int, how: int, is_done: Callable[[], bool]
    ) -> None:
        self._enter(op, sort, number)
        self._in_flight.look()
        self._in_flight.add(Sent(op, ready, begun, sort.words, number, sort.size, how, sort.on_device), is_done)

    def _enter(self, op: int, sort: Sort, number: int) -> None:
        """Have it told should the rank never come out of it."""
        self._collectives.enter(op, sort.words, number)
        if self._collectives.entered is not None:
            self._collectives.entered.left()

    def _backward_ended(self, has_failed: bool) -> None:
        try:
            # The reducer has waited for all of them where it has all, unless the pass has failed.
            under_way = [state for state in list(self._passes) if not state.ended()]
            self._collectives.look(have_buckets=not under_way and not has_failed, after_error=has_failed)
        except Exception as error:
            self._agent.fail("collectives", error)

    # Hooks of the program.

    def _timed_registration(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _register_comm_hook(reducer: Any, state: Any, hook: Callable[..., Any]) -> Any:
            try:
                hook = self._timed_hook(hook, reducer)
                for each in self._configurations:  # whose it is of several is not known
                    each["hook"] = True
            except Exception as error:
                self._agent.fail("collectives", error)
            return original(reducer, state, hook)

        return _register_comm_hook

    def _timed_hook(self, original: Callable[..., Any], reducer: Any) -> Callable[..., Any]:
        group, ours = getattr(reducer, "_tracekit", (None, None))
        group = _NOT_KNOWN if ours is None else group
        state = Pass() if ours is None else Pass(whole=ours.state.whole)
        self._passes.add(state)

        def hook(of_program: Any, bucket: Any) -> Any:
            number = self.begin(group, counted=0)
            if self.passed_by(state, (bucket.buffer(),), number):
                future = original(of_program, bucket)
                self.begun(group)
                return future
            phases, ready = self._agent.phases, clock()
            if phases is not None:
                phases.enter(COMMUNICATION)
            try:
                future = original(of_program, bucket)
            finally:
                begun = clock()
                if phases is not None:
                    phases.leave(COMMUNICATION)
            if not self._is_off:
                try:
                    sort = self._sort(group, bucket.buffer())
                    self.begun(group)
                    self._add(self._bucket, sort, number, ready, begun, self._number(state, sort), future.done)
                    if bucket.is_last():
                        self._wait_where_all_is_there()
                    self._spent(clock() - begun)
                except Exception as error:
                    self._agent.fail("collectives", error)
            return future

        return hook

    # The model.

    def _described(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __init__(model: Any, *args: Any, **kwargs: Any) -> None:
            try:
                if self._agent.phases is not None:
                    self._agent.phases.start_anew()  # what wrapping it sends, and its first passes, are to be seen
            except Exception as error:
                self._agent.fail("collectives", error)
            original(model, *args, **kwargs)
            try:
                self._groups.begun(self._groups.name(getattr(model, "process_group", None)))  # by the wrapping
                configuration = configuration_of(model)
                self._configurations.append(configuration)
                ours = getattr(model.reducer, "_tracekit", (None, None))[1]
                if ours is not None:
                    ours.state.whole = configuration["bytes"]
                self._agent.write_status()
            except Exception as error:
                self._agent.fail("collectives", error)

        return __init__

    def _facts(self) -> dict[str, object]:
        return facts_of(self._configurations)

    def _in_forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        agent = self._agent

        def forward(*args: Any, **kwargs: Any) -> Any:
            phases = agent.phases
            if phases is not None:
                phases.by_calls = False  # the model's own say it, those of the loss would cost more
            if phases is None or not phases.follows:
                return original(*args, **kwargs)
            for state in list(self._passes):
                state.called()
            phases.enter(FORWARD)
            try:
                return original(*args, **kwargs)
            finally:
                phases.leave(FORWARD)

        return forward

    def _joined(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Of uneven inputs: a rank that has no more sends buckets of its own beside those of the others."""

        def join_hook(*args: Any, **kwargs: Any) -> Any:
            try:
                self._is_joined = True
                if self._agent.phases is not None:
                    self._agent.phases.start_anew()
            except Exception as error:
                self._agent.fail("collectives", error)
            return original(*args, **kwargs)

        return join_hook

    def _matched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """What a rank that has no more inputs sends beside what the others tell of their unused parameters."""

        def _match_unused_params_allreduce(model: Any, *args: Any, **kwargs: Any) -> Any:
            with self._collectives.timed(self._used, model.process_group, ()):
                return original(model, *args, **kwargs)

        return _match_unused_params_allreduce

    def _timed_broadcast(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Buffers that rank 0 gives to all: those of batch norms, before each forward pass."""
        op = self._agent.spool.intern("broadcast of buffers")

        def _distributed_broadcast_coalesced(model: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
            with self._collectives.timed(op, model.process_group, (tensors,)):
                return original(model, tensors, *args, **kwargs)

        return _distributed_broadcast_coalesced
