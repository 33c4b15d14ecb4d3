"""Data-parallel training, recorded in some blocks of steps and not in others: two ranks, run under `tracekit record`.

As `_switchback.py` does it in one process. There are two models of the same kind: that of the blocks without a
recording was wrapped while the hooks were taken out, so its gradients go straight to the process group. In some blocks
(`held`) the model of the recorded ones trains with the hooks taken out: what is left is that torch calls a Python
object for each bucket. No two models take quite the same time, so both are made anew every few rounds. Both ranks
change at the same steps. Rank 0 prints one JSON object: per state and round the median and the mean step, and the CPU
time of one, ms.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from _switchback import STATES, TRANSITION, Recorder
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LAYERS, CALIBRATION_STEPS = 8, 50
ROUNDS_OF_A_MODEL, FIRST_STEPS = 5, 10


class RankRecorder(Recorder):
    """The hooks of tracekit in a rank."""

    def __init__(self) -> None:
        super().__init__()
        self.buckets = buckets = self._collectors["collectives"]._buckets
        self._patches += [
            (owner, name, vars(owner).get(name), original) for owner, name, original, _ in buckets._patches._undo
        ]
        reducer = (dist, "Reducer", buckets._reducer, buckets._original)
        self._patches.append(reducer)
        self._of_rank = self._agent.phases, list(self._agent.after_backward)

    def set_rank(self, recorded: bool) -> None:
        """What is noted in a rank beside the hooks."""
        phases, acts = self._of_rank
        self._agent.phases = phases if recorded else None
        self._agent.after_backward[:] = acts if recorded else []


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--step", type=float, default=10.0, help="ms; the batch is made as large as that takes here")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--block", type=float, default=0.15, help="seconds")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    recorder = RankRecorder()

    def training() -> Callable[[int], float]:
        """A step of a new model, by the size of the batch: how long it took, s."""
        torch.manual_seed(0)
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

        return step

    recorder.set_rank(False)
    with recorder.taken_out():
        plain = training()
        size = 64
        for _ in range(4):
            took = 1e3 * statistics.median(plain(size) for _ in range(CALIBRATION_STEPS))
            size = max(round(size * options.step / took), 1)
            agreed = torch.tensor(size)
            dist.broadcast(agreed, 0)
            size = int(agreed)
    steps = max(round(options.block * 1e3 / options.step), 5)
    order = random.Random(0)
    seen: dict[str, list[dict[str, float]]] = {state: [] for state in [*STATES, "held"]}

    def block(step: Callable[[int], float]) -> dict[str, float]:
        for _ in range(TRANSITION):
            step(size)
        cpu = time.process_time()
        times = [step(size) for _ in range(steps)]
        cpu = time.process_time() - cpu
        mean, median = statistics.fmean(times), statistics.median(times)
        return {"median_ms": 1e3 * median, "mean_ms": 1e3 * mean, "cpu_ms": 1e3 * cpu / steps}

    for number in range(options.rounds):
        if number % ROUNDS_OF_A_MODEL == 0:
            recorder.set_rank(True)
            recorded = training()
            for _ in range(FIRST_STEPS):
                recorded(size)
            recorder.set_rank(False)
            with recorder.taken_out():
                plain = training()
                for _ in range(FIRST_STEPS):
                    plain(size)
        for state in order.sample(list(seen), len(seen)):
            if state == "on":
                recorder.set_rank(True)
                seen[state].append(block(recorded))
                recorder.set_rank(False)
                continue
            recorder.buckets._is_off = True
            with recorder.taken_out():
                seen[state].append(block(recorded if state == "held" else plain))
            recorder.buckets._is_off = False
    if dist.get_rank() == 0:
        print(json.dumps({"estimate": recorder.estimate(), "seen": seen, "size": size}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
