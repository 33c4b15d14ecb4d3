"""Communication that never ended: who was in it, and who never came."""

import pandas as pd

from tracekit.run.reader import Run

_IN_IT = """
    SELECT coalesce(who.attempt, 0) AS attempt, "group", sequence, any_value(op) AS op, list(DISTINCT who.rank) AS ranks
    FROM reached JOIN processes AS who ON who.process = reached.process
    WHERE NOT is_over AND who.rank >= 0 AND sequence >= 0 GROUP BY ALL ORDER BY ALL
"""
_REACHED = """
    SELECT coalesce(who.attempt, 0) AS attempt, "group", who.rank, max(sequence) AS sequence
    FROM (
        SELECT process, "group", sequence FROM collectives UNION ALL SELECT process, "group", sequence FROM reached
    ) AS done
    JOIN processes AS who ON who.process = done.process
    WHERE who.rank >= 0 GROUP BY ALL
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
        same = reached[(reached["attempt"] == row.attempt) & (reached["group"] == row.group)]
        behind = same[same["sequence"] < row.sequence].sort_values("rank")
        missing.append([(int(each.rank), int(each.sequence)) for each in behind.itertuples()])
    return found.assign(missing=missing, ranks=[sorted(int(rank) for rank in ranks) for ranks in found["ranks"]])
