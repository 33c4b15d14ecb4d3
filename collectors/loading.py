"""Loading: how long the program waits for each batch, and who made it."""

from collections.abc import Callable
from inspect import signature
from time import perf_counter_ns as clock
from types import ModuleType
from typing import Any

from tracekit.record.wire import Kind

from .access_order import AccessOrder, Epoch
from .agent import Agent
from .batch_bytes import bytes_of, bytes_of_any, pieces_of
from .fetching import Fetching
from .loaders import TORCHDATA
from .patching import Patches
from .phase_clock import LOADING
from .short_batches import Iteration, ShortBatches
from .spool import threads
from .starting_processes import StartingProcesses
from .steps import BATCH

# Of the batches of steps that are so short, but for a loader's first ones, one in so many is measured, in a place that
# is another one each time: a program may have a period of its own. Of still shorter ones it is one in more: between two
# nothing of ours stays in the caches, so a measurement takes 15 to 40 us, which is to be no more than this share.
_SHORT_NS, _FIRST, _NOW_AND_THEN = 20_000_000, 16, 8
_LOOK_NS, _SHARE_OF_LOOKS = 40_000, 0.001
# After so many batches one is measured whatever it is made of; and their order is compared with the predicted one.
_SELDOM = 64
# What torch and torchdata call the worker that made a batch.
_WORKER = {"worker_idx", "worker_id"}
_GOLDEN = 0.618034  # multiples of it, less their whole part, are spread evenly


class Loading:
    """Times every batch of every DataLoader.

    1. `__init__` of loaders' iterators: which epoch it is, and one row per worker that was started; one more when they
       are stopped.
    2. The iterators' own iterators over their samplers: whether the order of the samples is the one that was predicted.
    3. `__next__` of the iterators: one row per batch that the program got, and which worker made it. The queue from the
       workers tells when the bytes of a batch are there.
    4. In the workers: `Fetching`.
    """

    def __init__(self) -> None:
        self._patches = Patches()
        self._epochs: dict[str, int] = {}
        self._looks: dict[str, int] = {}
        self._lengths: dict[str, int] = {}  # how many batches the last workers of each loader were asked for
        self._orders: dict[str, AccessOrder] = {}
        self._modes: Callable[[], int] = lambda: 0

    def install(self, agent: Agent) -> None:
        self._agent = agent
        self._fetching = fetching = Fetching(agent, self._patches)
        self._starting_processes = StartingProcesses(agent, self._patches, fetching.is_fetch)
        agent.when_imported("loading", "torch.utils.data.dataloader", self._hook_iterators)
        agent.when_imported("loading", "torch.utils.data._utils.fetch", fetching.hook_fetchers)
        agent.when_imported("loading", "torch.utils.data._utils.worker", fetching.hook_worker)
        agent.when_imported("loading", f"{TORCHDATA}.stateful_dataloader", self._hook_stateful_iterators)
        agent.when_imported("loading", f"{TORCHDATA}.worker", fetching.hook_worker)
        agent.before_exit.append(self._settle)
        self._short = ShortBatches(agent, fetching)

    def off(self) -> None:
        self._patches.undo()
        self._fetching.off()

    def _hook_iterators(self, module: ModuleType) -> None:
        self._patches.replace(module._BaseDataLoaderIter, "__init__", self._named_iterator)
        self._patches.replace(module._BaseDataLoaderIter, "_reset", self._new_epoch)
        self._patches.replace(module._BaseDataLoaderIter, "__next__", self._timed_next)
        self._hook_iterators_of_workers(module._MultiProcessingDataLoaderIter)
        self._starting_processes.see(module._SingleProcessDataLoaderIter)

    def _hook_stateful_iterators(self, module: ModuleType) -> None:
        self._hook_iterators_of_workers(module._StatefulMultiProcessingDataLoaderIter)
        self._starting_processes.see(module._StatefulSingleProcessDataLoaderIter)

    def _hook_iterators_of_workers(self, kind: Any) -> None:
        self._patches.replace(kind, "__init__", self._timed_start)
        self._patches.replace(kind, "_shutdown_workers", self._timed_stop)
        if signature(kind._process_data).parameters.keys() & _WORKER:  # older versions do not tell
            self._patches.replace(kind, "_process_data", self._told_worker)

    def _named_iterator(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __init__(iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            began = clock()
            original(iterator, loader, *args, **kwargs)
            try:
                drawing = clock() - began
                name = self._agent.loaders.name(loader)
                iterator._tracekit = of = Iteration(
                    name,
                    self._agent.spool.intern(name),
                    self._next_epoch(name),
                    loader.generator,
                    not loader.num_workers,
                    drawing_ns=drawing,
                )
                of.next_look = self._next_look(of, -1)
                self._agent.loaders.used(loader)
                if not loader.num_workers:  # those with workers are reset before they begin
                    self._watch_order(iterator, loader)
                else:
                    self._fetching.expect(self._lengths.get(name, 0), int(loader.num_workers))
                    self._agent.workers_to_fork.begin(int(loader.num_workers))
            except Exception as error:
                self._agent.fail("loading", error)

        return __init__

    def _timed_start(self, original: Callable[..., Any]) -> Callable[..., Any]:
        spool = self._agent.spool

        def __init__(iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            start = clock()
            try:
                self._prepare_workers(loader)
                start = clock()
                original(iterator, loader, *args, **kwargs)
            finally:
                end = clock()
                if hasattr(vars(iterator).get("_next_index"), "is_timed"):
                    del iterator._next_index
                self._started_workers()
            try:
                of = iterator._tracekit
                name = spool.intern(of.loader)
                for worker, process in enumerate(iterator._workers):
                    spool.write(Kind.WORKER, name, start, end, of.epoch, worker, process.pid, of.drawing_ns)
                _note_arrivals(iterator, of)
            except Exception as error:
                self._agent.fail("loading", error)

        return __init__

    def _timed_stop(self, original: Callable[..., Any]) -> Callable[..., Any]:
        spool = self._agent.spool

        def _shutdown_workers(iterator: Any) -> None:
            start = clock()
            stops = not getattr(iterator, "_shutdown", True)
            original(iterator)
            try:
                if stops and iterator._shutdown:
                    of = iterator._tracekit
                    self._lengths[of.loader] = iterator._num_yielded
                    count = len(iterator._workers)
                    spool.write(Kind.WORKER, spool.intern(of.loader), start, clock(), of.epoch, -1, count)
            except Exception as error:
                self._agent.fail("loading", error)

        return _shutdown_workers

    def _told_worker(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _process_data(iterator: Any, data: Any, worker: int, *args: Any) -> Any:
            if hasattr(iterator, "_tracekit"):
                iterator._tracekit.worker = worker
            return original(iterator, data, worker, *args)

        return _process_data

    def _prepare_workers(self, loader: Any) -> None:
        """Workers are forked for each epoch: what each would need anew is made once, before."""
        try:
            self._fetching.prepare(getattr(loader, "batch_size", None))
        except Exception as error:
            self._agent.fail("loading", error)

    def _started_workers(self) -> None:
        try:
            self._agent.workers_to_fork.end()
            self._fetching.see_only_due()
        except Exception as error:
            self._agent.fail("loading", error)

    def _next_epoch(self, loader: str) -> int:
        epoch = self._epochs.get(loader, -1) + 1
        self._epochs[loader] = epoch
        return epoch

    def _new_epoch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _reset(iterator: Any, loader: Any, first_iter: bool = False) -> None:
            self._agent.workers_to_fork.end()  # the sampler may fork, too
            began = clock()
            original(iterator, loader, first_iter)
            try:
                if hasattr(iterator, "_tracekit"):
                    if first_iter:
                        iterator._tracekit.drawing_ns += clock() - began
                        _time_drawing(iterator)
                    else:
                        of = iterator._tracekit
                        self._short.tell(of)
                        of.start_anew(self._next_epoch(of.loader))
                        of.next_look = self._next_look(of, -1)
                    self._watch_order(iterator, loader)
            except Exception as error:
                self._agent.fail("loading", error)

        return _reset

    def _watch_order(self, iterator: Any, loader: Any) -> None:
        """Have what the sampler will give out noted, if it can be predicted."""
        of: Iteration = iterator._tracekit
        if of.loader not in self._orders:
            facts = self._agent.loaders.facts_of(of.loader)
            self._orders[of.loader] = AccessOrder(facts, self._agent.window_is_open, self._is_short)
        order = self._orders[of.loader]
        ahead = int((loader.num_workers or 0) * (loader.prefetch_factor or 0))  # they may be of numpy
        of.order = Epoch(order, iterator, of.generator, ahead) if order.can_be_known(iterator) else None
        if of.order is not None:
            makes_batches = type(iterator._index_sampler).__name__ == "BatchSampler"  # torch's, as it can be known
            most = order.most_compared(iterator._index_sampler)
            iterator._sampler_iter = of.order.watched(iterator._sampler_iter, makes_batches, most, self._spend)

    def _is_short(self) -> bool:
        """Whether steps are so short that what is done in each counts; False where that is not known yet."""
        return 0 < self._agent.governor.typical_step_ns < _SHORT_NS

    def _spend(self, act: Callable[..., None], *args: Any) -> None:
        try:
            began = clock()
            act(*args)
            self._agent.governor.spent_ns += clock() - began
        except Exception as error:
            self._agent.fail("loading", error)

    def _settle(self) -> None:
        for order in self._orders.values():
            order.settle()

    def _timed_next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        import torch

        self._modes = torch._C._len_torch_function_stack
        seen = self._seen_next(original)

        def __next__(iterator: Any) -> Any:
            try:
                of: Iteration = iterator._tracekit
                index = iterator._num_yielded
                is_only_timed = index < of.only_timed_until
            except AttributeError:  # which is said where it is seen
                is_only_timed = False
            if not is_only_timed:
                return seen(iterator)
            start = clock()
            try:
                batch = original(iterator)
            except StopIteration:
                self._end(iterator)
                raise
            end = clock()
            of.note_time((index, start, end, of.arrived, of.worker))
            if end > of.deadline:
                of.only_timed_until = 0
            return batch

        return __next__

    def _seen_next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """All that is to be done around a batch. It is not done around each: see `ShortBatches`."""
        agent, note, look, fetching = self._agent, self._agent.spool.note, self._look, self._fetching
        next_seen = fetching.next_seen

        def seen(iterator: Any) -> Any:
            makes_it = False
            try:
                self._short.tell(iterator._tracekit)
                if agent.step_source_rank >= BATCH:
                    agent.step_source(BATCH)
                if agent.safe_point_due:
                    agent.safe_point(asks_for_batch=True)
                makes_it = iterator._tracekit.makes_batches
                if agent.phases is not None and agent.phases.follows:
                    agent.phases.enter(LOADING)
            except Exception as error:
                agent.fail("loading", error)
            start = clock()
            try:
                batch = original(iterator) if start < fetching.next or not makes_it else next_seen(original, iterator)
            except StopIteration:
                self._end(iterator)
                raise
            finally:
                if agent.phases is not None and agent.phases.follows:
                    agent.phases.leave(LOADING)
            end = clock()
            try:
                of: Iteration = iterator._tracekit
                index = iterator._num_yielded - 1
                size = look(of, index, batch) if index >= of.next_look else -1
                note(of.record(threads.current().tid, (index, start, end, of.arrived, of.worker), size))
                if of.order is not None and index == 0:
                    of.order.first_given()
                if of.order is not None and index + 1 == of.order.expected:
                    self._spend(of.order.all_given)
                if of.next_look > index + 1:
                    self._short.let_pass(iterator, of, index)
            except Exception as error:
                agent.fail("loading", error)
            return batch

        return seen

    def _look(self, of: Iteration, index: int, batch: Any) -> int:
        """What is not done for every short batch: how many bytes it has is told, -1 where that is not known."""
        if self._agent.spool.has_many_notes():
            self._agent.write_noted()
        began = clock()
        self._looks[of.loader] = self._looks.get(of.loader, 0) + 1
        size = -1 if self._modes() else bytes_of(batch)  # modes would see what is asked of tensors
        facts = self._agent.loaders.facts_of(of.loader)
        if "storages" not in facts:
            facts["storages"], facts["pickled"], is_on_device = pieces_of(batch)
            if is_on_device and of.makes_batches:
                facts["on_device"] = True
        at_most = of.order.most_to_wait() if of.order is not None else _SELDOM
        if index >= of.next_thorough_look:
            of.next_thorough_look = index + min(at_most, _SELDOM)
            if of.order is not None:
                of.order.settle()
            if size < 0:
                size = bytes_of_any(batch)
        of.next_look = self._next_look(of, index)
        if at_most < _SELDOM:
            of.next_look = min(of.next_look, index + at_most)
        self._agent.governor.spent_ns += clock() - began
        return size

    def _next_look(self, of: Iteration, index: int) -> int:
        """Which batch is to be measured next, after batch `index`, which is -1 before an epoch."""
        step_ns = self._agent.governor.typical_step_ns
        looks = self._looks.get(of.loader, 0)
        if looks < _FIRST or not 0 < step_ns < _SHORT_NS:
            return index + 1
        every = min(max(int(_LOOK_NS / _SHARE_OF_LOOKS / step_ns), _NOW_AND_THEN), _SELDOM)
        return int((index // every + 1 + _GOLDEN * looks % 1) * every)

    def _end(self, iterator: Any) -> None:
        """The program has had all batches of an epoch."""
        try:
            self._short.end(iterator._tracekit)
            self._agent.write_noted()
            order: Epoch | None = iterator._tracekit.order
            if order is not None:
                self._spend(order.complete)
        except Exception as error:
            self._agent.fail("loading", error)


def _time_drawing(iterator: Any) -> None:
    """Add up what it takes to draw the first indices, until its workers have started: putting these into queues takes
    longer the more workers there are, which want the CPUs meanwhile, and is part of starting them."""
    if "_next_index" in vars(iterator):  # a program's own
        return
    draw = iterator._next_index

    def _next_index() -> Any:
        began = clock()
        try:
            return draw()
        finally:
            iterator._tracekit.drawing_ns += clock() - began

    _next_index.is_timed = True  # type: ignore[attr-defined]
    iterator._next_index = _next_index


def _note_arrivals(iterator: Any, of: Iteration) -> None:
    """Have it noted when the first bytes that a worker has sent are there for the program, which takes time to make a
    batch of them; not where a thread that pins memory takes them."""
    queue = getattr(iterator, "_worker_result_queue", None)
    receive = getattr(queue, "_recv_bytes", None)
    takes_itself = queue is getattr(iterator, "_data_queue", None)
    if queue is None or receive is None or not takes_itself:
        return

    def _recv_bytes(*args: Any, **kwargs: Any) -> Any:
        of.arrived = clock()
        return receive(*args, **kwargs)

    queue._recv_bytes = _recv_bytes
