"""The training of `_lstm_training.py`, recorded in some blocks of steps and not in others: run under `tracekit record`.

Whole processes differ from each other by more than recording costs, so the hooks are taken out of a living process and
put back: `off` and `again` have torch as it was installed, `on` has the hooks, `profiler`, in some of the rounds, has
torch.profiler on every step instead. They come in random order, round after round. Blocks are short: a machine that is
shared changes its speed from second to second. The supervisor goes on beside all of them; stopped and woken for each
block it would catch up in those that are recorded. Prints one JSON object: per state and round the median and the mean
step, and what tracekit itself estimates that it cost.
"""

import argparse
import contextlib
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.optim.optimizer as optimizers
from _lstm_training import LanguageModel, profile_every_step
from torch import nn

STATES = ["off", "again", "on"]
# Steps at the beginning of a block that belong to the change: hooks that come back find nothing in the caches.
TRANSITION = 3
CALIBRATION_LENGTH = 12
# torch.profiler takes long to start and to stop, and its cost is seen with few blocks.
ROUNDS_PER_PROFILER = 10


class Recorder:
    """The hooks of tracekit in this process, which is recorded."""

    def __init__(self) -> None:
        from tracekit.collectors import agent

        assert agent._agent is not None, "run this under tracekit record"
        self._agent = agent._agent
        self._collectors: dict[str, Any] = dict(self._agent.collectors)  # their privates are looked at below
        self._patches = [
            (owner, name, original)
            for collector in self._collectors.values()
            if hasattr(collector, "_patches")
            for owner, name, original, _ in collector._patches._undo
        ]
        self._hooks: list[dict[int, Any]] = [
            optimizers._global_optimizer_pre_hooks,
            optimizers._global_optimizer_post_hooks,
        ]
        self._held = [dict(hooks) for hooks in self._hooks]
        agent_class = type(self._agent)
        self._of_forks = [getattr(agent_class, name) for name in ("_prepare_fork", "_continue_in_child")]
        self._codes = [function.__code__ for function in self._of_forks]

    @staticmethod
    def is_here() -> bool:
        """Whether this process is recorded."""
        return "tracekit.collectors.agent" in sys.modules

    def is_busy(self) -> bool:
        """Whether a profiler window of tracekit is open: the next block must wait for its end."""
        return self._collectors["operators"]._window is not None

    @contextlib.contextmanager
    def taken_out(self) -> Iterator[None]:
        """No hook in torch, nothing in what is forked, and for tracekit's accounts no time."""
        began = time.perf_counter_ns()
        theirs = [vars(owner).get(name) for owner, name, _ in self._patches]  # some go in and out by themselves
        for owner, name, original in self._patches:
            setattr(owner, name, original)
        for hooks in self._hooks:
            hooks.clear()
        for function, code in zip(self._of_forks, (_nothing, _no_notes), strict=True):
            function.__code__ = code.__code__
        try:
            yield
        finally:
            for function, code in zip(self._of_forks, self._codes, strict=True):
                function.__code__ = code
            for (owner, name, _), value in zip(self._patches, theirs, strict=True):
                setattr(owner, name, value)
            for hooks, held in zip(self._hooks, self._held, strict=True):
                hooks.update(held)
            self.was_away(time.perf_counter_ns() - began)

    def was_away(self, ns: int) -> None:
        """For so long nothing was recorded: that time earns nothing to spend on what is recorded."""
        self._agent.governor.started += ns
        self._agent.governor._began += ns
        self._agent._status_written += ns
        if "loading" in self._collectors:
            fetching = self._collectors["loading"]._fetching
            for allowance in (fetching._rows, fetching._looks, fetching._looks_of_workers):
                allowance._began += ns
                allowance.next += ns

    def estimate(self) -> float:
        """The share of the recorded time that tracekit lays to its own hooks."""
        return float(self._agent.governor.overhead()["program"])


def _nothing(agent: Any) -> None:
    """In the place of what is done when a process forks."""


def _no_notes(agent: Any) -> None:
    """In a forked child, which would write what its parent has noted."""
    agent.spool.forget_notes()


def block(step: Callable[[], None], seconds: float, unfinished: Callable[[], bool] = lambda: False) -> dict[str, float]:
    """Steps for some seconds: their median and their mean, ms."""
    for _ in range(TRANSITION):
        step()
    times: list[float] = []
    began = time.perf_counter()
    while time.perf_counter() - began < seconds or unfinished():
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return {"median_ms": 1e3 * statistics.median(times), "mean_ms": 1e3 * statistics.fmean(times)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--words", type=int, default=500)
    parser.add_argument("--step", type=float, default=2.0, help="ms; the sequences are made as long as that takes here")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--block", type=float, default=0.1, help="seconds")
    parser.add_argument("--warm-up", type=float, default=5.0, help="seconds of recorded steps before the first round")
    options = parser.parse_args()

    torch.manual_seed(0)
    model = LanguageModel(options.words, options.width)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    words = torch.randint(0, options.words, (CALIBRATION_LENGTH + 1, options.batch))

    def step() -> None:
        loss = criterion(model(words[:-1]).flatten(0, 1), words[1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def profiled() -> dict[str, float]:
        with profile_every_step() as profiler:

            def profiled_step() -> None:
                step()
                profiler.step()

            return block(profiled_step, options.block)

    recorder = Recorder()
    with recorder.taken_out():
        took = block(step, 1.0)["median_ms"]
    length = max(round(CALIBRATION_LENGTH * options.step / took), 1)
    words = torch.randint(0, options.words, (length + 1, options.batch))
    seen: dict[str, list[dict[str, float]]] = {state: [] for state in [*STATES, "profiler"]}
    order = random.Random(os.getpid())
    block(step, options.warm_up, recorder.is_busy)
    for number in range(options.rounds):
        for state in order.sample(STATES, len(STATES)):
            if state == "on":
                seen[state].append(block(step, options.block, recorder.is_busy))
            else:
                with recorder.taken_out():
                    seen[state].append(block(step, options.block))
        if number % ROUNDS_PER_PROFILER == 0:
            with recorder.taken_out():
                seen["profiler"].append(profiled())
    print(json.dumps({"estimate": recorder.estimate(), "rounds_per_profiler": ROUNDS_PER_PROFILER, "seen": seen}))


if __name__ == "__main__":
    main()
