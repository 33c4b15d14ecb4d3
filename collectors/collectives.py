"""Collectives: what the ranks communicate, and who they are.

1. Every call of the c10d interface; of those that return at once, also when they were found done, and how long the
   program waits for them.
2. The gradient buckets of DistributedDataParallel (`buckets`), which C++ code sends.
3. Where the loop of each rank goes from one phase to the next (`phase_clock`).
"""

import sys
from collections.abc import Callable
from threading import get_ident, local
from time import perf_counter_ns as clock
from types import ModuleType
from typing import Any

from tracekit.record.wire import ASYNC_CALL, CALL, WAIT, WAIT_FOR

from .agent import Agent
from .buckets import Buckets
from .entered import Entered
from .groups import NO_SEQUENCE, Groups
from .in_flight import NOT_SEEN, InFlight, Sent
from .patching import Patches, place_of
from .phase_clock import COMMUNICATION, PhaseClock

_OF_ALL = (
    "_all_gather_base", "_reduce_scatter_base", "all_gather", "all_gather_coalesced", "all_gather_into_tensor",
    "all_gather_object", "all_gather_single", "all_reduce", "all_reduce_coalesced", "all_to_all", "all_to_all_single",
    "barrier", "broadcast", "broadcast_object_list", "gather", "gather_object", "monitored_barrier", "reduce",
    "reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor", "scatter", "scatter_object_list",
)  # fmt: skip
# Not isend and irecv, which `batch_isend_irecv` wants to be torch's own.
_OF_TWO = ("recv", "send", "recv_object_list", "send_object_list")
# Of what is waited for and not known, a wait that is no longer than it takes to note it holds nobody.
_NOTICED_NS = 30_000


class Collectives:
    """Times every call of the c10d interface."""

    def __init__(self) -> None:
        self._patches = Patches()
        self._is_off = False
        self._inside = local()
        self._waits: dict[int, int] = {}  # by what is waited for
        self._open: dict[int, tuple[int, int, int]] = {}  # by thread, the call that it is in
        self._buckets: Buckets | None = None
        self._known_as = 0, 1  # its rank, of how many
        self.entered: Entered | None = None  # of a rank of several

    def install(self, agent: Agent) -> None:
        self._agent = agent
        self._in_flight = InFlight(agent)
        agent.before_exit.append(self._give_up)
        agent.before_leaving.append(self._look_no_more)
        agent.when_imported("collectives", "torch.distributed.distributed_c10d", self._hook)
        agent.when_imported("collectives", "torch.nn.parallel.distributed", self._hook_ddp)
        agent.when_imported("collectives", "torch.distributed._functional_collectives", self._hook_functional)

    def off(self) -> None:
        # The functions stay replaced: torch.distributed has taken ours by name, and torch compares them.
        self._is_off = True
        if self.entered is not None:
            self.entered.stop()
        self._forget_phases()
        if self._buckets is not None:
            self._buckets.off()

    def _look_no_more(self) -> None:
        """A thread that calls torch while Python goes would take the process with it."""
        self.look(after_error=True)
        if self.entered is not None:
            self.entered.leaves()

    def _give_up(self) -> None:
        self.look(after_error=True)
        self._in_flight.give_up()

    def enter(self, op: int, group_and_dtype: int, sequence: int) -> None:
        """Have it told that something begins, should the rank never come out of it."""
        self._in_flight.has_failed = False
        if self.entered is not None:
            self.entered.begin(op, group_and_dtype, sequence)

    def look(self, have_buckets: bool = False, after_error: bool = False) -> None:
        """See what is done by now of what goes on beside the program; where that is all of it, the rank is in none."""
        self._in_flight.look(have_buckets, after_error)
        if self.entered is not None and self.entered.goes_on and self._in_flight.is_over:
            self._come_out(self.entered)

    def _come_out(self, entered: Entered) -> None:
        """This thread is in no communication any more; another one may be."""
        if others := list(self._open.values()):
            entered.begin(*others[0])
        else:
            entered.end()

    def _start_anew(self) -> None:
        """In a forked child, which is no rank before it says so."""
        self._open.clear()
        self._known_as = 0, 1
        self._in_flight.forget()
        self._forget_phases()
        if self._buckets is not None:
            self._buckets.start_anew()

    def _forget_phases(self) -> None:
        self.entered = None
        phases, self._agent.phases = self._agent.phases, None
        if phases is not None:
            phases.stop()
        self._agent.resting.end()

    def _hook(self, module: ModuleType) -> None:
        self._groups = Groups(module)
        self._no_words = self._agent.spool.intern("") * (1 + (1 << 32))
        for name in (*_OF_ALL, *_OF_TWO):
            if hasattr(module, name):
                self._patches.replace(module, name, self._timed)
        self._patches.replace(module, "init_process_group", lambda original: self._described(original, module))
        self._patches.replace(module, "destroy_process_group", self._let_go)
        self._patches.replace(module.Work, "wait", self._timed_wait)

    def _hook_ddp(self, module: ModuleType) -> None:
        if hasattr(self, "_groups"):  # a torch without distributed has none
            self._buckets = Buckets(self._agent, self, self._groups, self._in_flight)
            self._buckets.hook(module)

    def _hook_functional(self, module: ModuleType) -> None:
        """Of functional collectives, as of DTensor, the waits are seen: not where compiled code waits by itself."""
        if hasattr(self, "_no_words") and hasattr(module, "AsyncCollectiveTensor"):
            for name in ("trigger_wait", "wait"):
                if hasattr(module.AsyncCollectiveTensor, name):
                    self._patches.replace(module.AsyncCollectiveTensor, name, self._timed_wait)

    def _described(self, original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if self._is_off:
                return result
            try:
                self._groups.start_anew()
                self._agent.also_after_fork(self._start_anew)
                agent, ranks = self._agent, module.get_world_size()
                self._describe(module.get_rank(), ranks)
                if ranks > 1 and agent.phases is None:
                    agent.phases = PhaseClock(agent)
                    agent.phases.on_turn.append(self._turned)
                    self.entered = Entered(agent)
            except Exception as error:
                self._agent.fail("collectives", error)
            return result

        return init_process_group

    def _describe(self, rank: int, world: int) -> None:
        if self._known_as == (rank, world) or self._known_as[1] == 1:
            self._known_as = rank, world
            self._agent.describe(rank=rank, world_size=world)
        else:
            why = "it went on as another rank or in another world, and is called by what it was at first"
            self._agent.note_missing(f"rank {self._known_as[0]} of {self._known_as[1]} by its later numbers", why)

    def _let_go(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
            try:
                self.look(after_error=True)
                if self._agent.phases is not None:
                    self._agent.phases.start_anew()
                self._groups.stop_counting(args[0] if args else kwargs.get("group"))
            except Exception as error:
                self._agent.fail("collectives", error)
            return original(*args, **kwargs)

        return destroy_process_group

    def _turned(self, follows: bool) -> None:
        """From here on steps are followed, or are not any more."""
        try:
            if follows:
                self._agent.resting.end()
            if self._buckets is not None and not self._is_off:
                self._buckets.turn(follows)
        except Exception as error:
            self._agent.fail("collectives", error)

    def _timed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        agent, inside = self._agent, self._inside
        op, of_all = agent.spool.intern(original.__name__), original.__name__ in _OF_ALL
        self._waits[op] = agent.spool.intern(WAIT_FOR + original.__name__)
        place = place_of(original, "group")

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._is_off or getattr(inside, "a_call", False):  # of objects, which are sent as tensors
                return original(*args, **kwargs)
            group = args[place] if len(args) > place else kwargs.get("group")
            inside.a_call = True
            try:
                with self.timed(op, group, (*args, *kwargs.values()), of_all) as under_way:
                    under_way.work = original(*args, **kwargs)
                return under_way.work
            finally:
                inside.a_call = False

        return call

    def _timed_wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        agent, inside = self._agent, self._inside
        unknown = agent.spool.intern(WAIT)

        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            phases = agent.phases
            if self._is_off or getattr(inside, "a_call", False):
                return original(work, *args, **kwargs)
            if phases is None or not phases.follows:
                try:
                    return original(work, *args, **kwargs)
                finally:
                    self._waited_unseen(work)
            sent = None
            try:
                phases.enter(COMMUNICATION)
                sent = self._in_flight.of(work)
            except Exception as error:
                agent.fail("collectives", error)
            begun = clock()
            try:
                return original(work, *args, **kwargs)
            finally:
                end = clock()
                try:
                    phases.leave(COMMUNICATION)
                    if sent is not None:
                        op, words, ready = self._waits.get(sent.op, unknown), sent.group_and_dtype, sent.ready
                        self._in_flight.note(Sent(op, ready, begun, words, NO_SEQUENCE, 0, CALL), end, 0)
                        self.look(after_error=sys.exc_info()[0] is not None)
                    elif end - begun > _NOTICED_NS:
                        words = self._no_words
                        self._in_flight.note(Sent(unknown, begun, begun, words, NO_SEQUENCE, 0, CALL), end, 0)
                    self._write_many()
                except Exception as error:
                    agent.fail("collectives", error)

        return wait

    def _waited_unseen(self, work: Any) -> None:
        """A wait of a step that is not followed is over: what is done by then, tensors and all, nobody is to hold until
        the next call. Programs wait for what they began last at last."""
        try:
            if self._in_flight.is_newest(work):
                self.look(after_error=sys.exc_info()[0] is not None)
        except Exception as error:
            self._agent.fail("collectives", error)

    def timed(self, op: int, group: Any, values: tuple[Any, ...], of_all: bool = True) -> "_Call":
        """A call of the program that communicates `values` in a group, all of which takes part or not."""
        return _Call(self, op, group, values, of_all)

    def failed(self, error: Exception) -> None:
        self._agent.fail("collectives", error)

    def begin(self, op: int, group: Any, values: tuple[Any, ...], of_all: bool) -> Sent:
        began = clock()
        agent, spool = self._agent, self._agent.spool
        size, dtype, device = _largest(values)
        name = self._groups.name(group)
        sequence = self._groups.begin(name) if of_all else self._groups.begin_apart(name)
        words = spool.intern(name) | spool.intern(dtype) << 32
        if agent.phases is not None and agent.phases.follows:
            agent.phases.enter(COMMUNICATION)
        self.enter(op, words, sequence)
        self._open[get_ident()] = op, words, sequence
        now = clock()
        agent.governor.spent_ns += now - began
        return Sent(op, now, now, words, sequence, size, CALL, device not in ("cpu", ""))

    def end(self, sent: Sent, group: Any, work: Any, is_over: bool) -> None:
        import torch

        end = clock()
        agent = self._agent
        self._groups.begun(self._groups.name(group))
        if agent.phases is not None and agent.phases.follows:
            agent.phases.leave(COMMUNICATION)
        if isinstance(work, torch.distributed.Work):
            sent.how = ASYNC_CALL
            is_done: Any = work.is_completed
            if callable(is_done):
                self._in_flight.add(sent, is_done)
            else:  # put off, to be sent with others
                self._in_flight.note(sent, end, NOT_SEEN)
        elif is_over:
            is_put_off = work is None and self._groups.puts_off(group)  # within a coalescing manager
            self._in_flight.note(sent, end, NOT_SEEN if sent.on_device or is_put_off else 0)
        self._in_flight.look()
        self._open.pop(get_ident(), None)
        if self.entered is not None:
            if is_over and self._in_flight.is_over:
                self._come_out(self.entered)
            elif is_over and (other := self._in_flight.oldest) is not None and other is not sent:
                self.entered.begin(other.op, other.group_and_dtype, other.sequence)  # which it has come to before
            elif not is_over and not self._open:
                self.entered.fails()
            self.entered.left(goes_on=is_over and not self._open)
        agent.governor.spent_ns += clock() - end
        self._write_many()

    def _write_many(self) -> None:
        """A program may have no steps, at whose end what was noted is written."""
        if self._agent.spool.has_many_notes():
            self._agent.write_noted()


class _Call:
    """What is noted around a call; one that raises has not ended."""

    def __init__(self, collectives: Collectives, op: int, group: Any, values: tuple[Any, ...], of_all: bool) -> None:
        self._collectives, self._what = collectives, (op, group, values, of_all)
        self._sent: Sent | None = None
        self.work: Any = None

    def __enter__(self) -> "_Call":
        try:
            self._sent = self._collectives.begin(*self._what)
        except Exception as error:
            self._collectives.failed(error)
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        try:
            if self._sent is not None:
                self._collectives.end(self._sent, self._what[1], self.work, kind is None)
        except Exception as failure:
            self._collectives.failed(failure)


def _largest(values: tuple[Any, ...]) -> tuple[int, str, str]:
    """Bytes, dtype and kind of device of the largest argument: a tensor, or a list of tensors taken together; (0, "",
    "") for objects."""
    import torch

    best = (0, "", "")
    with torch._C.DisableTorchFunction():  # no mode of the program's sees what we ask
        for value in values:
            members = value if type(value) is list else [value]
            tensors = [member for member in members if type(member) in (torch.Tensor, torch.nn.Parameter)]
            if tensors:
                size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
                best = max(best, (size, str(tensors[0].dtype).removeprefix("torch."), tensors[0].device.type))
    return best
