"""The agent: starts the collectors in a recorded process, keeps them from hurting it, and reports on them."""

import atexit
import importlib
import json
import os
import sys
from collections.abc import Callable
from time import perf_counter_ns as clock
from types import CodeType, FunctionType, ModuleType
from typing import Any, Protocol

from tracekit import marks
from tracekit.record.wire import STEPS_OF_A_LOOP, Kind

from . import tracebacks
from .governor import Governor, cold_ns
from .loaders import Loaders
from .naming import Naming
from .patching import Patches, unseen_by_warnings
from .phase_clock import PhaseClock
from .resting import Resting
from .spool import Spool, threads
from .tracebacks import comes_from_a_signal_handler
from .workers_to_fork import NO_WORKER, WorkersToFork

_open = open  # Python's own, whatever the program puts in its place
# How often the status file is replaced, at a step's end: it is all that a killed process leaves of its costs.
_STATUS_INTERVAL_NS = 5_000_000_000
# Of the budget, the supervisor's: what it takes of a machine of two CPUs (`benchmarks/overhead.py`).
_SUPERVISORS = 0.005


class Collector(Protocol):
    """A piece inside the program that gathers one kind of evidence."""

    def install(self, agent: "Agent") -> None:
        """Ask for the torch modules it hooks into, by `agent.when_imported`."""

    def off(self) -> None:
        """Take every hook out again; called once, also after a failure."""


class AroundBackward(Protocol):
    """What is told of each run of the engine that accumulates gradients; one may begin another."""

    def enter(self) -> None: ...

    def leave(self, failed: bool) -> None: ...


class Agent:
    """Everything tracekit does in one process. Collectors reach the spool, the governor and each other through it."""

    def __init__(self, folder: str, stem: str) -> None:
        with open(os.path.join(folder, "session.json"), encoding="utf-8") as file:
            self.session: dict[str, Any] = json.load(file)
        self.folder = folder
        self.stem = stem
        self.spool = Spool(folder, stem)
        self.governor = Governor(_programs_part(self.session["overhead"]), cold_ns(self._typical_hook))
        self.naming = Naming(self)
        self.loaders = Loaders()
        self.collectors: dict[str, Collector] = {}
        self.before_fork: list[Callable[[], None]] = []
        self.after_fork: list[Callable[[], None]] = []  # in the child
        self.before_exit: list[Callable[[], None]] = []
        self.before_leaving: list[Callable[[], None]] = []  # where Python is left without an exit, too
        self.after_backward: list[Callable[[bool], None]] = []  # when no run of the engine is left; did it fail?
        self.around_backward: list[AroundBackward] = []
        self.phases: PhaseClock | None = None  # of a rank of several
        self.resting = Resting(self)
        self.on_settling: list[Callable[[], None]] = []
        self.facts_now: list[Callable[[], dict[str, object]]] = []
        self.at_safe_point: list[Callable[[], bool]] = []
        self.safe_point_due = False
        self.asks_for_batch = False  # at this safe point the program is about to
        self.worker = NO_WORKER  # of a loader, that this process is
        self.workers_to_fork = WorkersToFork(self)
        self._failed: dict[str, str] = {}
        self._facts: dict[str, object] = {}
        self._missing: dict[str, str] = {}
        self._is_told = True  # all that is missing, by the status
        self._status_written = 0
        self.step_source_rank = 99
        self._write_at = self.act_at = 0  # steps
        self.on_step: list[Callable[[], None]] = []
        # Module calls may go past us until the step ends: the function that lets them, and the code it has otherwise.
        self.calls_go_past: tuple[FunctionType, CodeType] | None = None
        self.tally: Callable[[int, int, int, int], None] | None = None  # layer, direction, depth, ns of a detailed call
        self.window_is_open: Callable[[], bool] = lambda: False  # a profiler window of ours, on this thread
        self.runs_inner_layers = False  # one by one (`split_rnn`): then nobody needs to tell them apart

    def install(self) -> None:
        """Load the session's collectors and let each place its hooks."""
        targets = {"conditions": "tracekit.collectors.conditions:Conditions", **self.session["collectors"]}
        classes: dict[str, Callable[[], Collector]] = {}
        for name, target in targets.items():
            module, _, attribute = target.partition(":")
            try:
                classes[name] = getattr(importlib.import_module(module), attribute)
            except Exception as error:
                self.fail(name, error)
        unseen_by_warnings()
        for name, make in classes.items():
            try:
                collector = make()
                collector.install(self)
                self.collectors[name] = collector
            except Exception as error:
                self.fail(name, error)

    def when_imported(self, name: str, module: str, hook: Callable[[ModuleType], None]) -> None:
        """Run `hook` for collector `name` once `module` is imported; its failure switches off only the collector."""
        import wrapt

        def guarded(imported: ModuleType) -> None:
            if name not in self._failed:
                try:
                    hook(imported)
                except Exception as error:
                    self.fail(name, error)

        wrapt.register_post_import_hook(guarded, module)

    def also_after_fork(self, act: Callable[[], None]) -> None:
        """From now on a forked child has something of this to leave behind. Whatever it touches has to be copied, so
        it goes through what has been used."""
        if act not in self.after_fork:
            self.after_fork.append(act)

    def fail(self, name: str, error: BaseException) -> None:
        """Switch a collector off for good and note why; the program goes on as without it.

        What a signal handler of the program raised while our code happened to run is the program's: it is raised again.
        """
        if comes_from_a_signal_handler(error):
            raise error
        if name in self._failed:
            return
        self._failed[name] = f"{type(error).__name__}: {error}"[:300]
        collector = self.collectors.get(name)
        try:
            if collector is not None:
                collector.off()
        except Exception as again:
            self._failed[name] += f"; and when switching it off: {again}"[:300]
        self.write_status()

    def note_missing(self, what: str, why: str) -> None:
        """Say that something is not captured in this process, and why."""
        is_new = what not in self._missing
        self._missing[what] = why
        self._is_told &= not is_new
        if is_new and self.worker != NO_WORKER:  # it leaves without a last status
            self.write_status()

    def describe(self, **facts: object) -> None:
        """Add facts about this process (role, rank, torch build, …) to its status."""
        self._facts.update(facts)
        self.write_status()

    def works_as(self, worker: int) -> None:
        """This process is a worker of a loader, which it may have said when it was forked."""
        if worker != self.worker:
            self.worker = worker
            self.describe(worker=worker)

    # Steps as they happen, to pace the governor and the profiler. The steps that are reported are derived when
    # analysing, from all the evidence.

    def step_source(self, rank: int) -> None:
        """An event that may end a step, of a source with this rank; the best source seen so far sets the pace."""
        if rank > self.step_source_rank:
            return
        if rank < self.step_source_rank:
            self.step_source_rank = rank
            self.governor.count_from_here()
            self._write_at = self.act_at = 0
            return
        governor = self.governor
        governor.steps += 1
        if governor.steps >= self.act_at:
            self._end_step(governor)
        if self.calls_go_past is not None:
            self.calls_go_past[0].__code__ = self.calls_go_past[1]
        for act in self.on_step:
            act()

    def _end_step(self, governor: Governor) -> None:
        """What is not to be done at the end of every short step, each of which would find it in no cache."""
        if governor.steps > self._write_at:
            self.write_noted()
            self._write_at = governor.steps + governor.steps_per_write - 1
        if governor.steps >= governor.settle_at:
            governor.settle()
            began = clock()
            for settle in self.on_settling:
                settle()
            self.safe_point_due = bool(self.at_safe_point)
            governor.spent_ns += clock() - began
            if clock() - self._status_written > _STATUS_INTERVAL_NS or governor.steps == STEPS_OF_A_LOOP:
                self.write_status()
        self.act_at = min(self._write_at + 1, governor.settle_at)
        if self.phases is not None:
            try:
                self.act_at = min(self.act_at, self.phases.step_ended())
            except Exception as error:
                self.fail("collectives", error)
            self.resting.consider()

    def safe_point(self, asks_for_batch: bool = False) -> None:
        """A moment between operations, outside any of torch's own ranges: where a profiler window may begin or end.

        To be called where `safe_point_due` is set: after a stretch of steps, and as long as somebody asks for the next.
        Within a backward pass, where modules are called again for what was checkpointed, is none: when the engine that
        runs it returns it puts the thread's state back, and a profiler that began meanwhile crashes as it ends.
        """
        if sys.modules["torch"]._C._current_graph_task_id() != _NO_PASS:
            return
        self.asks_for_batch = asks_for_batch
        self.safe_point_due = any(act() for act in self.at_safe_point)

    # Marks of the program itself (`tracekit.marks.Listener`).

    def step(self) -> None:
        now = clock()
        self.spool.write(Kind.STEP, self.spool.intern("step"), now, now, self.governor.steps)
        self.step_source(0)

    def begin(self) -> int:
        return clock()

    def end(self, name: str, start: int) -> None:
        self.spool.write(Kind.RANGE, self.spool.intern(str(name)), start, clock())

    # The process itself.

    def _current_facts(self) -> dict[str, object]:
        facts: dict[str, object] = {}
        for ask in self.facts_now:
            facts.update(ask())
        return facts

    def write_status(self) -> None:
        """Replace the status file; lost silently when the disk does not take it."""
        self._status_written = clock()
        self._is_told = True
        status = {
            "failed": self._failed,
            "missing": self._missing,
            "facts": {**self._facts, **self._current_facts()},
            "dropped": self.spool.dropped,
            "steps": self.governor.steps,
            "overhead": self.governor.overhead(),
            "elapsed_ns": clock() - self.governor.started,
        }
        path = os.path.join(self.folder, self.stem)
        try:
            with _open(path + ".status.tmp", "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(json.dumps(status))  # `dump` encodes in Python, some 10 times as long
            os.replace(path + ".status.tmp", path + ".status")
        except OSError:
            pass
        self.governor.spent_ns += clock() - self._status_written

    def _typical_hook(self, *args: object) -> None:
        """What most hooks do, with a place to forget it."""
        start = clock()
        end = clock()
        self.spool.note((0, threads.current().tid, start, end, 0, 0, 0, 0, 0, 0, 0))
        self.spool.forget_notes()

    def _prepare_fork(self) -> None:
        self._run_all([*self.before_fork, self.workers_to_fork.before_fork])

    def _exit(self) -> None:
        self._run_all([*self.before_exit, *self.before_leaving, self.write_noted])
        self.write_status()

    def write_noted(self) -> None:
        """Write the records noted since the step began, and lay what they cost to our account."""
        began = clock()
        notes = self.spool.write_noted()
        self.governor.spent_ns += notes * self.governor.note_ns + clock() - began

    def write_notes_before_leaving(self) -> None:
        """Where a process ends or becomes another program past `atexit`: as children of multiprocessing do."""
        patches = Patches()
        for name in ("_exit", "execv", "execve"):
            patches.replace(os, name, self._after_the_notes)

    def _after_the_notes(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def leave(*args: Any, **kwargs: Any) -> Any:
            try:
                self._run_all([*self.before_leaving, self.write_noted, self._write_what_is_not_told])
            finally:  # whatever a signal handler raises meanwhile: nobody comes back from here
                original(*args, **kwargs)

        return leave

    def _write_what_is_not_told(self) -> None:
        if self.spool.dropped or not self._is_told:
            self.write_status()

    def _run_all(self, actions: list[Callable[[], None]]) -> None:
        for act in actions:
            try:
                act()
            except Exception as error:
                self.fail("operators", error)

    def _continue_in_child(self) -> None:
        """In a forked child: of the parent's files, counts and open calls only the names are ours."""
        try:
            child = self.workers_to_fork.begin_in_child()
            self.worker, self.stem = child.worker, child.stem
            threads.start_anew()
            self.spool.continue_as(self.folder, self.stem, child.names_of, child.first)
            self._of_parent = self.governor, self._facts  # to let go of these, they would have to be copied
            self.governor = Governor(self.governor.budget, self.governor.note_ns)
            self._facts = {}
            self.step_source_rank = 99
            self._write_at = self.act_at = 0
            self.safe_point_due = bool(self.at_safe_point)
            for act in self.after_fork:
                act()
        except Exception as error:
            for name in list(self.collectors):
                self.fail(name, error)


_NO_PASS = -1  # what torch calls the backward pass of a thread that is in none


def _programs_part(budget: float) -> float:
    """What of the budget may be spent in the program: what the supervisor leaves, and at least half."""
    return max(budget - _SUPERVISORS, budget / 2)


_agent: Agent | None = None


def start(folder: str, stem: str) -> None:
    """Start the agent of this process, once."""
    global _agent
    if _agent is not None:
        return
    _agent = Agent(folder, stem)
    _agent.install()
    marks.listen(_agent)
    tracebacks.hide_our_frames()
    os.register_at_fork(
        before=_agent._prepare_fork,
        after_in_parent=_agent.workers_to_fork.has_forked,
        after_in_child=_agent._continue_in_child,
    )
    atexit.register(_agent._exit)
    _agent.write_notes_before_leaving()
