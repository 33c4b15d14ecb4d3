"""Thread counts per layer: each planned layer runs with its own count, everything else with the common one.

1. `nn.Module.__call__` is replaced; a planned module's call begins with its count and ends with the common one again.
   Setting a count costs a fraction of a microsecond; what a change costs the OpenMP runtime was measured and is in the
   plan (`models.thread_plan`).
2. The layers inside one nn.LSTM, nn.GRU or nn.RNN are run one by one (`split_rnn`), each with its count.
3. A planned backward pass is framed by hooks on the autograd nodes at the layer's two ends, as in `backward`.

Counts are set in the thread that executes: torch keeps them per thread. A program that sets its own count has the last
word: from then on no plan is applied, and the run says so.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import get_ident
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, cast

from tracekit.record.wire import BACKWARD, FORWARD
from tracekit.settings.inside import ENDED_PLAN

from .counted_calls import CountedCall, CountedInside, Passage, engine_ended, key_of, shape_of
from .naming import LEFT_ALONE
from .patching import Patches
from .split_rnn import SplitRNN, can_split
from .spool import threads
from .workers_to_fork import NO_WORKER

if TYPE_CHECKING:
    import torch

    from .agent import Agent


@dataclass(frozen=True)
class Counts:
    """Thread counts by layer name; `common` is that of everything else, None for the program's own."""

    common: int | None = None
    forward: dict[str, int] = field(default_factory=dict)
    backward: dict[str, int] = field(default_factory=dict)
    shapes: dict[str, frozenset[str]] = field(default_factory=dict)  # the inputs a layer was measured with

    @classmethod
    def of(cls, settings: dict[str, Any]) -> "Counts":
        """The part of a run's settings that this file applies."""

        def below(prefix: str) -> dict[str, Any]:
            return {name[len(prefix) :]: value for name, value in settings.items() if name.startswith(prefix)}

        shapes = {name: frozenset(text.split("; ")) for name, text in below("threads.shapes.").items()}
        return cls(settings.get("threads.intra_op"), below("threads.layers."), below("threads.backward."), shapes)

    def is_by_layer(self) -> bool:
        return bool(self.forward or self.backward)


@dataclass
class Planned:
    """What to do around the calls of one module."""

    name: str
    forward: int | None
    backward: int | None
    inner: list[tuple[int | None, int | None]] | None  # forward and backward count of each layer inside an RNN
    shapes: frozenset[str] | None
    fits: dict[tuple[Any, ...], bool] = field(default_factory=dict)  # by shape and dtype of the first argument
    is_plain: bool = False  # a count for its forward is all there is to do


def called_by_torch(frame: FrameType) -> bool:
    """Whether `torch.set_num_threads` was called from there by torch: loader workers, and the thread that pins memory,
    take one."""
    return str(frame.f_globals.get("__name__")).startswith("torch.")


def say_programs_own(agent: "Agent", count: int) -> None:
    """The counts of the session do not hold any more."""
    agent.note_missing(ENDED_PLAN, f"the program itself called torch.set_num_threads({int(count)})")


class ThreadCounts:
    """Applies the counts that are in force in this process. `observe` tells what is run, in explorations."""

    def __init__(self, agent: "Agent") -> None:
        self._agent = agent
        self._patches = Patches()
        self._counts = Counts()
        self._planned: dict[int, Planned | None] = {}
        agent.naming.tables.append(self._planned)
        agent.after_fork.append(self._withdraw_in_child)
        self.in_force = True  # until the program sets its own count, or in a forked child
        self._split = SplitRNN()
        self._met: set[str] = set()  # the names of the modules that were called, and of layers inside them
        self._own = 0  # the program's own count
        self._without_us = 0  # the same where nothing is applied
        self._set: Callable[[int], None] = lambda count: None
        self._get: Callable[[], int] = lambda: 0
        self.is_exploring = False
        self.observe: Callable[[torch.nn.Module, str, tuple[Any, ...]], Any] | None = None
        self.on_programs_own: Callable[[int], None] = self._respect

    def install(self, torch: ModuleType, without_us: int) -> None:
        """Place the hooks, before anything else wraps `nn.Module.__call__`. `without_us`: the count that the program
        would have."""
        self._without_us = without_us
        self._set, self._get = torch.set_num_threads, torch.get_num_threads
        self._own = self._get()
        self._patches.replace(torch, "set_num_threads", self._watched_set)
        self._patches.replace(torch, "get_num_threads", self._told_count)
        self._split.install(torch._VF)

    def hook_modules(self, module: ModuleType) -> None:
        self._patches.replace(module.Module, "__call__", self._counted_call)

    def hook_engine(self, module: ModuleType) -> None:
        self._patches.replace(module, "_engine_run_backward", self._counted_engine)

    def _counted_engine(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run_backward(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            finally:
                engine_ended(self)

        return run_backward

    def off(self) -> None:
        self.withdraw()
        self._split.off()
        self._patches.undo()

    def say_what_was_not_met(self) -> None:
        """At the end: layers of the plan that no call came through are not what the plan was made for."""
        if not self._planned:
            return  # no module was called in this process
        for name in sorted({*self._counts.forward, *self._counts.backward} - self._met):
            self._agent.note_missing(
                f"the thread plan for {name}",
                "no call of it was seen: another model, or inside a torch.compile region, which takes one count",
            )

    def put_in_force(self, counts: Counts) -> None:
        """Run with these counts from now on; called between steps, by the thread that runs them."""
        self._counts = counts
        self._planned.clear()
        self.set(self.common)

    @property
    def common(self) -> int:
        return self._counts.common or self._own

    @property
    def told(self) -> int:
        """The count that the program and the reports are told of: no exploration shows in it."""
        return self._own if self.is_exploring else self.common

    def current(self) -> int:
        """The count of this thread: where we have never set it the common one, or, in an exploration, its own."""
        return threads.current().count or (self._get() if self.is_exploring else self.common)

    def set(self, count: int) -> None:
        """Set the count of this thread."""
        thread = threads.current()
        if thread.count != count:
            self._set(count)
            thread.count = count

    def empty_call(self, count: int, torch: ModuleType) -> dict[int, Callable[[], object]]:
        """What a call with a count of its own does beside the call, by direction; to see what that costs."""
        call = self._counted_call(lambda module: None)
        module: Any = object()
        planned = Planned("", count, None, None, None, {(): True}, is_plain=True)
        with torch.enable_grad():
            first = torch.ones(1, device="cpu", requires_grad=True) * 1
            last = first * 1

        def forward() -> None:
            self._planned[id(module)] = planned
            call(module)

        def backward() -> None:
            if first.grad_fn is not None:  # as in inference mode
                first.grad_fn.metadata.clear()  # then it is like a node that has not been met
            passage = Passage(self, count, (first,))
            passage.leave(last)
            passage._begin(())
            passage.passed(passage.ends_at)

        return {FORWARD: forward, BACKWARD: backward}

    def _told_count(self, original: Callable[[], int]) -> Callable[[], int]:
        """The program is told the count that it knows of: no exploration may show in what it prints."""

        def get_num_threads() -> int:
            count = threads.current().count
            return self.told if count == self.common or (count and self.is_exploring) else original()

        return get_num_threads

    def _watched_set(self, original: Callable[[int], None]) -> Callable[[int], None]:
        def set_num_threads(count: int) -> None:
            original(count)
            try:
                threads.current().count = count
                of_torch = called_by_torch(sys._getframe(1))
                if not of_torch or self._agent.worker != NO_WORKER:  # and not of the thread that pins memory
                    self._own = self._without_us = count
                if not of_torch:
                    self.on_programs_own(count)
            except Exception as error:
                self._agent.fail("conditions", error)

        return set_num_threads

    def _respect(self, count: int) -> None:
        say_programs_own(self._agent, count)
        self._forget()

    def _forget(self) -> None:
        self.in_force = False
        self.observe = None
        self._counts = Counts()
        self._planned.clear()

    def _withdraw_in_child(self) -> None:
        """In a forked child a team of the parent's is gone, and OpenMP would wait for it forever."""
        self._own = self._without_us
        self.withdraw()

    def withdraw(self) -> None:
        """Back to the program's own count and no plan: after a failure, and in a forked child."""
        self._forget()
        self._set(self._own)
        threads.current().count = self._own

    def _counted_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        planned_for, unknown, everything = self._planned, object(), self._with_everything

        def call(module: "torch.nn.Module", /, *args: Any, **kwargs: Any) -> Any:
            planned: Any = planned_for.get(id(module), unknown)
            if planned is None:
                return original(module, *args, **kwargs)
            count = before = 0
            is_plain = False
            try:
                if planned is unknown:
                    planned = self._look_up(module)
                if planned is not None and planned.is_plain and planned.fits.get(key_of(args)):
                    thread = threads.first if get_ident() == threads.first_ident else threads.current()
                    before = thread.count or self.current()
                    count, is_plain = planned.forward or before, True
                    if count != before:
                        self._set(count)
                        thread.count = count
            except Exception as error:
                self._agent.fail("conditions", error)
                planned = None
            if planned is None or (is_plain and count == before):
                return original(module, *args, **kwargs)
            if not is_plain:
                return everything(original, planned, module, args, kwargs)
            try:
                return original(module, *args, **kwargs)
            finally:
                if self.in_force:
                    self._set(before)
                    thread.count = before

        self._call_code = call.__code__
        return call

    def _with_everything(
        self,
        original: Callable[..., Any],
        planned: Planned,
        module: "torch.nn.Module",
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """A call with more to it than a count: inner layers, a backward pass, inputs not met before, an observer."""
        try:
            run = self._prepared(planned, module, args)
        except Exception as error:
            self._agent.fail("conditions", error)
            return original(module, *args, **kwargs)
        with run:
            result = original(module, *args, **kwargs)
        if run.follow is not None:
            run.follow.leave(result)
        return result

    def _look_up(self, module: "torch.nn.Module") -> Planned | None:
        """What is planned for a module that is called for the first time since counts were put in force."""
        naming = self._agent.naming
        layer = naming.known.get(id(module)) or naming.meet(module, self._depth())
        planned = self._plan_for(module, layer.name) if layer.number != LEFT_ALONE else None
        self._met.add(layer.name)
        self._planned[id(module)] = planned
        return planned

    def _depth(self) -> int:
        """In how many calls of other modules the one is that is looked up now."""
        frame, calls = sys._getframe(), 0
        while frame.f_back is not None:
            frame = frame.f_back
            calls += frame.f_code is self._call_code
        return max(calls - 1, 0)

    def _plan_for(self, module: "torch.nn.Module", name: str) -> Planned | None:
        counts = self._counts
        forward, backward = counts.forward.get(name), counts.backward.get(name)
        inner = None
        if can_split(module):
            layers = cast("torch.nn.RNNBase", module).num_layers
            names = [f"{name}.layer{number}" for number in range(layers)]
            self._met.update(names)
            inner = [(counts.forward.get(each), counts.backward.get(each)) for each in names]
            if self.observe is None and not any(any(pair) for pair in inner):
                inner = None
        if self.observe is None and inner is None and not forward and not backward:
            return None
        is_plain = inner is None and not backward
        return Planned(name, forward, backward, inner, counts.shapes.get(name), is_plain=is_plain)

    def _prepared(self, planned: Planned, module: "torch.nn.Module", args: tuple[Any, ...]) -> CountedCall:
        if not self._fits(planned, args):
            return CountedCall(self, None, None, None)
        seen = self.observe(module, planned.name, args) if self.observe is not None else None
        split = None
        if planned.inner is not None:
            split = self._split.asked(CountedInside(self, planned.inner, seen))
        follow = Passage(self, planned.backward, args) if planned.backward else None
        return CountedCall(self, planned.forward, split, follow)

    def _fits(self, planned: Planned, args: tuple[Any, ...]) -> bool:
        """Whether the layer was measured with such an input, or nothing is said of its inputs."""
        key, shapes = key_of(args), planned.shapes
        fits = planned.fits.get(key)
        if fits is None:
            fits = planned.fits[key] = shapes is None or shape_of(args) in shapes
            if not fits and shapes is not None:
                self._agent.note_missing(
                    f"the thread plan for {planned.name} with other inputs",
                    f"it was measured with {', '.join(sorted(shapes))} and is not applied to {shape_of(args)}",
                )
        return fits
