"""What an exploration tries: the grid of thread counts for this machine and this command, or of gradient buckets."""

import math
import secrets
import zlib
from typing import Any

from tracekit.errors import TracekitError

# The share of the run that exploring may take; recording every layer in every step of a block is part of it.
EXPLORING_OVERHEAD = 0.2
# What blocks may add to the run, of which up to 20 % is promised; the rest is for what is noticed too late.
_MAY_ADD = 0.09
BUCKET_CAP = "ddp.bucket_cap_mb"
CAPS_MB = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 25.0, 50.0, 100.0, 200.0, 400.0)


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


def exploration(counts: list[int], job: str = "") -> dict[str, Any]:
    """What the explorer inside the program is told, to measure every layer at every count. All supervisors of a job
    tell theirs the same order: ranks must change together."""
    found = switchback([fixed(count) for count in counts]) | {"in_detail": True, "may_add": _MAY_ADD}
    return found | ({"seed": zlib.crc32(job.encode("utf-8", "replace"))} if job else {})


def switchback(conditions: list[dict[str, Any]]) -> dict[str, Any]:
    """The same without a look at the layers and without a limit on what slow conditions cost: to compare conditions."""
    return {"conditions": conditions, "seed": secrets.randbits(32), "in_detail": False, "may_add": math.inf}


def bucket_exploration() -> dict[str, Any]:
    """What is told the explorer of gradient buckets inside the program."""
    caps = [{"name": bucket_condition(cap), "settings": {BUCKET_CAP: cap}} for cap in CAPS_MB]
    return {"conditions": caps, "seed": secrets.randbits(32)}


def bucket_condition(*caps_mb: float) -> str:
    """The name of a cap, or of a list of them, one for each bucket."""
    return f"{BUCKET_CAP}={','.join(f'{each:g}' for each in caps_mb)}"


def explores_buckets(explore: dict[str, Any] | None) -> bool:
    """Whether an exploration is one of gradient buckets."""
    return explore is not None and any(BUCKET_CAP in each["settings"] for each in explore["conditions"])
