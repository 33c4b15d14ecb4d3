"""What an exploration tries: the grid of thread counts for this machine and this command."""

import math
import secrets
from typing import Any

from tracekit.errors import TracekitError

# The share of the run that exploring may take; recording every layer in every step of a block is part of it.
EXPLORING_OVERHEAD = 0.2
# What blocks may add to the run, of which up to 20 % is promised; the rest is for what is noticed too late.
_MAY_ADD = 0.09


def thread_grid(budget: int, physical_cores: int) -> list[int]:
    """1, 2, 4, …, the physical cores, and all CPUs that the job may keep busy.

    Raises TracekitError where there is nothing to choose from.
    """
    if budget < 2:
        raise TracekitError("there is only one CPU to run on: no thread count to choose; see tracekit doctor")
    powers = [1 << power for power in range(budget.bit_length()) if 1 << power <= budget]
    return sorted({*powers, min(physical_cores or budget, budget), budget})


def fixed(count: int) -> dict[str, Any]:
    """The condition of one thread count for everything."""
    return {"name": f"threads.intra_op={count}", "settings": {"threads.intra_op": count}}


def exploration(counts: list[int]) -> dict[str, Any]:
    """What the explorer inside the program is told, to measure every layer at every count."""
    return switchback([fixed(count) for count in counts]) | {"in_detail": True, "may_add": _MAY_ADD}


def switchback(conditions: list[dict[str, Any]]) -> dict[str, Any]:
    """The same without a look at the layers and without a limit on what slow conditions cost: to compare conditions."""
    return {"conditions": conditions, "seed": secrets.randbits(32), "in_detail": False, "may_add": math.inf}
