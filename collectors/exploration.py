"""Exploration: one ordinary run under several conditions in turn, in randomised blocks of steps (a switchback).

1. After some warm-up steps, the costs of changing the thread count are probed in this process, with its OpenMP runtime.
2. Each round holds every condition once, in random order; a block is a few steps long, its first step belongs to the
   change. To measure layers, every other round is in detail: all layers are recorded in every step, those inside an
   nn.LSTM too, which costs time; the rounds between are plain, and tell what whole steps take. A condition that is
   clearly worse for every layer is dropped (`race`).
3. After some rounds, the counts that were best for each layer are tried together, as one more condition of the plain
   rounds: a layer may take longer beside layers with another count than among its like.
4. Conditions that are slower than the program's own cost time: when the blocks have taken more than the allowed share
   of the run, plain steps follow until they have not.

The analysis is `tracekit.analysis.exploration`.
"""

import os
import random
import sys
import zlib
from threading import get_ident
from time import perf_counter_ns as clock
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tracekit.record.wire import BACKWARD, FORWARD, MOST_SHAPES, Kind
from tracekit.settings.inside import ENDED_EXPLORATION

from .agreement import Agreement, is_one_of_many, of_all_ranks
from .backward import Backward
from .counted_calls import Inside, key_of, shape_of
from .operators import is_watched
from .race import Race
from .spool import threads
from .steps import CALL, Steps
from .switch_costs import switch_costs
from .thread_counts import Counts, ThreadCounts

if TYPE_CHECKING:
    import torch

    from .agent import Agent

# Steps that allocate and compile; then steps that tell how long a plain one is.
_WARM_UP_STEPS = 5
_PLAIN_STEPS = 5
# A block has at least so many steps beside the first, and lasts at least so long.
_STEPS = 3
_BLOCK_NS = 30_000_000
_MOST_STEPS = 50
# Rounds in detail before a plan is put together; again after twice as many, and so on: it is known ever better.
_ROUNDS_TO_PLAN = 6
# What a count of its own costs a call is looked at so often in detail, and known by so many looks: each leaves a hook.
_CALLS_BETWEEN_EMPTY_ONES = 8
_EMPTY_CALLS = 64


class Exploration:
    """Puts the conditions of the session in force, one block after the other."""

    def __init__(self, agent: "Agent", counts: ThreadCounts) -> None:
        self._agent = agent
        self._counts = counts
        explore = agent.session["explore"]
        self._conditions = [(each["name"], Counts.of(each["settings"])) for each in explore["conditions"]]
        self._in_step = False  # ranks must change together, whatever the clock says
        self._agreement: Agreement | None = None  # with other ranks, on what is tried
        siblings = max(int(os.environ.get("LOCAL_WORLD_SIZE", "1")), 1)
        if siblings > 1:  # they have their part of the CPUs
            most = max(len(os.sched_getaffinity(0)) // siblings, 1)
            self._conditions = [each for each in self._conditions if (each[1].common or 0) <= most]
        self._seed = explore["seed"]
        self._random = random.Random(self._seed)
        self._in_detail: bool = explore["in_detail"]
        self._may_add: float = explore["may_add"]
        self._backward: Backward | None = None
        self._shapes: dict[int, set[tuple[Any, ...]]] = {}
        self._is_off = False
        self._programs_count: int | None = None  # that it has set itself, before its loop
        self._grid = len(self._conditions)  # behind these come plans
        self._plans_made = 0
        self._start_anew()

    def _start_anew(self) -> None:
        self._steps = 0
        self._aside = 0  # calls on other threads than the first
        self._plain: list[int] = []
        self._last = 0
        self._queue: list[int] = []
        self._round = -1
        self._block: int | None = None  # the condition in force
        self._left = 0
        self._block_times: list[int] = []  # of the steps of the block
        self._number = 0
        self._tried: set[int] = set()
        self._calls_seen = 0
        self._call_ns: dict[int, list[int]] = {FORWARD: [], BACKWARD: []}  # what a count of its own costs a call
        self._running: list[int] = []  # the conditions that are still tried, and among them
        self._own = 0  # the one that is the program's own
        self._race: Race | None = None
        self._plan_due = _ROUNDS_TO_PLAN
        self._plans: list[Counts] = []
        del self._conditions[self._grid :]
        self._agent.tally = None
        self._counts.observe = None
        self._began = self._extra = 0
        self._loop_began = 0

    def install(self) -> None:
        self._agent.on_step.append(self._step_ended)
        self._agent.before_exit.append(self._end)
        self._agent.after_fork.append(self.off)  # children load data; one that trains would find torch set up already
        self._agent.runs_inner_layers = self._in_detail
        self._counts.on_programs_own = self._programs_own
        self._counts.is_exploring = True

    def off(self) -> None:
        self._is_off = True
        self._block = None
        self._agent.tally = None
        self._counts.observe = None

    # What is run, in the steps of a block.

    def _see(self, module: "torch.nn.Module", name: str, args: tuple[Any, ...]) -> Inside | None:
        number = self._agent.naming.number(name)
        seen = self._shapes.setdefault(number, set())
        key = key_of(args)
        if key not in seen and len(seen) < MOST_SHAPES:
            seen.add(key)
            now = clock()
            word = self._agent.spool.intern(f"{name} = {shape_of(args)}")
            self._agent.spool.write(Kind.SHAPE, word, now, now, number)
        if self._race is not None and self._counts.common != self._other:
            if self._calls_seen < _EMPTY_CALLS * _CALLS_BETWEEN_EMPTY_ONES:
                if self._calls_seen % _CALLS_BETWEEN_EMPTY_ONES == 0:
                    self._time_empty_call()
                self._calls_seen += 1
        return _Timed(self._agent, self._backward, name)

    def _time_empty_call(self) -> None:
        """Here the caches are as the program leaves them between its layers."""
        for direction, call in self._empty_call.items():
            began = clock()
            call()
            self._call_ns[direction].append(clock() - began)

    # The schedule.

    def _step_ended(self) -> None:
        if self._is_off:
            return
        # Calls on another thread may be seen before the loop is: its count would be left as a block had it.
        if self._agent.step_source_rank == CALL and get_ident() != threads.first_ident:
            self._aside += 1
            return
        try:
            if self._agent.governor.steps < self._steps:  # better evidence of steps was met: those so far were none
                self._counts.put_in_force(Counts())
                self._start_anew()
            self._go_on()
        except Exception as error:
            self._stop("it failed", f"{type(error).__name__}: {error}")

    def _go_on(self) -> None:
        now = clock()
        step_ns, self._last = now - self._last, now
        self._steps += 1
        if self._steps <= _WARM_UP_STEPS + _PLAIN_STEPS:
            self._agent.governor.detailed = self._in_detail and self._steps < _WARM_UP_STEPS
            if self._steps <= _WARM_UP_STEPS and self._agreement is None:
                self._offer()
            if self._steps > _WARM_UP_STEPS:
                self._plain.append(step_ns)
            if self._steps == _WARM_UP_STEPS + _PLAIN_STEPS:
                self._begin()
            return
        if self._block is None:
            self._plain.append(step_ns)
            del self._plain[:-64]
        else:
            self._block_times.append(step_ns)
        self._left -= 1
        if self._left <= 0:
            if self._block is not None:
                self._close(now)
            self._next()
        self._agent.governor.detailed = self._counts.observe is not None

    def _offer(self) -> None:
        """Tell other ranks, once it has met them, what this one is to try: their nodes may have other CPUs, and
        supervisors of their own. When it begins, some steps on, all have."""
        self._agreement, own = of_all_ranks("threads"), self._counts.common
        tried = {name: counts.common or own for name, counts in self._conditions}
        more = [own] if self._in_detail and own not in tried.values() else []
        if self._agreement is not None:
            self._agreement.offer(0, zlib.crc32(repr((self._seed, [*tried], more)).encode()))

    def _begin(self) -> None:
        import torch

        if is_watched(torch) or torch.autograd._profiler_enabled():
            self._stop("the program traces, counts or profiles its operations", "none of ours may run among them")
            return
        self._in_step = is_one_of_many()
        if self._agreement is not None and not self._agreement.is_reached():
            self._stop(
                "the ranks would not change together",
                "they have other CPUs or thread counts, or are not at the same step; or their nodes were recorded"
                " without a --job that they share",
            )
            return
        steps = self._agent.collectors.get("steps")
        self._backward = steps.backward if isinstance(steps, Steps) else None
        own = self._counts.common
        if self._in_detail and all((counts.common or own) != own for _, counts in self._conditions):
            self._conditions.append((f"threads.intra_op={own}", Counts(own)))
            self._grid += 1
        self._running = list(range(len(self._conditions)))
        alike = (at for at, (_, counts) in enumerate(self._conditions) if (counts.common or own) == own)
        self._own = next(alike, self._own)  # a switchback need not have it, and drops none
        self._write(f"current {own}", 0)
        if self._programs_count is not None:
            self._write(f"set {self._programs_count}", 0)
        self._probe(torch)
        if self._in_detail and not self._in_step:
            self._race = Race()
            self._agent.tally = self._race.add
        self._loop_began = self._last = clock()
        self._next()
        self._agent.governor.detailed = self._counts.observe is not None

    def _next(self) -> None:
        """Begin the next block, or plain steps where the blocks have taken more than their share."""
        if compiles():
            self._stop(
                "the program uses torch.compile",
                "it takes the thread count when it compiles; compare fresh processes: tracekit study threads",
            )
            return
        elapsed = clock() - self._loop_began
        step = max(_median(self._plain), 1)
        if not self._in_step and self._extra > self._may_add * elapsed:
            self._counts.observe = None
            self._counts.put_in_force(Counts())
            self._block = None
            self._left = max(1, min(round((self._extra / self._may_add - elapsed) / step), _MOST_STEPS))
            return
        if not self._queue:
            if self._agreement is not None and not self._agreement.is_reached():
                self._stop("another rank has stopped", "ranks change their counts together, or not at all")
                return
            self._round += 1
            if self._race is not None:
                began = clock()
                self._choose(self._race)
                self._extra += clock() - began
            tried = [each for each in self._running if each < self._grid or not self._is_detailed()]
            self._queue = self._random.sample(tried, len(tried))
        self._block = self._queue.pop(0)
        steps = _STEPS if self._in_step else max(_STEPS, min(-(-_BLOCK_NS // step), _MOST_STEPS))
        self._left = steps + 1
        self._block_times.clear()
        self._counts.observe = self._see if self._is_detailed() else None
        self._counts.put_in_force(self._conditions[self._block][1])
        if self._race is not None:
            self._race.begin()
        self._began = clock()

    def _is_detailed(self) -> bool:
        """Whether this round is."""
        return self._in_detail and self._round % 2 == 0

    def _choose(self, race: Race) -> None:
        """Before a round: drop what was beaten in those in detail, and see what to try together in plain ones."""
        if self._is_detailed():
            beaten = race.beaten(self._round // 2, self._own)
            self._running = [each for each in self._running if each not in beaten]
        elif (self._round + 1) // 2 >= self._plan_due:
            self._try_together(race)

    def _try_together(self, race: Race) -> None:
        """Put the counts that are best for each layer together to a plan, and that among the conditions.

        Not with ranks: each would find a plan of its own, and wait for the others in theirs.
        """
        self._plan_due *= 2
        common, layers = race.best_for_each({direction: _median(times) for direction, times in self._call_ns.items()})
        names = {number: name for name, number in self._agent.naming.numbers.items()}
        forward, backward = (
            {names[layer]: self._count(best) for (layer, way), best in layers.items() if way == direction}
            for direction in (FORWARD, BACKWARD)
        )
        plan = Counts(self._count(common), forward, backward)
        if (self._plans and plan == self._plans[-1]) or not plan.is_by_layer():
            return
        number, self._plans_made = self._plans_made, self._plans_made + 1
        self._plans.append(plan)
        self._say(plan, number)
        self._conditions.append((f"plan {number}", plan))
        self._running = [*(each for each in self._running if each < self._grid), len(self._conditions) - 1]

    def _count(self, condition: int) -> int:
        return self._conditions[condition][1].common or self._counts.common

    def _say(self, plan: Counts, number: int) -> None:
        now, spool, numbers = clock(), self._agent.spool, self._agent.naming.numbers
        spool.write(Kind.PLANNED, spool.intern(""), now, now, -1, plan.common or 0, number)
        for layers, direction in ((plan.forward, FORWARD), (plan.backward, BACKWARD)):
            for name, count in layers.items():
                spool.write(
                    Kind.PLANNED, spool.intern(name), now, now, numbers[name], count, number, direction=direction
                )

    def _close(self, now: int) -> None:
        assert self._block is not None
        is_first, self._number = self._block not in self._tried, self._number + 1
        self._tried.add(self._block)
        name = self._agent.spool.intern(self._conditions[self._block][0])
        kind = Kind.PLAIN_BLOCK if self._in_detail and not self._is_detailed() else Kind.BLOCK
        self._agent.spool.write(kind, name, self._began, now, self._number - 1, self._round, 1, int(is_first))
        if self._race is not None and self._is_detailed():
            self._race.close(self._block, self._round // 2, now - self._began)
        # What came between two of its steps once, a validation, a checkpoint or a stop, is not the condition's doing.
        self._extra += round(len(self._block_times) * (_usual(self._block_times) - _usual(self._plain)))

    def _end(self) -> None:
        if self._round < 1 and not self._is_off:
            why = f"the program's {self._steps} steps are too few for two rounds of {len(self._conditions)} blocks"
            if self._aside > self._steps:
                why = "modules were called on other threads than the first: tracekit.step() tells of their steps"
            self._agent.note_missing("an exploration of thread counts", why)

    def _stop(self, what: str, why: str) -> None:
        self.off()
        self._counts.withdraw()
        if self._agreement is not None:
            self._agreement.withdraw()
        self._agent.note_missing(f"{ENDED_EXPLORATION}: {what}", why)

    def _programs_own(self, count: int) -> None:
        """The program sets its count: before the loop that is the count to compare with, later it is left alone."""
        if self._steps > _WARM_UP_STEPS + _PLAIN_STEPS and not self._is_off:
            self._stop("the program sets its own thread counts as it runs", f"torch.set_num_threads({int(count)})")
        self._programs_count = int(count)

    # The costs of changing the count.

    def _probe(self, torch: ModuleType) -> None:
        counts = sorted({each.common for _, each in self._conditions if each.common} | {self._counts.common})
        for name, cost_ns in switch_costs(self._counts, counts, torch):
            self._write(name, cost_ns)
        self._counts.set(self._counts.common)
        self._other = counts[0] if self._counts.common != counts[0] else counts[-1]
        self._empty_call = self._counts.empty_call(self._other, torch)

    def _write(self, name: str, cost_ns: int) -> None:
        now = clock()
        self._agent.spool.write(Kind.PROBE, self._agent.spool.intern(name), now, now + cost_ns)


class _Timed(Inside):
    """Records the layers inside one call of an RNN."""

    def __init__(self, agent: "Agent", backward: Backward | None, name: str) -> None:
        self._agent = agent
        self._backward = backward
        self._name = name
        self._start = 0
        self._follow: Any = None

    def before(self, layer: int, input: "torch.Tensor") -> None:
        self._follow = self._backward.enter((input,)) if self._backward is not None else None
        self._start = clock()

    def after(self, layer: int, output: "torch.Tensor") -> None:
        end = clock()
        agent, name = self._agent, f"{self._name}.layer{layer}"
        number, word, depth = agent.naming.number(name), agent.spool.intern(name), threads.current().depth
        agent.spool.write(Kind.LAYER, word, self._start, end, number, 0, 0, 0, depth, FORWARD)
        if agent.tally is not None:
            agent.tally(number, FORWARD, depth, end - self._start)
        if self._follow is not None:
            self._follow.leave(output, word, number, depth)


def compiles() -> bool:
    """Whether torch.compile has compiled anything in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and bool(utils.counters["frames"].get("total"))


def _usual(times: list[int]) -> float:
    """The mean of steps less the longest of every 16, in whose place the median stands."""
    ordered = sorted(times)
    rare = -(-len(ordered) // 16)
    return (sum(ordered[:-rare]) + rare * _median(ordered)) / len(ordered) if ordered else 0.0


def _median(values: list[int]) -> int:
    return sorted(values)[len(values) // 2] if values else 0
