"""Steps: the marks from which steps are derived (optimizer steps, backward passes), and the pace while recording."""

import weakref
from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns as clock
from types import ModuleType
from typing import Any

from tracekit.record.wire import Kind

from .agent import Agent
from .backward import Backward
from .patching import Patches
from .phase_clock import BACKWARD as IN_BACKWARD
from .phase_clock import OPTIMIZER as IN_OPTIMIZER
from .spool import threads

# Which event paces the recording, best first; 0 is an explicit `tracekit.step()`.
OPTIMIZER, BACKWARD, BATCH, CALL = 1, 2, 3, 4

_PHASE = int(Kind.PHASE)


class Steps:
    """Times every optimizer step and every run of the autograd engine.

    1. Global optimizer hooks (torch's own interface) give begin and end of `Optimizer.step`, closures included.
    2. `loss.backward()`, `torch.autograd.backward` and `grad` all call one `torch.autograd` function; it is replaced,
       but while steps rest (`resting`).
    """

    def __init__(self) -> None:
        self._patches = Patches()
        self._handles: list[Any] = []
        self._began: dict[int, int] = {}
        self._known: dict[int, tuple[int, weakref.ref[object]]] = {}
        self._met = 0
        self._ended = 0
        self.backward: Backward | None = None

    def install(self, agent: Agent) -> None:
        self._agent = agent
        self._optimizer = agent.spool.intern("optimizer")
        agent.when_imported("steps", "torch.optim.optimizer", self._hook_optimizers)
        agent.when_imported("steps", "torch.autograd", self._hook_engine)
        agent.when_imported("steps", "torch.amp.grad_scaler", self._hook_scaler)

    def off(self) -> None:
        self._agent.resting.acts.clear()
        self._patches.undo()
        for handle in self._handles:
            handle.remove()

    def _hook_optimizers(self, module: ModuleType) -> None:
        self._handles = [
            module.register_optimizer_step_pre_hook(self._optimizer_begins),
            module.register_optimizer_step_post_hook(self._optimizer_ended),
        ]
        for hook in (self._optimizer_begins, self._optimizer_ended):
            hook.__func__._torchdynamo_inline = _nothing  # type: ignore[attr-defined]

    def _optimizer_begins(self, optimizer: object, args: object, kwargs: object) -> None:
        try:
            phases = self._agent.phases
            if phases is not None and phases.follows:
                phases.enter(IN_OPTIMIZER)
        except Exception as error:
            self._agent.fail("steps", error)
        self._began[id(optimizer)] = clock()

    def _optimizer_ended(self, optimizer: object, args: object, kwargs: object) -> None:
        end = clock()
        agent = self._agent
        try:
            start = self._began.pop(id(optimizer), None)
            if start is None:
                return
            self._ended += 1
            known = self._known.get(id(optimizer))
            number = known[0] if known is not None else self._meet(optimizer)
            thread = threads.first if get_ident() == threads.first_ident else threads.current()
            agent.spool.note((self._optimizer, thread.tid, start, end, number, 0, 0, 0, 0, 0, _PHASE))
            governor = agent.governor
            if agent.step_source_rank != OPTIMIZER or governor.steps + 1 >= agent.act_at or agent.on_step:
                agent.step_source(OPTIMIZER)
            else:  # as that does, without a frame more
                governor.steps += 1
                if agent.calls_go_past is not None:
                    agent.calls_go_past[0].__code__ = agent.calls_go_past[1]
            if agent.phases is not None and agent.phases.follows:
                agent.phases.leave(IN_OPTIMIZER)
        except Exception as error:
            agent.fail("steps", error)

    def _hook_scaler(self, module: ModuleType) -> None:
        self._patches.replace(module.GradScaler, "step", self._counted_scaler)

    def _counted_scaler(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A scaler that finds infinite gradients leaves the optimizer's step out: a step of the loop all the same."""

        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            start, ended = clock(), self._ended
            result = original(scaler, optimizer, *args, **kwargs)
            if self._ended == ended:
                self._began[id(optimizer)] = start
                self._optimizer_ended(optimizer, args, kwargs)
            return result

        return step

    def _meet(self, optimizer: object) -> int:
        """Number an optimizer; its id may be another's once it is gone, its number never is."""
        known, key = self._known, id(optimizer)
        known[key] = (self._met, weakref.ref(optimizer, lambda _: known.pop(key, None)))
        self._met += 1
        return known[key][0]

    def _hook_engine(self, module: ModuleType) -> None:
        name = "_engine_run_backward"
        theirs = getattr(module, name)
        self._patches.replace(module, name, self._timed_engine)
        ours = getattr(module, name)

        def rest(these: bool) -> None:
            """Where an optimizer tells the steps apart nobody asks for the passes of those that rest."""
            was, becomes = (ours, theirs) if these else (theirs, ours)
            if getattr(module, name) is was and not (these and self._agent.step_source_rank > OPTIMIZER):
                setattr(module, name, becomes)

        self._agent.resting.acts.append(rest)

    def _timed_engine(self, original: Callable[..., Any]) -> Callable[..., Any]:
        agent, note = self._agent, self._agent.spool.note
        name = agent.spool.intern("backward")
        under_way: set[object] = set()  # runs: a checkpoint's, say, is inside that of the pass, on whatever thread
        agent.after_fork.append(under_way.clear)

        def run_backward(*args: Any, **kwargs: Any) -> Any:
            gradients_only = not kwargs.get("accumulate_grad", True)  # torch.autograd.grad
            try:
                if agent.safe_point_due:
                    agent.safe_point()
                for around in agent.around_backward if not gradients_only else ():
                    around.enter()
                if agent.phases is not None and agent.phases.follows:
                    agent.phases.enter(IN_BACKWARD)
            except Exception as error:
                agent.fail("steps", error)
            this, failed = object(), True
            layers = self.backward
            outer = layers.engine_begins() if layers is not None else ()
            start = clock()
            try:
                under_way.add(this)
                result = original(*args, **kwargs)
                failed = False
                return result
            finally:
                under_way.discard(this)
                end = clock()
                if layers is not None:
                    layers.engine_ended(outer)
                try:
                    for act in agent.after_backward if not under_way else ():
                        act(failed)
                    for around in agent.around_backward if not gradients_only else ():
                        around.leave(failed)
                    if agent.phases is not None and agent.phases.follows:
                        agent.phases.leave(IN_BACKWARD)
                    thread = threads.first if get_ident() == threads.first_ident else threads.current()
                    note((name, thread.tid, start, end, gradients_only, 0, 0, 0, 0, 0, _PHASE))
                    if agent.step_source_rank >= BACKWARD:
                        agent.step_source(BACKWARD)
                    elif agent.spool.has_many_notes():  # passes alone, for as long as it likes
                        agent.write_noted()
                except Exception as error:
                    agent.fail("steps", error)

        return run_backward


def _nothing(self: object, optimizer: object, args: object, kwargs: object) -> None:
    """What torch.compile traces in place of the optimizer hooks."""
