"""Data-parallel training, recorded in some blocks of steps and not in others: two ranks, run under `tracekit record`.

As `_switchback.py` does it in one process, with one model: while its hooks are taken out, its reducer has the process
group of the program, as it has in steps that are not followed. First as many steps go by as are followed whatever it
costs. Both ranks change at the same steps. Rank 0 prints one JSON object: per state and round the median and the mean
step, and the CPU time of one, ms.
"""

import argparse
import json
import random
import statistics
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from _switchback import STATES, TRANSITION, Recorder
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tracekit.collectors.groups import WORLD

LAYERS, CALIBRATION_STEPS = 8, 50
FIRST_STEPS = 300


class RankRecorder(Recorder):
    """The hooks of tracekit in a rank."""

    def __init__(self) -> None:
        super().__init__()
        collectives = self._collectors["collectives"]
        self._groups, self._buckets = collectives._groups, collectives._buckets
        self._patches += [(owner, name, original) for owner, name, original, _ in self._buckets._patches._undo]
        self._phases, self._acts = self._agent.phases, self._agent.after_backward

    def set_rank(self, recorded: bool) -> None:
        """What is noted in a rank beside the hooks."""
        if recorded:
            self._groups.begun(WORLD)  # what went by unrecorded is no gap in what is seen
        elif self._agent.phases is not None:
            self._groups.begin_apart(WORLD)
        for reducer in self._buckets._reducers:
            reducer._tracekit_give(ours=recorded and self._buckets._past is None)
        self._agent.phases = self._phases if recorded else None
        self._agent.after_backward = self._acts if recorded else []


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--step", type=float, default=10.0, help="ms; the batch is made as large as that takes here")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--block", type=float, default=0.15, help="seconds")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    recorder = RankRecorder()
    layers = [nn.Linear(options.width, options.width) for _ in range(LAYERS)]
    shared = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.2)
    optimizer = torch.optim.SGD(shared.parameters(), lr=0.01)

    def step(size: int) -> float:
        began = time.perf_counter()
        loss = shared(torch.ones(size, options.width)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return time.perf_counter() - began

    recorder.set_rank(False)
    with recorder.taken_out():
        size = 64
        for _ in range(4):
            took = 1e3 * statistics.median(step(size) for _ in range(CALIBRATION_STEPS))
            size = max(round(size * options.step / took), 1)
            agreed = torch.tensor(size)
            dist.broadcast(agreed, 0)
            size = int(agreed)
    steps = max(round(options.block * 1e3 / options.step), 5)
    order = random.Random(0)
    seen: dict[str, list[dict[str, float]]] = {state: [] for state in STATES}

    def block() -> dict[str, float]:
        for _ in range(TRANSITION):
            step(size)
        cpu = time.process_time()
        times = [step(size) for _ in range(steps)]
        cpu = time.process_time() - cpu
        mean, median = statistics.fmean(times), statistics.median(times)
        return {"median_ms": 1e3 * median, "mean_ms": 1e3 * mean, "cpu_ms": 1e3 * cpu / steps}

    recorder.set_rank(True)
    for _ in range(FIRST_STEPS):
        step(size)
    recorder.set_rank(False)
    for _ in range(options.rounds):
        for state in order.sample(STATES, len(STATES)):
            recorder.set_rank(state == "on")
            with nullcontext() if state == "on" else recorder.taken_out():
                seen[state].append(block())
            recorder.set_rank(False)
    if dist.get_rank() == 0:
        print(json.dumps({"estimate": recorder.estimate(), "seen": seen, "size": size}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
