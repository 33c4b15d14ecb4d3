"""Operators: short windows of torch.profiler, spaced by the governor; with `--profile full`, one after the other.

A window begins and ends at safe points, between the program's operations. Its raw trace is saved by Kineto and
converted by the supervisor. A program that profiles itself has the profiler to itself.
"""

import atexit
import ctypes
import math
import mmap
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from time import perf_counter_ns as clock
from time import time_ns
from types import ModuleType
from typing import Any

from tracekit.record.wire import Kind

from .agent import Agent
from .patching import Patches

# The first steps allocate and compile: they would not be typical.
_FIRST_STEP = 5
_STEPS_PER_WINDOW = 2
# A window with fewer steps ends when so many should have passed; within ranges of the program's so many times later.
_MOST_STEPS, _MOST_WITHIN = 4 * _STEPS_PER_WINDOW, 8
# With `full`, a window is closed after this time: its trace is held in memory until then.
_FULL_WINDOW_NS = 250_000_000
# Raw traces that the supervisor has not converted yet; beyond this, windows are left out and said to be missing.
_MAX_WAITING_BYTES = 1 << 30
# Kineto's log level lives in this variable of libtorch; it prints stage lines on stderr at the default level.
_LOG_LEVEL = "_ZN9libkineto6Logger14severityLevel_E"
_SILENT = 99
_open = open  # Python's own, whatever the program puts in its place
_UNFINISHED = b'"finished": false'  # as Kineto writes it


class Operators:
    """Opens and closes profiler windows."""

    def __init__(self) -> None:
        self._patches = Patches()
        self._window: Any = None
        self._thread = 0  # that opened the window: torch keeps the profiler's state per thread
        self._opened = 0
        self._opened_at_step = 0
        self._number = 0
        # Of the last window. The first is always taken: a short run without any operators would explain little. It is
        # in the estimate of what recording cost.
        self._cost_ns = 0.0
        self._event_ns = 0.0
        self._log_level: ctypes.c_int | None = None
        self._users = 0
        self._is_last = False  # no window may open any more
        self._has_batches = False  # of a loader, in the window
        self._ranges = 0  # of the program's, that began in the window and go on
        self._in_window = Patches()
        self._ours = False
        self._off = False
        self._waiting: list[str] = []

    def install(self, agent: Agent) -> None:
        self._agent = agent
        agent.window_is_open = self._window_is_open
        self._full = agent.session["profile"] == "full"
        if agent.session["profile"] == "off":
            explores = agent.session.get("explore") is not None
            why = "left out in an exploration" if explores else "switched off by --profile off"
            agent.note_missing("operators", why)
            return
        agent.when_imported("operators", "torch.autograd.profiler", self._watch_user)
        agent.when_imported("operators", "torch", self._begin)

    def off(self) -> None:
        self._off = True
        self._patches.undo()
        if self._window_is_open():
            self._close(save=False)

    def _window_is_open(self) -> bool:
        """Whether a window of ours is open on this thread."""
        return self._window is not None and self._thread == threading.get_ident()

    def _begin(self, torch: ModuleType) -> None:
        library = os.path.join(os.path.dirname(torch.__file__ or ""), "lib", "libtorch_cpu.so")
        try:
            self._log_level = ctypes.c_int.in_dll(ctypes.CDLL(library), _LOG_LEVEL)
        except (OSError, ValueError):
            self._agent.note_missing("operators", "the profiler of this torch build cannot be kept from printing")
            return
        from torch._C._dynamo.eval_frame import get_eval_frame_callback
        from torch._guards import CompileContext

        def is_compiling() -> bool:
            return get_eval_frame_callback() is not None or CompileContext.try_get() is not None

        def is_capturing() -> bool:
            return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()

        self._is_compiling, self._is_capturing = is_compiling, is_capturing
        self._agent.at_safe_point.append(self._turn)
        self._agent.safe_point_due = True
        # A forked child must not inherit a running profiler, and torch crashes when one runs at the interpreter's end.
        self._agent.before_fork.append(self._end)
        self._agent.before_exit.append(self._end)
        # Before that, as handlers run from the last one registered to the first, torch's finalizers take back what
        # compiling has registered of operators; of which a window holds references.
        weakref.finalize(self, _nothing)  # has the handler registered that runs all finalizers
        atexit.register(self._end_at_exit)
        if self._full:
            self._open()

    def _turn(self) -> bool:
        """At a safe point: close the window that has lasted long enough, open the next one when it may.

        Whether the next safe point matters too; after a stretch of steps one always does.
        """
        if self._off:
            return False
        if self._window is not None and not self._window_is_open():
            return True
        # Inside a compiled function torch.compile would compile the profiler too; and as it compiles it runs backward
        # passes of its own, within ranges.
        if self._is_compiling():
            return True
        # A window waits for the GPU as it ends, which spoils a CUDA graph that is being captured.
        if self._is_capturing():
            return True
        try:
            if self._window is not None and self._is_long_enough():
                self._close(save=True)
            if self._window is None and self._may_open():
                self._open()
        except BaseException as error:
            self._abandon()
            if not isinstance(error, Exception):
                raise
            self._agent.fail("operators", error)
        return self._full or self._window is not None or self._agent.governor.steps < _FIRST_STEP

    def _counted_range(self, one: int, original: Callable[..., Any]) -> Callable[..., Any]:
        def turn(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == self._thread:
                self._ranges = max(self._ranges + one, 0)
            return original(*args, **kwargs)

        return turn

    def _abandon(self) -> None:
        """After an exception, maybe one of a signal handler in the midst of Kineto: no window opens any more."""
        import torch

        self._window = None
        self._in_window.undo()
        self._off = True
        self._agent.note_missing("operators from then on", "an exception interrupted the profiler")
        if not self._users and torch.autograd._profiler_enabled():
            with suppress(RuntimeError), self._silence():
                torch._C._autograd._disable_profiler()

    def _is_long_enough(self) -> bool:
        """Not within a range that the program has begun in the window; and where the loop asks for a batch, if it does:
        there it is in none that nobody saw begin. But of a window that lasts for many times as long as it should, as an
        evaluation counts no steps, all that must be held in memory counts more."""
        agent, lasted = self._agent, clock() - self._opened
        typical = agent.governor.typical_step_ns
        limit = max(_FULL_WINDOW_NS, _MOST_STEPS * typical) if typical else math.inf
        self._has_batches |= agent.asks_for_batch
        steps = agent.governor.steps - self._opened_at_step
        may_be_within = self._has_batches and not agent.asks_for_batch and steps < 2 * _STEPS_PER_WINDOW
        if (self._ranges or may_be_within) and lasted < _MOST_WITHIN * limit:
            return False
        return lasted > (_FULL_WINDOW_NS if self._full else limit) or (not self._full and steps >= _STEPS_PER_WINDOW)

    def _may_open(self) -> bool:
        governor = self._agent.governor
        if not self._full and (governor.steps < _FIRST_STEP or clock() < governor.next_window(self._cost_ns)):
            return False
        import torch

        if threading.current_thread() is not threading.main_thread():
            self._agent.note_missing(
                "operators of other threads than the main one", "windows open on the main thread only"
            )
            return False
        if self._is_last:
            self._agent.note_missing(
                "operators from then on",
                "a range of the profiler's went on past the end of a window, as far as is known, and would spoil the"
                " next one as it ends",
            )
            return False
        if _calls_remotely():
            why = "torch would warn the program of a profiler"
            self._agent.note_missing("operators while torch.distributed.rpc is in use", why)
            return False
        return not self._users and not torch.autograd._profiler_enabled()

    def _open(self) -> None:
        import torch
        from torch.autograd.profiler import profile, record_function

        began = clock()
        if not self._full and not self._event_ns and not is_watched(torch):
            self._event_ns = self._cost_of_an_event(torch, profile)
        device = "cuda" if torch.cuda.is_initialized() else None
        if device:
            self._agent.note_missing(
                "the time that layers and phases take on the GPU",
                "they are timed on the host, which does not wait for it; GPU work is in the profiler windows",
            )
        self._window = self._started(profile(use_kineto=True, use_cpu=True, use_device=device))
        self._thread = threading.get_ident()
        self._ranges = 0
        self._in_window.replace(record_function, "__enter__", partial(self._counted_range, 1))
        self._in_window.replace(record_function, "__exit__", partial(self._counted_range, -1))
        self._opened = clock()
        self._opened_at_step = self._agent.governor.steps
        self._has_batches = False
        self._cost_ns = self._opened - began
        self._agent.governor.profiler_ns += self._opened - began

    def _close(self, save: bool) -> None:
        ended = clock()
        window = self._window
        self._in_window.undo()
        with self._silence(), self._as_ours():
            window.__exit__(None, None, None)
        self._window = None
        self._is_last = True  # unless it is seen that no range goes on
        mono, wall = clock(), time_ns()
        agent = self._agent
        if save and self._has_room():
            path = os.path.join(agent.folder, f"{agent.stem}.{self._number:06d}.window")
            with self._silence():  # as where the disk does not take it
                window.kineto_results.save(path + ".tmp")
            self._is_last = _has_unfinished(path + ".tmp")
            os.replace(path + ".tmp", path)
            self._waiting.append(path)
            agent.spool.write(Kind.WINDOW, agent.spool.intern("window"), self._opened, ended, self._number, wall, mono)
        self._number += 1
        cost = clock() - ended + (self._event_ns * len(window.kineto_results.events()) if self._event_ns else 0)
        self._cost_ns += cost
        agent.governor.profiler_ns += int(cost)

    def _has_room(self) -> bool:
        self._waiting = [path for path in self._waiting if os.path.exists(path)]
        if sum(os.path.getsize(path) for path in self._waiting) < _MAX_WAITING_BYTES:
            return True
        self._agent.note_missing("some profiler windows", "the supervisor could not convert them as fast as they came")
        return False

    def _end(self) -> None:
        if self._window_is_open():
            try:
                self._close(save=True)
            except BaseException:
                self._abandon()
                raise

    def _end_at_exit(self) -> None:
        self._off = True  # what the program does from now on may be the last
        try:
            self._end()
        except Exception as error:
            self._agent.fail("operators", error)

    # Kineto.

    def _started(self, window: Any) -> Any:
        with self._as_ours():
            window._prepare_trace()
            with self._silence():
                window._start_trace()
        return window

    def _cost_of_an_event(self, torch: ModuleType, profile: Callable[..., Any]) -> float:
        """Nanoseconds that the profiler adds to one operation on this machine, measured in a window of its own."""

        def operations() -> int:
            began = clock()
            for _ in range(200):
                torch.empty(0, device="cpu")
            return clock() - began

        plain = min(operations() for _ in range(3))
        window = self._started(profile(use_kineto=True, use_cpu=True))
        profiled = min(operations() for _ in range(3))
        with self._silence(), self._as_ours():
            window.__exit__(None, None, None)
        return max(profiled - plain, 0) / 200

    @contextmanager
    def _silence(self) -> Iterator[None]:
        level = self._log_level
        assert level is not None
        before = level.value
        level.value = _SILENT
        try:
            yield
        finally:
            level.value = before

    # The program's own use of the profiler.

    def _watch_user(self, module: ModuleType) -> None:
        self._patches.replace(module.profile, "_prepare_trace", self._step_back)
        for kind in (module.profile, module.emit_nvtx, module.emit_itt):
            self._patches.replace(kind, "__enter__", self._step_back)
            self._patches.replace(kind, "__exit__", self._user_ended)

    def _step_back(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def begin(profiler: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._ours and profiler is not self._window and getattr(profiler, "enabled", True):
                try:
                    self._make_way()
                except Exception as error:
                    self._agent.fail("operators", error)
            return original(profiler, *args, **kwargs)

        return begin

    def _make_way(self) -> None:
        self._end()
        self._users = 1
        self._agent.note_missing("operators while the program profiled itself", "the program uses torch.profiler")

    def _user_ended(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def end(profiler: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(profiler, *args, **kwargs)
            if not self._ours and getattr(profiler, "enabled", True):
                self._users = 0
            return result

        return end

    @contextmanager
    def _as_ours(self) -> Iterator[None]:
        self._ours = True
        try:
            yield
        finally:
            self._ours = False


def _has_unfinished(trace: str) -> bool:
    """Whether a range that began in the window went on as it ended. What the profiler knows of a range is freed with
    its window; as the range ends, it is written to all the same if another window is open."""
    with _open(trace, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as text:
        return text.find(_UNFINISHED) >= 0


def _calls_remotely() -> bool:
    """Whether the program has set up remote procedure calls."""
    rpc = sys.modules.get("torch.distributed.rpc")
    return rpc is not None and bool(getattr(rpc, "_is_current_rpc_agent_set", bool)())


def _nothing() -> None: ...


def is_watched(torch: Any) -> bool:
    """Whether the program traces or counts its operations: then we run none of our own."""
    return bool(
        torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or torch._C._get_tracing_state() is not None
        or torch._C._functorch.peek_interpreter_stack() is not None
    )
