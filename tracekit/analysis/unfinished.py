"""Communication that never ended: who was in it, and who never came."""

import pandas as pd

from tracekit.record.wire import PASSED
from tracekit.run.reader import Run

# The ranks of a run. `launch`: a program may start all of them again, as other processes.
_RANKS = """
    SELECT process, rank, coalesce(attempt, 0) AS attempt, coalesce(host, '') AS host,
           dense_rank() OVER (PARTITION BY rank, coalesce(attempt, 0) ORDER BY process) - 1 AS launch
    FROM (SELECT DISTINCT process, rank, attempt, host FROM processes WHERE rank >= 0)
"""
_IN_IT = f"""
    SELECT attempt, launch, "group", sequence, min(op) AS op, list(DISTINCT who.rank) AS ranks
    FROM reached JOIN ({_RANKS}) AS who ON who.process = reached.process
    WHERE NOT is_over AND sequence >= 0 GROUP BY attempt, launch, "group", sequence
    -- Who was in buckets that went past us, and came to less than others, was about to come to the next one.
    QUALIFY min(op) <> '{PASSED}' OR sequence = max(sequence) OVER (PARTITION BY attempt, launch, "group")
    ORDER BY ALL
"""
_REACHED = f"""
    SELECT attempt, launch, "group", who.rank, max(sequence) AS sequence
    FROM (
        SELECT process, "group", sequence FROM collectives
        UNION ALL SELECT process, "group", sequence FROM reached
        UNION ALL SELECT process, 'world', -1 FROM processes WHERE rank >= 0
    ) AS done
    JOIN ({_RANKS}) AS who ON who.process = done.process GROUP BY ALL
"""


def never_ended(run: Run) -> pd.DataFrame:
    """What ranks were in when they came to their end: `attempt`, `group`, `sequence`, `op`, the `ranks` in it, and
    those of the group that never came, `missing`: a list of (rank, the number of what it came to last)."""
    found = run.sql(_IN_IT)
    if found.empty:
        return found.assign(missing=[])
    reached = run.sql(_REACHED)
    missing = []
    for row in found.itertuples():
        same = reached[(reached[["attempt", "launch", "group"]] == [row.attempt, row.launch, row.group]).all(axis=1)]
        behind = same[same["sequence"] < row.sequence].sort_values("rank")
        missing.append([(int(each.rank), int(each.sequence)) for each in behind.itertuples()])
    return found.assign(missing=missing, ranks=[sorted(int(rank) for rank in ranks) for ranks in found["ranks"]])
