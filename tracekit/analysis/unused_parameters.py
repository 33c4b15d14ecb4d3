"""Unused parameters: whether DistributedDataParallel, which looked for them in each backward pass, has found any."""

from collections.abc import Sequence
from dataclasses import dataclass

from tracekit.analysis.gradient_passes import PASSES
from tracekit.analysis.people import Person, world_of
from tracekit.record.wire import ALL_USED, SOME_UNUSED, USED
from tracekit.run.reader import Run


@dataclass(frozen=True)
class UnusedParameters:
    """Of so many backward passes of `ranks` of the `world`, `with_some` had parameters that the rank did not use. Torch
    looks at what was used in the pass that communicates or in one before, where gradients were added up in them:
    `behind_others` passes came behind such, and one alone may have left some unused."""

    world: int
    ranks: int
    passes: int
    with_some: int
    behind_others: int = 0


# A rank without inputs sends to the looks of others (Join), and waits for them; it looks at nothing.
_LOOKS = "SELECT process, op, ready_ns FROM collectives WHERE op IN ($1, $2, $3) AND is_async AND process IN ({ranks})"
# Each pass that communicates has a look.
_BEHIND_OTHERS = f"""
    WITH passes AS ({PASSES}), looked AS (
        SELECT DISTINCT met.process, number FROM ({_LOOKS}) AS met ASOF JOIN passes
        ON passes.process = met.process AND met.ready_ns >= passes.start_ns
        WHERE met.ready_ns < passes.start_ns + duration_ns
    )
    SELECT count(*) FILTER (has_look AND NOT before) AS behind FROM (
        SELECT has_look, lag(has_look) OVER (PARTITION BY process ORDER BY number) AS before FROM (
            SELECT passes.process, passes.number, looked.process IS NOT NULL AS has_look FROM passes LEFT JOIN looked
            ON looked.process = passes.process AND looked.number = passes.number
        )
    )
"""


def unused_parameters(run: Run, job: Sequence[Person]) -> UnusedParameters | None:
    """Of the ranks of a job. None where nobody looked for them, or what was found of some pass is not known, as on
    devices."""
    ranks = ", ".join(str(who.process) for who in job)
    if not ranks:
        return None
    rows = run.sql(
        "SELECT count(DISTINCT process) AS ranks, count(*) AS passes, count(*) FILTER (op = $1) AS some,"
        f" count(*) FILTER (op = $2) AS unknown FROM ({_LOOKS.format(ranks=ranks)})",
        [SOME_UNUSED, USED, ALL_USED],
    ).iloc[0]
    if not rows["passes"] or rows["unknown"]:
        return None
    behind = run.sql(_BEHIND_OTHERS.format(ranks=ranks), [SOME_UNUSED, USED, ALL_USED])["behind"].iloc[0]
    return UnusedParameters(world_of(job), int(rows["ranks"]), int(rows["passes"]), int(rows["some"]), int(behind))
