"""Exploration of gradient buckets: one ordinary run under several caps in turn, in randomised blocks of steps.

The wrapped model is given another reducer at the end of a backward pass, as torch gives one to a model that was
pickled. The first passes with it belong to the change: one shows torch in which order gradients come, then the buckets
are formed anew.

Ranks must change at the same pass, or they would send each other different buckets. What they count are backward passes
in which they communicate; so blocks are of so many passes, not of so many seconds, and one of them chooses the caps of
each round (`bucket_rounds`). A step may have several passes: a block is of as many times more, and begins where a step
does. A pass may be of several runs of autograd's engine, some of which make no gradient of the model, and is over when
the reducer has reduced all of them. And before each change they agree (`Agreement`): a rank that does not explore, or
not any more, or is at another pass, lets all stop. One that stops right behind a change still forms its buckets where
the others do: that is communication, too.

The analysis is `tracekit.analysis.explored_caps`.
"""

import random
from collections import deque
from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns as clock
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import ref

from tracekit.record.wire import Kind
from tracekit.settings.exploration import BUCKET_CAP, bucket_condition
from tracekit.settings.inside import ENDED_BUCKET_EXPLORATION, LEFT_OUT_COLLECTIVES

from .agreement import Agreement, is_one_of_many
from .bucket_rounds import Rounds
from .ddp_configuration import MOST_MODELS, configuration_of, facts_of
from .exploration import compiles
from .patching import Patches
from .tracebacks import comes_from_a_signal_handler
from .watched_group import counter_of
from .workers_to_fork import NO_WORKER

if TYPE_CHECKING:
    from .agent import Agent

# Steps before the first block; and of a block: those of the change, and those that tell but for the last one, in which
# the next block begins.
_WARM_UP = 10
_TRANSITION, _STEPS = 3, 8
_MIB = 1 << 20
_STATIC = "its graph is static, and would have to be learnt anew"
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
        self._configurations: deque[dict[str, object]] = deque(maxlen=MOST_MODELS)
        self._conditions: list[tuple[str, Any]] = []  # by number: the name, and what torch makes of the cap
        self._queue: list[int] = []
        self._rounds: Rounds | None = None  # of the rank that chooses, and
        self._chosen: list[int] | None = None  # its next round, as long as that has not begun
        self._block: int | None = None
        self._round, self._number, self._began = -1, 0, 0
        self._left, self._per_step = 0, 1  # passes of this block, and of a step
        self._steps, self._in_step, self._step = 0, 0, -1  # of the warm-up; passes of this step, and its number
        self._is_awaited = False  # a pass that communicates
        self._is_owed = False  # by a new reducer: to form its buckets at the end of its first pass
        self._marked: list[int] = []  # when the gradients came that the reducer had as the pass began to be awaited
        self._logged: dict[str, object] = {}  # by torch, of the reducer before
        self._depth = self._counted = self._thread = 0

    def hook(self, module: ModuleType) -> None:
        """`module` is torch.nn.parallel.distributed."""
        self._module, ddp = module, module.DistributedDataParallel
        self._patches.replace(ddp, "__init__", self._wrapped)
        self._patches.replace(ddp, "forward", self._called)
        self._patches.replace(ddp, "_get_ddp_logging_data", self._logging)
        for name in _ENDS_IT:
            self._patches.replace(ddp, name, self._ended_by)
        self._agent.around_backward.append(self)
        self._agent.before_exit.append(self._end)
        self._agent.after_fork.append(self._forked)
        self._agent.note_missing(LEFT_OUT_COLLECTIVES, "left out in an exploration of buckets: to see one takes time")
        self._agent.facts_now.append(lambda: facts_of(self._configurations))

    def off(self) -> None:
        self._is_off = True

    def _forked(self) -> None:
        """A child may become a rank of its own, or loads data for this one."""
        self._is_off, self._is_owed = self._is_off or self._model is not None, False

    def _wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        distributed = self._module.dist

        def __init__(model: Any, *args: Any, **kwargs: Any) -> None:
            original(model, *args, **kwargs)
            try:
                self._configurations.append(configuration_of(model))
                self._agent.describe(rank=distributed.get_rank(), world_size=distributed.get_world_size())
                if self._model is not None:
                    self._stop("the program wraps several models")
                elif why := _why_not(model):
                    self._stop(why)
                else:
                    self._follow(model)
            except Exception as error:
                self._failed(error)

        return __init__

    def _follow(self, model: Any) -> None:
        count = counter_of(model.process_group)
        if count is None:
            self._stop("the passes in which ranks communicate can be counted with gloo alone")
            return
        self._model, self._count = ref(model), count
        self._parameters = [id(each) for each in model._build_params_for_reducer()[0]]
        group, store = model.process_group, self._module.dist.distributed_c10d._get_default_store()
        self._agreement = Agreement(store, f"buckets/{group.group_name}", group.size())
        self._conditions, counts = self._that_differ(model)
        self._configurations[-1]["buckets"] = counts
        if len(self._conditions) == 1:
            self._stop("every cap makes the same buckets")
        elif not group.rank():
            self._rounds = Rounds(len(self._conditions), self._random)

    def _called(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def forward(model: Any, /, *args: Any, **kwargs: Any) -> Any:
            if self._model is not None and model is self._model() and (self._is_owed or not self._is_off):
                try:
                    self._begin_pass(model)
                except Exception as error:
                    self._failed(error)
            return original(model, *args, **kwargs)

        return forward

    def _ended_by(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._stop(f"the program calls DistributedDataParallel.{original.__name__}")
            return original(*args, **kwargs)

        return call

    def _logging(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A program may look up what torch logs of its model: until a new reducer has formed its buckets anew, what it
        lacks is as it was of the one before."""

        def _get_ddp_logging_data(model: Any) -> Any:
            found = original(model)
            return {**self._logged, **found} if self._model is not None and model is self._model() else found

        return _get_ddp_logging_data

    def _begin_pass(self, model: Any) -> None:
        import torch

        if not torch.is_grad_enabled() or not model.require_backward_grad_sync or self._is_awaited:
            return
        if compiles():
            self._stop("the program uses torch.compile")
        elif model.static_graph:  # it was told so after it was wrapped
            self._stop(_STATIC)
        elif self._left == 1 and [id(each) for each in model._build_params_for_reducer()[0]] != self._parameters:
            self._stop("other parameters are trained than when the model was wrapped")
        if self._is_owed or not self._is_off:
            self._is_awaited, self._marked = True, model.reducer.get_backward_stats()
        if self._block is None and not self._is_off:
            self._warm_up()

    def _warm_up(self) -> None:
        """Count the steps, and the passes of each, until the first block can begin, with the end of the last pass of a
        step: this one, maybe."""
        step = self._agent.governor.steps
        if step != self._step:
            self._per_step = max(self._in_step, 1)
            self._steps, self._in_step, self._step = self._steps + 1, 0, step
        self._in_step += 1
        self._left = 1 if self._steps >= _WARM_UP and self._in_step == self._per_step else 2

    # A run of the engine that accumulates gradients; one may begin another.

    def enter(self) -> None:
        if not self._is_owed and (self._is_off or not self._is_awaited):
            return
        try:
            if not self._depth:
                self._counted, self._thread = self._count(), get_ident()
                if self._left == 1 and not self._is_off:
                    self._offer()
            self._depth += self._thread == get_ident()
        except Exception as error:
            self._failed(error)

    def _offer(self) -> None:
        """For each run of the engine, as any may be the last one of the pass; a round is chosen once."""
        if self._rounds is not None and not self._queue and self._chosen is None:
            self._chosen = self._rounds.begin()
        self._agreement.offer(self._number, self._counted, self._chosen)

    def leave(self, failed: bool) -> None:
        if (self._is_off and not self._is_owed) or not self._depth or self._thread != get_ident():
            return
        self._depth -= 1
        if self._depth or self._count() == self._counted:
            return
        if failed:
            self._stop("a backward pass failed")
        try:
            if self._is_owed or not self._is_off:
                self._end_pass()
        except Exception as error:
            self._failed(error)

    def _end_pass(self) -> None:
        model = self._model() if self._model is not None else None
        if model is None:
            self._stop("the model is gone")
            self._is_owed = False
            return
        if not self._is_over(model):
            return
        self._is_awaited = self._is_owed = False
        if self._is_off:
            return
        self._left -= 1
        if self._left == _STEPS * self._per_step:
            self._began = clock()
        if self._left == self._per_step and self._block is not None:
            name = self._agent.spool.intern(self._conditions[self._block][0])
            ended = clock()
            self._agent.spool.write(Kind.BLOCK, name, self._began, ended, self._number, self._round)
            if self._rounds is not None:
                self._rounds.add(self._block, ended - self._began)
        if self._left:
            return
        if self._agreement.is_reached():
            self._next(model)
        else:
            self._stop("not all ranks explore, or they are not at the same pass")

    def _is_over(self, model: Any) -> bool:
        """Whether the reducer has had gradients in this pass (something else may have communicated) and has reduced all
        of them; then it forms its buckets anew, where it has yet to. Torch would have it do so as it is called again,
        which is not always by all ranks; before the first block it is left to."""
        if model.reducer.get_backward_stats() == self._marked:
            return False
        if self._block is None and self._steps < _WARM_UP:
            return True
        try:
            model.reducer._rebuild_buckets()
        except RuntimeError as error:  # it has to finish the pass first
            if comes_from_a_signal_handler(error):
                raise
            return False
        return True

    def _next(self, model: Any) -> None:
        """Begin the next block."""
        if not self._queue:
            self._round += 1
            self._queue, self._chosen = self._agreement.told(), None
        self._number += 1
        self._block = self._queue.pop(0)
        self._left = (_TRANSITION + _STEPS) * self._per_step
        self._logged = model._get_ddp_logging_data()
        self._is_owed = True
        _give(model, self._conditions[self._block][1])
        self._marked = model.reducer.get_backward_stats()

    def _that_differ(self, model: Any) -> tuple[list[tuple[str, Any]], dict[str, int]]:
        """The program's own cap, and of those to try the smallest that makes the same buckets; and by name how many
        buckets each makes."""
        own, gradients = model._bucket_config, model._build_params_for_reducer()
        if not model.find_unused_parameters:  # else buckets are formed once, in this order
            gradients = [each[::-1] for each in gradients]
        caps = own.per_bucket_bytes_caps or (own.bucket_bytes_cap,)
        own_name = bucket_condition(*(each / _MIB for each in caps))
        own_buckets = self._buckets(own, *gradients)
        found: dict[tuple[tuple[int, ...], ...], tuple[str, Any]] = {}
        for cap in sorted(self._caps):
            config = self._module._BucketCapacityConfig.create(
                bucket_cap_mb=cap, bucket_cap_mb_list=None, use_python_reducer=False
            )
            if bucket_condition(cap) != own_name:  # torch's default, of a smaller first bucket, has the name of its cap
                found.setdefault(self._buckets(config, *gradients), (bucket_condition(cap), config))
        found.pop(own_buckets, None)
        counts = {own_name: len(own_buckets)} | {name: len(buckets) for buckets, (name, _) in found.items()}
        return [(own_name, own), *found.values()], counts

    def _buckets(self, config: Any, parameters: list[Any], are_sparse: list[bool]) -> tuple[tuple[int, ...], ...]:
        """Which parameters are in a bucket together, once their order is known."""
        limits, _ = config.compute_bucket_size_limits(static_graph=False, find_unused_parameters=True)
        buckets, _ = self._module.dist._compute_bucket_assignment_by_size(parameters, limits, are_sparse)
        return tuple(tuple(each) for each in buckets)

    def _failed(self, error: Exception) -> None:
        if comes_from_a_signal_handler(error):
            raise error
        self._stop(f"it failed ({type(error).__name__}: {error})"[:200])

    def _stop(self, why: str) -> None:
        if self._is_off:
            return
        self.off()
        kept = "" if self._block is None else f"; the model keeps buckets of {self._conditions[self._block][0]}"
        self._agent.note_missing(ENDED_BUCKET_EXPLORATION, why + kept)

    def _end(self) -> None:
        if self._model is None and (self._agent.worker != NO_WORKER or not is_one_of_many()):
            return  # one that evaluates what ranks have learnt, or loads for them, has nothing to try
        if compiles():
            self._stop("the program uses torch.compile")
        elif self._model is None:
            if self._agent.governor.steps:  # a launcher has none
                self._stop("the program wrapped no model with DistributedDataParallel")
        elif self._round < 1:
            self._stop("the program's steps are too few for a round of blocks")


def _why_not(model: Any) -> str:
    """Why its reducer cannot be another one; "" where it can."""
    if model._use_python_reducer or model._delay_all_reduce_all_params or model.mixed_precision is not None:
        return "the model is not reduced in buckets alone"
    if model.static_graph:
        return _STATIC
    if model.gradient_as_bucket_view:
        return "gradients live in the buckets, and a program may hold them"
    if any(each.device.type != "cpu" for each in model.parameters()):
        return "steps of a GPU are not told by the clock of a CPU; compare whole runs: tracekit study ddp"
    return ""


def _give(model: Any, config: Any) -> None:
    """Another reducer, as torch makes one in `DistributedDataParallel.__setstate__`."""
    model._bucket_config, model.bucket_bytes_cap = config, config.bucket_bytes_cap
    parameters, are_sparse = model._build_params_for_reducer()
    names = model._build_debug_param_to_name_mapping(parameters)
    model._ddp_init_helper(parameters, are_sparse, names, model.static_graph)
