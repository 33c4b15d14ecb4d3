"""Exploration of gradient buckets: one ordinary run under several caps in turn, in randomised blocks of steps.

A block begins as the model is called for the first time after the last backward pass of the block before: it is given
another reducer then, as torch gives one to a model that was pickled. The first steps of a block belong to the change:
one shows torch in which order gradients come, with the next the buckets are formed anew.

Ranks must change at the same pass, or they would send each other different buckets. What they count are backward passes
that communicate: those all have in common, whatever their clocks say. So blocks are of so many steps, not of so many
seconds, and the order is the same everywhere.

The analysis is `tracekit.analysis.explored_caps`.
"""

import random
from collections.abc import Callable
from time import perf_counter_ns as clock
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import ref

from tracekit.record.wire import Kind
from tracekit.settings.exploration import BUCKET_CAP, bucket_condition
from tracekit.settings.inside import ENDED_BUCKET_EXPLORATION

from .ddp_configuration import configuration_of
from .exploration import compiles
from .patching import Patches

if TYPE_CHECKING:
    from .agent import Agent

# Passes before the first block; and of a block: those of the change, and those that tell.
_WARM_UP = 10
_TRANSITION, _STEPS = 3, 8
_MIB = 1 << 20
# With these a reducer is more than its buckets, or ranks go on without the others.
_ENDS_IT = ("join_hook", "register_comm_hook", "_register_builtin_comm_hook", "_register_fused_optim")


class BucketExploration:
    """Gives the model that DistributedDataParallel wraps one cap after the other."""

    def __init__(self, agent: "Agent", patches: Patches) -> None:
        explore = agent.session["explore"]
        self._agent, self._patches = agent, patches
        self._caps: list[float] = [each["settings"][BUCKET_CAP] for each in explore["conditions"]]
        self._random = random.Random(explore["seed"])
        self._model: ref[Any] | None = None
        self._is_off = False
        self._configurations: list[dict[str, object]] = []
        self._conditions: list[tuple[int, Any]] = []  # by number: the name, and what torch makes of the cap
        self._queue: list[int] = []
        self._block: int | None = None
        self._round, self._number, self._began = -1, 0, 0
        self._left = _WARM_UP
        self._is_awaited = self._is_due = False  # a pass that communicates; the next block

    def hook(self, module: ModuleType) -> None:
        """`module` is torch.nn.parallel.distributed."""
        self._module, ddp = module, module.DistributedDataParallel
        self._patches.replace(ddp, "__init__", self._wrapped)
        self._patches.replace(ddp, "forward", self._called)
        for name in _ENDS_IT:
            self._patches.replace(ddp, name, self._ended_by)
        self._agent.after_backward.append(self._backward_ended)
        self._agent.before_exit.append(self._end)
        self._agent.after_fork.append(self.off)
        self._agent.note_missing("collectives", "left out while gradient buckets are explored: to see one takes time")
        self._agent.facts_now.append(lambda: {"ddp": self._configurations} if self._configurations else {})

    def off(self) -> None:
        self._is_off = True

    def _wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        distributed = self._module.dist

        def __init__(model: Any, *args: Any, **kwargs: Any) -> None:
            original(model, *args, **kwargs)
            try:
                self._configurations.append(configuration_of(model))
                if self._model is not None:
                    self._stop("the program wraps several models")
                self._model = ref(model)
                if why := _why_not(model):
                    self._stop(why)
                self._agent.describe(rank=distributed.get_rank(), world_size=distributed.get_world_size())
            except Exception as error:
                self._agent.fail("conditions", error)

        return __init__

    def _called(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def forward(model: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._is_off:
                try:
                    self._begin_pass(model)
                except Exception as error:
                    self._stop(f"it failed ({type(error).__name__}: {error})"[:200])
            return original(model, *args, **kwargs)

        return forward

    def _ended_by(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._stop(f"the program calls DistributedDataParallel.{original.__name__}")
            return original(*args, **kwargs)

        return call

    def _begin_pass(self, model: Any) -> None:
        import torch

        if not torch.is_grad_enabled() or not model.require_backward_grad_sync:
            return
        if compiles():
            self._stop("the program uses torch.compile")
        elif self._is_due:
            self._next(model)
        self._is_awaited = not self._is_off

    def _backward_ended(self) -> None:
        if not self._is_awaited:
            return
        self._is_awaited = False
        self._left -= 1
        if self._left > 0:
            return
        if self._block is not None:
            name = self._conditions[self._block][0]
            self._agent.spool.write(
                Kind.BLOCK, name, self._began, clock(), self._number, self._round, _TRANSITION, 0
            )  # fmt: skip
            self._number += 1
        self._is_due = True

    def _next(self, model: Any) -> None:
        """Begin the next block."""
        self._is_due = False
        if not self._conditions:
            self._conditions = self._that_differ(model)
        if not self._queue:
            self._round += 1
            self._queue = self._random.sample(range(len(self._conditions)), len(self._conditions))
        self._block = self._queue.pop(0)
        self._left = _TRANSITION + _STEPS
        self._began = clock()
        _give(model, self._conditions[self._block][1])

    def _that_differ(self, model: Any) -> list[tuple[int, Any]]:
        """The program's own cap, and of those to try the smallest that makes the same buckets."""
        own, intern = model._bucket_config, self._agent.spool.intern
        sizes = model._build_params_for_reducer()[0][::-1]
        found: dict[tuple[tuple[int, ...], ...], tuple[int, Any]] = {}
        for cap in sorted(self._caps):
            config = self._module._BucketCapacityConfig.create(
                bucket_cap_mb=cap, bucket_cap_mb_list=None, use_python_reducer=False
            )
            if config.bucket_bytes_cap != own.bucket_bytes_cap:
                found.setdefault(self._buckets(config, sizes), (intern(bucket_condition(cap)), config))
        found.pop(self._buckets(own, sizes), None)
        return [(intern(bucket_condition(own.bucket_bytes_cap / _MIB)), own), *found.values()]

    def _buckets(self, config: Any, parameters: list[Any]) -> tuple[tuple[int, ...], ...]:
        """Which parameters are in a bucket together, once their order is known."""
        limits, _ = config.compute_bucket_size_limits(static_graph=False, find_unused_parameters=True)
        buckets, _ = self._module.dist._compute_bucket_assignment_by_size(parameters, limits)
        return tuple(tuple(each) for each in buckets)

    def _stop(self, why: str) -> None:
        if not self._is_off:
            self.off()
            self._agent.note_missing(ENDED_BUCKET_EXPLORATION, why)

    def _end(self) -> None:
        if self._is_off:
            return
        if self._model is None:
            if self._agent.governor.steps:  # a launcher has none
                self._stop("the program wrapped no model with DistributedDataParallel")
        elif self._round < 1:
            self._stop("the program's steps are too few for a round of blocks")


def _why_not(model: Any) -> str:
    """Why its reducer cannot be another one; "" where it can."""
    if model._use_python_reducer or model._delay_all_reduce_all_params or model.mixed_precision is not None:
        return "the model is not reduced in buckets alone"
    if any(each.device.type != "cpu" for each in model.parameters()):
        return "steps of a GPU are not told by the clock of a CPU; compare whole runs: tracekit study ddp"
    return ""


def _give(model: Any, config: Any) -> None:
    """Another reducer, as torch makes one in `DistributedDataParallel.__setstate__`."""
    model._bucket_config, model.bucket_bytes_cap = config, config.bucket_bytes_cap
    parameters, are_sparse = model._build_params_for_reducer()
    names = model._build_debug_param_to_name_mapping(parameters)
    model._ddp_init_helper(parameters, are_sparse, names, model.static_graph)
    if model.static_graph:
        model._static_graph_delay_allreduce_enqueued = False  # or the next pass would reduce nothing
        model.reducer._set_static_graph()
        model.logger._set_static_graph()
