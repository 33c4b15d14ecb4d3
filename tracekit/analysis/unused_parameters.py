"""Unused parameters: whether DistributedDataParallel, which looked for them in each backward pass, has found any."""

from dataclasses import dataclass

from tracekit.record.wire import ALL_USED, SOME_UNUSED, USED
from tracekit.run.reader import Run


@dataclass(frozen=True)
class UnusedParameters:
    """Of so many backward passes of all ranks, `with_some` had parameters that the rank did not use."""

    ranks: int
    passes: int
    with_some: int


def unused_parameters(run: Run) -> UnusedParameters | None:
    """None where nobody looked for them, or what was found of some pass is not known, as on devices."""
    rows = run.sql(
        "SELECT count(DISTINCT process) AS ranks, count(*) AS passes, count(*) FILTER (op = $1) AS some,"
        " count(*) FILTER (op = $2) AS unknown FROM collectives WHERE op IN ($1, $2, $3)",
        [SOME_UNUSED, USED, ALL_USED],
    ).iloc[0]
    if not rows["passes"] or rows["unknown"]:
        return None
    return UnusedParameters(int(rows["ranks"]), int(rows["passes"]), int(rows["some"]))
