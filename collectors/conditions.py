"""The condition: settings applied inside the process, and what torch is like there."""

import functools
import os
import sys
import threading
from collections.abc import Callable
from types import ModuleType

from tracekit.settings.exploration import explores_buckets
from tracekit.settings.inside import FORKED_WITH_ONE, REFUSED_PLAN, apply, mismatch

from .agent import Agent
from .bucket_exploration import BucketExploration
from .ddp_settings import DDPSettings
from .exploration import Exploration
from .loader_settings import LoaderSettings
from .loaders import TORCHDATA
from .patching import Patches, skip_our_frames
from .thread_counts import Counts, ThreadCounts, called_by_torch, say_programs_own
from .workers_to_fork import NO_WORKER


class Conditions:
    """Applies the session's settings when torch has been imported, and describes the torch build.

    Not optional and not a collector that can be left out: it goes with every recorded process.
    """

    def __init__(self) -> None:
        self._patches = Patches()
        self._programs = 0  # its own thread count, of the main thread
        self._counts: ThreadCounts | None = None
        self._exploration: Exploration | None = None
        self._bucket_exploration: BucketExploration | None = None

    def install(self, agent: Agent) -> None:
        self._agent = agent
        # Before OpenMP may bind the main thread to one of them.
        self._cpus = hex(sum(1 << cpu for cpu in os.sched_getaffinity(0)))
        agent.when_imported("conditions", "torch", self._apply)
        loaders = LoaderSettings(agent, self._patches)
        agent.when_imported("conditions", "torch.utils.data.dataloader", loaders.hook_loaders)
        agent.when_imported("conditions", f"{TORCHDATA}.stateful_dataloader", loaders.hook_stateful_loaders)
        agent.when_imported("conditions", "torch.nn.parallel.distributed", DDPSettings(agent, self._patches).hook)
        explore = agent.session.get("explore")
        if explores_buckets(explore):
            self._bucket_exploration = BucketExploration(agent, self._patches)
            agent.when_imported("conditions", "torch.nn.parallel.distributed", self._bucket_exploration.hook)
        explores = explore is not None and self._bucket_exploration is None
        if explores or Counts.of(agent.session["settings"]).is_by_layer():
            self._counts = ThreadCounts(agent)
            agent.before_exit.append(self._counts.say_what_was_not_met)
            agent.when_imported("conditions", "torch.nn.modules.module", self._counts.hook_modules)
            agent.when_imported("conditions", "torch.autograd", self._counts.hook_engine)
        if explores and self._counts is not None:
            self._exploration = Exploration(agent, self._counts)
            self._exploration.install()
        agent.when_imported("conditions", "torch._dynamo.eval_frame", skip_our_frames)

    def off(self) -> None:
        self._patches.undo()
        if self._exploration is not None:
            self._exploration.off()
        if self._bucket_exploration is not None:
            self._bucket_exploration.off()
        if self._counts is not None:
            self._counts.off()

    def _apply(self, torch: ModuleType) -> None:
        settings = self._agent.session["settings"]
        refusal = mismatch(settings, {"torch": torch.__version__, "openmp": _openmp()})
        if refusal:
            self._agent.note_missing(REFUSED_PLAN, refusal)
            settings = {name: value for name, value in settings.items() if not name.startswith("threads.")}
        self._programs = torch.get_num_threads()
        apply(torch, settings)
        if self._counts is not None:
            self._counts.install(torch, self._programs)
            self._counts.put_in_force(Counts.of(settings))
        elif "threads.intra_op" in settings:
            self._agent.after_fork.append(functools.partial(self._keep_to_one, torch.set_num_threads))
            self._patches.replace(torch, "set_num_threads", self._watched_set)
        if "threads.inter_op" in settings:
            self._patches.replace(torch, "set_num_interop_threads", self._already_set)
        self._agent.facts_now.append(lambda: {"torch": self._torch_facts(torch), "cpus": self._cpus})
        self._agent.write_status()

    def _watched_set(self, original: Callable[[int], None]) -> Callable[[int], None]:
        """The program has the last word, and the run says so."""
        applied = self._agent.session["settings"]["threads.intra_op"]

        def set_num_threads(count: int) -> None:
            original(count)
            try:
                if called_by_torch(sys._getframe(1)):
                    return
                if threading.current_thread() is threading.main_thread():
                    self._programs = count
                if count != applied:
                    say_programs_own(self._agent, count)
            except Exception as error:
                self._agent.fail("conditions", error)

        return set_num_threads

    def _keep_to_one(self, set_num_threads: Callable[[int], None]) -> None:
        """What a program with one thread has forked has one too: OpenMP would wait forever for the threads that its
        parent has, and has for our sake only."""
        if self._programs == 1:
            set_num_threads(1)
            if self._agent.worker == NO_WORKER:  # torch gives one to those of loaders
                why = "it has one thread, as the program has without: OpenMP would wait there for those of its parent"
                self._agent.note_missing(FORKED_WITH_ONE, why)

    def _already_set(self, original: Callable[[int], None]) -> Callable[[int], None]:
        """Torch allows one call in a process and raises at the second: the program's must not fail because of ours."""

        def set_num_interop_threads(count: int) -> None:
            self._agent.note_missing(
                f"the program's own set_num_interop_threads({int(count)})",
                "the condition of this run had set it already",
            )

        return set_num_interop_threads

    def _torch_facts(self, torch: ModuleType) -> dict[str, object]:
        """The build, and the thread counts as they are now: the program may set its own."""
        return {
            "version": torch.__version__,
            "cuda": torch.version.cuda,
            "openmp": _openmp(),
            "intra_op": torch.get_num_threads() if self._counts is None else self._counts.told,
            "inter_op": torch.get_num_interop_threads(),
            "on_gpu": torch.cuda.is_initialized(),
        }


@functools.cache
def _openmp() -> str:
    """The OpenMP runtime that is loaded into this process, by the name of its library."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        text = maps.read()
    for name in ("libgomp", "libiomp5", "libomp"):
        if f"/{name}" in text:
            return name
    return ""
