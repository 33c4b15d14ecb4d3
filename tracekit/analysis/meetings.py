"""Meetings: where the ranks of a group wait for each other, and what each did on its way there.

A rank enters a meeting when it begins a collective that it waits for, or has sent the last bucket of a backward pass,
and leaves when that is done. Nobody leaves before the last one has entered: so what each waited is told by when that
one came, and the rest is transfer.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracekit.analysis.loop import WAITED_FOR
from tracekit.run.reader import Run

Floats = NDArray[np.float64]
Times = NDArray[np.int64]

PHASES = ["loading", "forward", "backward", "optimizer", "communication", "other"]
_UNKNOWN, _KEPT = len(PHASES), len(PHASES) + 1

# The ranks of a run. `launch`: a program may start all of them again, as other processes.
RANKS = """
    SELECT process, rank, coalesce(attempt, 0) AS attempt, coalesce(host, '') AS host,
           dense_rank() OVER (PARTITION BY rank, coalesce(attempt, 0) ORDER BY process) - 1 AS launch
    FROM (SELECT DISTINCT process, rank, attempt, host FROM processes WHERE rank >= 0)
"""
# From these nobody goes before all have come; a broadcast's root does, say.
_OF_ALL = """('bucket', '_all_gather_base', '_reduce_scatter_base', 'all_gather', 'all_gather_coalesced',
    'all_gather_into_tensor', 'all_gather_object', 'all_gather_single', 'all_reduce', 'all_reduce_coalesced',
    'all_to_all', 'all_to_all_single', 'barrier', 'monitored_barrier', 'reduce_scatter', 'reduce_scatter_single',
    'reduce_scatter_tensor')"""
_ENTERED = f"""
    SELECT met.process, "group", sequence, met.start_ns AS entered_ns, met.start_ns + met.duration_ns AS left_ns,
           who.rank, who.attempt, who.launch, who.host
    FROM ({WAITED_FOR}) AS met JOIN ({RANKS}) AS who ON who.process = met.process
    WHERE sequence >= 0 AND coalesce(unsure_ns, 0) >= 0 AND op IN {_OF_ALL}
"""


@dataclass(frozen=True)
class Meetings:
    """The meetings of one group in one attempt of the job: `ranks` (N), their `hosts` (N), and by rank and meeting
    (N, K) when it `entered` and `left`, Unix time in ns. `own`, (N, K, phase), ns: what the rank took from leaving the
    one before to entering it, in the order of `PHASES`, less the time for which it was kept from its CPU, `kept`
    (N, K); of it, (N, K, phase), it was `blocked` and did not compute, as where it sleeps or waits for storage. NaN
    where that was not followed, as before the first meeting."""

    group: str
    attempt: int
    ranks: list[int]
    hosts: list[str]
    entered: Times
    left: Times
    own: Floats
    blocked: Floats
    kept: Floats

    @property
    def last(self) -> NDArray[np.intp]:
        """Who came last, by meeting: the place of the rank in `ranks`."""
        return self.entered.argmax(axis=0)

    @property
    def followed(self) -> NDArray[np.bool_]:
        """Of which meetings it is known of all ranks what they did on their way (K)."""
        return np.asarray(~np.isnan(self.own).any(axis=(0, 2)))

    @property
    def waited(self) -> Times:
        """For how long each rank waited for the last one (N, K), ns."""
        return self.entered.max(axis=0) - self.entered

    @property
    def transfer(self) -> Times:
        """What went by from when the last one came until each left (N, K), ns."""
        return np.maximum(self.left - self.entered.max(axis=0), 0)


def find_meetings(run: Run) -> Iterator[Meetings]:
    """The meetings of every group of at least two ranks, those that met most often first. Meetings that a rank of the
    group has no record of are left out."""
    met = run.sql(_ENTERED)
    if met.empty:
        return
    paths = {int(process): _Path.of(run, int(process)) for process in met["process"].unique()}
    groups = sorted(met.groupby(["attempt", "launch", "group"]), key=lambda each: -len(each[1]))
    for (attempt, _, group), rows in groups:
        found = _meetings(str(group), int(attempt), rows, paths)
        if found is not None:
            yield found


def _meetings(group: str, attempt: int, rows: pd.DataFrame, paths: dict[int, "_Path"]) -> Meetings | None:
    processes = rows.drop_duplicates("process").sort_values("rank")
    if len(processes) < 2:
        return None
    rows = rows.drop_duplicates(["process", "sequence"])
    entered = rows.pivot(index="sequence", columns="process", values="entered_ns")[processes["process"]].dropna()
    left = rows.pivot(index="sequence", columns="process", values="left_ns")[processes["process"]].loc[entered.index]
    if entered.empty:
        return None
    came, went = entered.to_numpy(np.int64).T, left.to_numpy(np.int64).T
    own, blocked = np.full((2, *came.shape, len(PHASES)), np.nan)
    kept = np.full(came.shape, np.nan)
    for at, process in enumerate(processes["process"]):
        took = paths[int(process)].between(went[at, :-1], came[at, 1:])
        own[at, 1:], blocked[at, 1:], kept[at, 1:] = took[:, :-1, 0], took[:, :-1, 1], took[:, -1, 0]
    ranks, hosts = [int(rank) for rank in processes["rank"]], [str(host) for host in processes["host"]]
    return Meetings(group, attempt, ranks, hosts, came, went, own, blocked, kept)


@dataclass(frozen=True)
class _Path:
    """What the loop of a rank had done by each change of phase, ns (changes, phases + 2, 2): its own time in each
    phase, and for how long it was blocked in it; then the same where the phase is not known; and for how long it had
    been kept from its CPU."""

    times: Times
    done: Floats

    @classmethod
    def of(cls, run: Run, process: int) -> "_Path":
        rows = run.sql(
            "SELECT thread, start_ns, phase, cpu_ns, delayed_ns FROM changes WHERE process = $1 ORDER BY start_ns",
            [process],
        )
        if len(rows):  # one process may have made several loops, on several threads: the busiest counts
            rows = rows[rows["thread"] == rows["thread"].mode().iloc[0]]
        places = {name: place for place, name in enumerate(PHASES)}
        phase = np.array([places.get(str(name), _UNKNOWN) for name in rows["phase"]], dtype=np.intp)[:-1]
        times, delayed, cpu = (rows[name].to_numpy(np.int64) for name in ("start_ns", "delayed_ns", "cpu_ns"))
        took = np.diff(times).astype(np.float64)
        is_known = (delayed[:-1] >= 0) & (delayed[1:] >= 0)
        kept = np.where(is_known, np.clip(np.diff(delayed), 0, took), 0.0)
        done = np.zeros((len(times), _KEPT + 1, 2))
        if len(times):
            after = np.arange(1, len(times))
            done[after, phase, 0] = took - kept
            done[after, phase, 1] = np.maximum(took - kept - np.diff(cpu), 0.0)
            done[after, _KEPT, 0] = kept
        return cls(times, done.cumsum(axis=0))

    def between(self, begins: Times, ends: Times) -> Floats:
        """What it did between pairs of moments (n, phases + 1, 2), by phase and at last what it was kept; NaN where
        some of it was not followed."""
        if len(self.times) < 2:
            return np.full((len(begins), len(PHASES) + 1, 2), np.nan)
        done = self._until(ends) - self._until(begins)
        unknown = (done[:, _UNKNOWN, 0] > 0) | (begins < self.times[0]) | (ends > self.times[-1])
        done[unknown] = np.nan
        return np.delete(done, _UNKNOWN, axis=1)

    def _until(self, moments: Times) -> Floats:
        """What it had done by each moment; within a phase it does it evenly."""
        flat = self.done.reshape(len(self.times), -1)
        columns = [np.interp(moments, self.times, flat[:, at]) for at in range(flat.shape[1])]
        return np.stack(columns, axis=1).reshape(len(moments), *self.done.shape[1:])
