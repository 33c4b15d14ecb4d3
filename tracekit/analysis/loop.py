"""What the main loop of each process did: the rows recorded whatever the detail, the evidence of steps and phases."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracekit.analysis.intervals import Intervals, Times, join, union
from tracekit.run.reader import Run


class What(IntEnum):
    """The kinds of evidence."""

    MARK = 0  # an explicit tracekit.step()
    OPTIMIZER = 1
    BACKWARD = 2
    CALL = 3  # an outermost module call
    BATCH = 4  # the wait for a batch
    COLLECTIVE = 5  # communication that is waited for
    CALLS_SEEN = 6  # from here on module calls are recorded (`which` 1) or left out (0)
    FOLLOWED = 7  # from here on the steps of a rank, with its communication, are followed (`which` 1) or left out (0)


@dataclass(frozen=True)
class Rows:
    """Evidence of one process, sorted by start and, among equal starts, the longest first.

    `which` tells optimizers, called modules and loaders apart; on backward passes it is 1 where gradients were only
    returned (torch.autograd.grad).
    """

    what: NDArray[np.int8]
    thread: Times
    which: Times
    starts: Times
    ends: Times

    def __len__(self) -> int:
        return len(self.starts)

    def where(self, keep: NDArray[np.bool_]) -> "Rows":
        return Rows(self.what[keep], self.thread[keep], self.which[keep], self.starts[keep], self.ends[keep])

    def of(self, what: What) -> "Rows":
        return self.where(self.what == what)

    def on(self, thread: int) -> "Rows":
        return self.where(self.thread == thread)

    def outermost(self) -> "Rows":
        """Those not inside another one of these rows."""
        if not len(self):
            return self
        reached = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(self.ends)[:-1]))
        return self.where(self.ends > reached)


# Communication that the loop waits for: calls that return when it is done, and of the buckets of a backward pass the
# last one, after which that pass only waits for them. Of several models in one pass each has a last one, and the pass
# goes on after all but one of these.
WAITED_FOR = """
    SELECT * EXCLUDE (following, ready_then) FROM (
        SELECT *, lead(bucket) OVER sent AS following, lead(ready_ns) OVER sent AS ready_then FROM collectives
        WHERE coalesce(bucket, -1) >= 0 WINDOW sent AS (PARTITION BY process ORDER BY ready_ns, start_ns)
    ) WHERE following IS NULL OR (following = 0 AND ready_then >= start_ns + duration_ns)
    UNION ALL
    SELECT * FROM collectives WHERE NOT coalesce(is_async, false) AND coalesce(bucket, -1) < 0
"""

# Numbers only: names of a hundred million rows are never turned into Python strings.
_EVIDENCE = f"""
    SELECT process, thread, start_ns, start_ns + duration_ns AS end_ns, coalesce(layer, -1) AS which,
           CASE WHEN kind = 'step' THEN {What.MARK:d} WHEN kind = 'layer' THEN {What.CALL:d}
                WHEN name = 'optimizer' THEN {What.OPTIMIZER:d} WHEN name = 'calls' THEN {What.CALLS_SEEN:d}
                ELSE {What.BACKWARD:d} END AS what
    FROM spans
    WHERE (kind = 'layer' AND depth = 0 AND direction = 'forward') OR kind = 'step'
          OR (kind = 'phase' AND name IN ('optimizer', 'backward', 'calls'))
    UNION ALL
    SELECT process, thread, start_ns, start_ns + duration_ns, (hash(loader) >> 1)::BIGINT, {What.BATCH:d} FROM batches
    UNION ALL
    SELECT process, thread, start_ns, start_ns + duration_ns, -1, {What.COLLECTIVE:d}
    FROM ({WAITED_FOR})
    UNION ALL
    SELECT process, thread, start_ns, start_ns, (phase <> '')::BIGINT, {What.FOLLOWED:d} FROM (
        SELECT *, lag(phase) OVER (PARTITION BY process, thread ORDER BY start_ns) AS before FROM changes
        WHERE process IN (SELECT process FROM changes WHERE phase = '')
    ) WHERE phase = '' OR before = ''
"""
# What it is read from.
EVIDENCE_TABLES = "spans", "batches", "collectives", "changes"


def loop_evidence(run: Run) -> dict[int, Rows]:
    """The evidence of every process that may run a main loop, by process; loader workers do not."""
    table = run.arrow(f"SELECT * FROM ({_EVIDENCE}) ORDER BY process, start_ns, end_ns DESC")
    columns = {name: table[name].to_numpy() for name in table.column_names}
    workers = _loader_workers(run)
    evidence = {}
    processes, first = np.unique(columns["process"], return_index=True)
    for process, begin, end in zip(processes, first, np.append(first, len(table))[1:], strict=True):
        if int(process) not in workers:
            part = {name: column[begin:end] for name, column in columns.items()}
            evidence[int(process)] = Rows(
                part["what"].astype(np.int8), part["thread"], part["which"], part["start_ns"], part["end_ns"]
            )
    return evidence


def without_phases(rows: Rows) -> Intervals:
    """When a process ran without all that tells its phases being recorded, given all its evidence."""
    return join(_left_out(rows.of(What.CALLS_SEEN)), _left_out(rows.of(What.FOLLOWED)))


def _left_out(marks: Rows) -> Intervals:
    left_out = marks.which == 0
    ends = np.append(marks.starts[1:], np.iinfo(np.int64).max) if len(marks) else marks.starts
    return union(marks.starts[left_out], ends[left_out])


def _loader_workers(run: Run) -> set[int]:
    table = run.sql("SELECT process FROM processes WHERE role LIKE 'loader worker%'")
    return {int(process) for process in table["process"]}


def root_names(run: Run) -> pd.DataFrame:
    """The outermost modules: `process`, `which` (their number), `name` without the count that tells namesakes apart."""
    return run.sql(
        "SELECT DISTINCT process, coalesce(layer, -1) AS which, regexp_replace(name, '#[0-9]+$', '') AS name "
        "FROM spans WHERE kind = 'layer' AND depth = 0 AND direction = 'forward'"
    )
