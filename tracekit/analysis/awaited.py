"""What a loop waited for its loaders for: whether who made its batch, a worker or the loop itself, computed then or was
blocked, waiting for storage, say.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracekit.analysis.batches import started_workers
from tracekit.run.reader import Run

Floats = NDArray[np.float64]
Times = NDArray[np.int64]

MAKERS = ["computing", "blocked"]


@dataclass(frozen=True)
class Awaited:
    """For how long by each of the `times` (n) a loop had waited for batches while their makers did each of `MAKERS`,
    ns, as `done` (n, 2). What nobody was seen to do is none of them: handing over, and batches made unseen."""

    times: Times
    done: Floats

    @classmethod
    def of(cls, run: Run, process: int) -> "Awaited":
        """`run` is what was recorded of the process and the workers of its loaders."""
        work = run.sql("SELECT process, start_ns, duration_ns, cpu_ns, delayed_ns FROM fetches ORDER BY start_ns")
        waits = _waits(run, process) if len(work) else work
        if waits.empty:
            return cls(np.zeros(1, dtype=np.int64), np.zeros((1, len(MAKERS))))
        begun, over = (waits[name].to_numpy(np.int64) for name in ("asked_ns", "received_ns"))
        made = np.zeros((len(waits), len(MAKERS)))
        of_makers = dict(tuple(work.groupby("process")))
        for maker, mine in waits.groupby("maker"):
            if maker in of_makers:
                busy, at = _busy(of_makers[maker]), waits.index.get_indexer(mine.index)
                made[at] = done_until(*busy, over[at]) - done_until(*busy, begun[at])
        before = np.cumsum(made, axis=0) - made
        times = np.column_stack([begun, over]).ravel()
        return cls(times, np.stack([before, before + made], axis=1).reshape(-1, len(MAKERS)))

    def until(self, moments: Times) -> Floats:
        """By each moment (m, 2), as while it waits for one batch its maker does both evenly."""
        return done_until(self.times, self.done, moments)


def _waits(run: Run, process: int) -> pd.DataFrame:
    """When the loop waited for each batch (`asked_ns`, `received_ns`), and for which process, the `maker` (-1: it was
    not seen). Where it waited for several at once, as the loader of a loader does, only for the first of them."""
    waits = run.sql(
        "SELECT loader, epoch, worker, start_ns AS asked_ns, start_ns + duration_ns AS received_ns FROM batches "
        "WHERE process = ? ORDER BY asked_ns, received_ns DESC",
        [process],
    )
    if waits.empty:
        return waits
    # Workers that persist were started in an epoch before.
    started = started_workers(run, process).sort_values("first_epoch")
    makers = pd.merge_asof(
        waits.reset_index().sort_values("epoch", kind="stable"),
        started[["loader", "worker", "first_epoch", "maker"]].astype({"worker": waits["worker"].dtype}),
        left_on="epoch",
        right_on="first_epoch",
        by=["loader", "worker"],
    ).set_index("index")["maker"]
    waits["maker"] = makers.where(waits["worker"] >= 0, process).fillna(-1).astype(np.int64)
    ended = waits["received_ns"].cummax().shift(fill_value=0)
    waits["asked_ns"] = waits["asked_ns"].clip(lower=ended)
    return waits[waits["asked_ns"] < waits["received_ns"]].reset_index(drop=True)


def _busy(work: pd.DataFrame) -> tuple[Times, Floats]:
    """What a maker had done of each of `MAKERS` by so many moments, ns."""
    starts, took, cpu, delayed = (
        work[name].to_numpy(np.int64) for name in ("start_ns", "duration_ns", "cpu_ns", "delayed_ns")
    )
    computing = np.clip(cpu, 0, took)
    blocked = np.maximum(took - computing - np.maximum(delayed, 0), 0)
    done = np.column_stack([computing, blocked]).cumsum(axis=0).astype(np.float64)
    before = np.vstack([np.zeros((1, len(MAKERS))), done[:-1]])
    times = np.maximum.accumulate(np.column_stack([starts, starts + took]).ravel())
    return times, np.stack([before, done], axis=1).reshape(-1, len(MAKERS))


def done_until(times: Times, done: Floats, moments: Times) -> Floats:
    """What was done by each moment (m, ...), given what was by some times (n, ...), evenly between them. Times are Unix
    time in ns, which only their differences fit a float."""
    at, known = moments - times[0], times - times[0]
    columns = [np.interp(at, known, column) for column in done.reshape(len(times), -1).T]
    return np.stack(columns, axis=1).reshape(len(moments), *done.shape[1:])
