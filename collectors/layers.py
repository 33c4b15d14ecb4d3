"""Layers: the time of every `nn.Module` call, forward and backward, under the module's qualified name.

`torch.nn.Module.__call__` is replaced once, before anything else refers to it. Nothing is stored in the user's modules
(hooks of theirs would be pickled with the model, and torch.compile would trace them), and a call costs a quarter of
what a hook pair costs. Code that torch.compile has compiled does not come through here: it is timed from outside only.

1. An outermost call is recorded on every step; the calls inside it on detailed steps (`governor`). Where steps are so
   short that the outermost calls of each cost too much, those of some stretches are left out, and marks say where: from
   the first call of such a step to its end torch's own code runs in place of ours.
2. A module met for the first time as an outermost one names all modules inside it.
3. On detailed steps the autograd nodes at a layer's input and output tell when its backward began and ended.
4. Now and then the layers inside an nn.LSTM, nn.GRU or nn.RNN are told apart (`inner_layers`).
"""

from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns as clock
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from tracekit.record.wire import FORWARD, Kind

from .agent import Agent
from .backward import Backward
from .governor import Governor, cold_ns
from .naming import LEFT_ALONE
from .patching import Patches, code_to_stand_in
from .spool import ThreadState, threads
from .steps import CALL, OPTIMIZER, Steps

if TYPE_CHECKING:
    import torch


# The cost of a call that is not recorded is measured over this many calls.
_CALIBRATION_CALLS = 200
# Each recorded call takes two frames of Python's recursion limit beside torch's three: deeper calls take one.
_DEEPEST = 40
# Steps before the cost of those calls is held against the budget: the median of fewer step times is not settled.
_STEPS_TO_JUDGE = 32
# A program that evaluates once in so many steps does so as part of its loop: to record all of that would cost too much.
_OFTEN = 8

_LAYER = int(Kind.LAYER)


class Layers:
    """Times module calls."""

    def __init__(self) -> None:
        self._patches = Patches()
        self._backward: Backward | None = None
        self._is_off = False
        self._calls = 0
        self._calls_in_step = 0
        self._outermost = self._outermost_in_step = 0
        self._left_out = self._can_leave_out = False
        self._evaluated_at = -1  # after so many steps a model was evaluated last
        self._evaluates_often = False
        self._function: Any = _call  # the one in the place of torch's, once there is one
        self._bypass = self._pass = _Cost(0, 0)

    def install(self, agent: Agent) -> None:
        self._agent = agent
        self._mark = agent.spool.intern("calls")
        steps = agent.collectors.get("steps")
        if isinstance(steps, Steps):
            self._backward = Backward(agent)
            steps.backward = self._backward
        agent.when_imported("layers", "torch.nn.modules.module", self._hook)

    def off(self) -> None:
        self._is_off = True  # a patch of the program's around ours may keep ours in use
        self._patches.undo()
        self._leave_out(True)

    def _hook(self, module: ModuleType) -> None:
        self._measure(self._timed_call)
        self._agent.governor.has_calls = False
        self._agent.on_settling.append(self._settle)
        self._agent.after_fork.append(self._start_anew)
        self._patches.replace(module.Module, "__call__", self._timed_call)

    def _timed_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        wrapped = _Wrapped(self, self._agent, original)
        call = FunctionType(_call.__code__, {**globals(), "_wrapped": wrapped}, "call")
        own = code_to_stand_in(original)
        wrapped.passing = own or _call.__code__
        wrapped.function = call
        self._can_leave_out = own is not None

        self._function = call
        return call

    def _recorded_call(
        self,
        original: Callable[..., Any],
        thread: ThreadState,
        module: "torch.nn.Module",
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if self._is_off:
            return original(module, *args, **kwargs)
        agent, depth = self._agent, thread.depth
        try:
            entered = clock()
            detailed = agent.governor.detailed
            layer = agent.naming.known.get(id(module)) or agent.naming.meet(module, depth)
            watch = layer.inner.watch(module, depth + 1) if detailed and layer.inner is not None else None
            follow = (
                self._backward.enter((*args, *kwargs.values())) if detailed and self._backward is not None else None
            )
        except Exception as error:
            agent.fail("layers", error)
            return original(module, *args, **kwargs)
        if layer.number == LEFT_ALONE:
            return original(module, *args, **kwargs)
        phases = None if depth else agent.phases
        if phases is not None:
            phases.enter_call()
        thread.depth = depth + 1
        start = clock()
        try:
            if watch is None:
                result = original(module, *args, **kwargs)
            else:
                with watch:
                    result = original(module, *args, **kwargs)
        finally:
            end = clock()
            thread.depth = depth
            if phases is not None:
                phases.leave_call()
        try:
            self._calls += 1
            self._outermost += not depth
            agent.governor.has_calls = True
            agent.spool.write(Kind.LAYER, layer.word, start, end, layer.number, watch is not None, 0, 0, depth, FORWARD)
            if agent.tally is not None:
                agent.tally(layer.number, FORWARD, depth, end - start)
            if watch is not None:
                watch.record()
            if follow is not None:
                follow.leave(result, layer.word, layer.number, depth)
            agent.governor.spent_ns += clock() - end + start - entered
        except Exception as error:
            agent.fail("layers", error)
        return result

    # What the calls cost that are not recorded: too little each to be measured one by one.

    def _measure(self, call: Callable[..., Any]) -> None:
        """Time `call` with nothing behind it: as an inner call on a step without detail, and as all of a step's calls
        that are left out."""

        def nothing(module: object) -> None: ...

        governor, wrapped, thread = self._agent.governor, call(nothing), threads.current()
        function = self._function

        def whole_step(module: object) -> None:
            wrapped(module)
            function.__code__ = _call.__code__

        thread.depth, governor.detailed = 1, False
        try:
            self._bypass = _Cost.of(wrapped, nothing)
            self._left_out = True
            self._pass = _Cost.of(whole_step, nothing)
        finally:
            thread.depth, governor.detailed, self._left_out = 0, True, False

    def _settle(self) -> None:
        """After a stretch of steps: charge the calls that were not recorded, and say how the next stretch is."""
        governor = self._agent.governor
        if self._is_off:
            return
        if governor.plain_steps:
            cold = self._pass.cold if self._left_out else self._bypass.cold * self._calls_in_step
            governor.spent_ns += cold * governor.plain_steps
        else:
            steps = governor.settled_steps
            self._calls_in_step, self._outermost_in_step = self._calls // steps, self._outermost // steps
        self._calls = self._outermost = 0
        if governor.steps > _STEPS_TO_JUDGE:
            self._judge(governor)
        if not self._is_off:
            self._leave_out(not governor.with_calls)

    def _judge(self, governor: Governor) -> None:
        """Say what the calls cost a step; give up where the least that can be done with them exceeds the budget."""
        source, calls, typical = self._agent.step_source_rank, self._calls_in_step, governor.typical_step_ns
        phases = self._agent.phases
        # Passes are told apart by the calls between them where no optimizer does it; and blocks are compared as wholes.
        are_needed = source != OPTIMIZER or self._agent.session.get("explore") is not None or not self._can_leave_out
        are_needed |= phases is not None and phases.by_calls  # nothing else says where a rank's forward pass is
        governor.calls_ns, cost = 0, calls * self._bypass.hot
        if not are_needed:
            beyond = max(calls * self._bypass.cold - self._pass.cold, 0)  # one that is below 0 was measured badly
            governor.calls_ns = self._outermost_in_step * governor.note_ns + beyond
            cost = self._pass.hot
        # Where these calls are all that tells the steps apart, they go on being noticed.
        budget = self._agent.session["overhead"]
        if source < CALL and cost > budget * typical:
            self.off()
            self._agent.note_missing(
                "layers, after the first steps",
                f"{calls} module calls in a step of {typical / 1e6:.2f} ms: noticing them alone costs"
                f" more than the budget of {budget:.1%}; raise it with --overhead",
            )

    def _leave_out(self, these: bool) -> None:
        """Leave out the calls from here on, or take them up again, and mark the moment."""
        if these != self._left_out:
            self._all_go_past(these)
            now = clock()
            self._agent.spool.write(Kind.PHASE, self._mark, now, now, not these)

    def _all_go_past(self, these: bool) -> None:
        """Calls may go past us, from the first one of a step on, or may not."""
        self._left_out = these
        self._agent.calls_go_past = (self._function, _call.__code__) if these else None
        self._function.__code__ = _call.__code__

    def begins_a_step(self, module: object) -> bool:
        """Whether an outermost call in training mode is one of a step that is left out; it is not while a model is
        evaluated that was trained before: what that is told by, a loss, nobody has set to be evaluated."""
        if self._evaluated_at == self._agent.governor.steps and not self._evaluates_often:
            return False
        layer = self._agent.naming.known.get(id(module))
        if layer is not None:
            layer.trains = True
        return True

    def is_evaluated(self, module: object) -> None:
        """A call in evaluation mode is about to begin."""
        layer = self._agent.naming.known.get(id(module))
        steps = self._agent.governor.steps
        if layer is not None and layer.trains and self._evaluated_at != steps:
            self._evaluates_often = 0 <= self._evaluated_at >= steps - _OFTEN
            self._evaluated_at = steps

    def _start_anew(self) -> None:
        """In a forked child, which is a process of its own in the run."""
        if self._left_out:
            self._all_go_past(False)


class _Wrapped:
    """What `_call` needs; its function holds it among its globals, for it must not be closed over anything
    (`patching.code_to_stand_in`)."""

    def __init__(self, layers: Layers, agent: Agent, original: Callable[..., Any]) -> None:
        self.layers, self.agent, self.original = layers, agent, original
        self.function: Any = None  # whose code is changed
        self.passing: CodeType = _call.__code__
        self.record, self.known = layers._recorded_call, agent.naming.known
        self.note, self.has_many_notes = agent.spool.note, agent.spool.has_many_notes


_wrapped: _Wrapped


def _call(module: "torch.nn.Module", /, *args: Any, **kwargs: Any) -> Any:
    """In the place of `nn.Module.__call__`."""
    my = _wrapped  # noqa: F821 - each function made of this code has its own
    agent = my.agent
    # What is evaluated is no part of an ordinary step: a validation pass between two of them is recorded.
    if my.layers._left_out and not agent.safe_point_due:
        try:  # not module.training: it may be a property of the program's
            is_training = object.__getattribute__(module, "__dict__").get("training") is True
        except Exception:
            is_training = False
        if is_training and my.layers.begins_a_step(module):
            # Until the step ends: between two operations nothing of ours is in the caches, and a frame more takes 8 us.
            my.function.__code__ = my.passing
            return my.original(module, *args, **kwargs)
        if not is_training:
            my.layers.is_evaluated(module)
    thread = threads.first if get_ident() == threads.first_ident else threads.current()
    if thread.depth:
        if not agent.governor.detailed or thread.depth > _DEEPEST:
            return my.original(module, *args, **kwargs)
        return my.record(my.original, thread, module, args, kwargs)
    try:
        if agent.step_source_rank >= CALL:
            agent.step_source(CALL)
        if agent.safe_point_due:
            agent.safe_point()
    except Exception as error:
        agent.fail("layers", error)
    layer = my.known.get(id(module))
    if agent.governor.detailed or layer is None or layer.number == LEFT_ALONE or my.layers._is_off:
        return my.record(my.original, thread, module, args, kwargs)
    phases = agent.phases
    if phases is not None:
        phases.enter_call()
    thread.depth = 1
    start = clock()
    try:
        return my.original(module, *args, **kwargs)
    finally:
        end = clock()
        thread.depth = 0
        if phases is not None:
            phases.leave_call()
        try:
            my.note((layer.word, thread.tid, start, end, layer.number, 0, 0, 0, 0, FORWARD, _LAYER))
            if my.has_many_notes():
                agent.write_noted()
        except Exception as error:
            agent.fail("layers", error)


class _Cost(NamedTuple):
    """Of one call, ns: in the midst of others like it, and between two operations that have filled the caches."""

    hot: int
    cold: int

    @classmethod
    def of(cls, wrapped: Callable[[object], object], original: Callable[[object], object]) -> "_Cost":
        """What `wrapped` takes beyond `original`."""
        module = SimpleNamespace(training=True)

        def timed(function: Callable[[object], object]) -> int:
            began = clock()
            for _ in range(_CALIBRATION_CALLS):
                function(module)
            return clock() - began

        hot = min(timed(wrapped) for _ in range(3)) - min(timed(original) for _ in range(3))
        return cls(max(hot, 0) // _CALIBRATION_CALLS, cold_ns(lambda: wrapped(module)))
