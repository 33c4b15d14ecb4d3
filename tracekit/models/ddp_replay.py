"""What the backward pass of a data-parallel step takes with other gradient buckets.

The gradients come in their order while the pass computes, and are put into buckets as DistributedDataParallel puts
them; a bucket that is full is reduced beside the computing, by so many `lanes` at once, which share the network, and
share the CPUs with what computes (processor sharing). The pass is over when all that was computed is, and all buckets
are back. A bucket takes alpha, and beta for each of its bytes, on the network, and setup and gamma of a CPU. After
dPRO (Hu et al., MLSys 2022), with the CPU's part added, which is most of it where ranks share a machine.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MIB = 1 << 20
# With torch's default cap the first bucket is smaller: communication begins the earlier.
FIRST_BUCKET = MIB
DEFAULT_CAP_MB = 25.0
_EPSILON = 1e-12
_FASTEST = 1e15  # bytes/s of a network that takes no time
_ALPHA, _SETUP, _MOVING = range(3)  # the stages of a bucket


@dataclass(frozen=True)
class Gradients:
    """The gradients in the order in which they come [N]: their `sizes`, bytes, and how much of the pass was computed
    when each was there, s of a CPU for itself. All of it takes `compute`, and then `finish` when the buckets are back.
    """

    sizes: NDArray[np.int64]
    there: Floats
    compute: float
    finish: float = 0.0


@dataclass(frozen=True)
class Network:
    """A bucket takes `alpha` s, then `setup` s of a CPU, then per byte `beta` s of the network and `gamma` s of a CPU;
    `lanes` at once. Of the `cpus` that `ranks` share each computes with one."""

    alpha: float
    beta: float
    gamma: float = 0.0
    setup: float = 0.0
    lanes: int = 2
    cpus: float = 1.0
    ranks: int = 1


@dataclass(frozen=True)
class Pass:
    """When each bucket was there and when it was back [B], and when the pass was over, s from its beginning."""

    there: Floats
    back: Floats
    end: float


def buckets_of(sizes: Sequence[int], cap_bytes: float, first_bytes: float | None = None) -> NDArray[np.intp]:
    """The number of the bucket that each gradient goes into [N]: one is closed by the gradient with which it reaches
    its cap, the first at `first_bytes`."""
    numbers, number, filled = np.zeros(len(sizes), dtype=np.intp), 0, 0
    for at, size in enumerate(sizes):
        numbers[at] = number
        filled += size
        if filled >= (first_bytes if number == 0 and first_bytes is not None else cap_bytes):
            number, filled = number + 1, 0
    return numbers


def replay_pass(gradients: Gradients, buckets: NDArray[np.intp], network: Network) -> Pass:
    """Run one backward pass, on all ranks alike."""
    count = int(buckets[-1]) + 1 if len(buckets) else 0
    sizes = np.bincount(buckets, weights=gradients.sizes, minlength=count)
    closed_at = np.array([gradients.there[buckets == number].max() for number in range(count)])
    closed_at = np.minimum(closed_at, gradients.compute)
    order = np.argsort(closed_at, kind="stable")
    coming = deque((float(closed_at[at]), int(at)) for at in order)
    there, back = np.zeros(count), np.zeros(count)
    waiting: deque[int] = deque()
    under_way: dict[int, list[float]] = {}  # of each bucket what is left: alpha, s, setup, s of a CPU, then its bytes
    now, computed = 0.0, 0.0
    while coming or waiting or under_way or computed < gradients.compute - _EPSILON:
        while coming and coming[0][0] <= computed + _EPSILON:
            number = coming.popleft()[1]
            there[number] = now
            waiting.append(number)
        while waiting and len(under_way) < network.lanes:
            number = waiting.popleft()
            under_way[number] = [network.alpha, network.setup, float(sizes[number])]
        stages = {number: _stage(left) for number, left in under_way.items()}
        in_stage = list(stages.values())
        is_computing = computed < gradients.compute - _EPSILON
        speed, bytes_per_s = _rates(network, in_stage.count(_MOVING), is_computing + in_stage.count(_SETUP))
        rates = (1.0, speed, bytes_per_s)
        steps = [under_way[number][stage] / rates[stage] for number, stage in stages.items()]
        if is_computing:
            until = coming[0][0] if coming else gradients.compute
            steps.append((min(until, gradients.compute) - computed) / speed)
        step = max(min(steps), 0.0)
        now += step
        computed += step * speed if is_computing else 0.0
        for number, stage in stages.items():
            left = under_way[number]
            left[stage] -= step * rates[stage]
            if left[0] <= _EPSILON and left[1] <= _EPSILON and left[2] <= _EPSILON * max(bytes_per_s, 1.0):
                back[number] = now
                del under_way[number]
    return Pass(there, back, now + gradients.finish)


def _stage(left: list[float]) -> int:
    """What a bucket that is under way has to do next."""
    return next((stage for stage in (_ALPHA, _SETUP) if left[stage] > _EPSILON), _MOVING)


def _rates(network: Network, moving: int, computing: int) -> tuple[float, float]:
    """How fast is computed what wants a CPU for itself, s per s, and each bucket moves, bytes/s: of the CPUs everybody
    has as much as anybody, and what one does not want the others share."""
    by_network = min(1 / (network.beta * moving) if network.beta and moving else math.inf, _FASTEST)
    busy = min(1.0, network.gamma * by_network)  # of a CPU, for each bucket that moves
    own = network.cpus / network.ranks
    share = min(own / max(computing + moving, 1), busy)
    speed = min((own - moving * share) / max(computing, 1), 1.0)
    return speed, min(by_network, share / network.gamma if network.gamma else math.inf)
