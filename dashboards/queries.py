"""What pages ask of a run beyond the analyses: counters over time, gradient buckets, and what processes are called."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.analysis.clocks import Clock
from tracekit.analysis.meetings import Meetings
from tracekit.run.counter_names import Counter, describe
from tracekit.run.reader import Run

MACHINE = -1  # the `process` of counters that belong to the machine or the job

_NO_BUCKETS = pd.DataFrame(columns=["lane", "bucket", "bytes", "ready_ns", "back_ns", "unsure_ns"], dtype=np.int64)

Numbers = npt.NDArray[np.float64]


def counter_names(run: Run) -> pd.DataFrame:
    """The counters of a run: counter, sources (which rungs of the ladder, in words), processes (how many have it)."""
    return run.sql(
        "SELECT counter, string_agg(DISTINCT source, ', ' ORDER BY source) AS sources,"
        " count(DISTINCT process) AS processes FROM counters GROUP BY counter ORDER BY counter"
    )


def counter_series(
    run: Run, counter: str, processes: Sequence[int], begin: int, end: int, bins: int
) -> dict[int, tuple[Numbers, Numbers]]:
    """A counter over [begin, end) in ns, by process (and MACHINE): the middles of the bins (ns, Unix time) and a value
    each.

    The value of a level is its mean in the bin; of an increase, its rate per ns, all threads of the process together.
    Bins without a reading are NaN: not known is not zero.
    """
    rows = run.sql(
        "SELECT process, start_ns, duration_ns, value FROM counters"
        " WHERE counter = ? AND list_contains(?, process) AND duration_ns > 0"
        " AND start_ns < ? AND start_ns + duration_ns > ?",
        [counter, [*processes, MACHINE], end, begin],
    )
    edges = np.linspace(0, end - begin, bins + 1)
    level = described(counter).level
    found = {}
    for process, mine in rows.groupby("process"):
        start = (mine["start_ns"].to_numpy(np.int64) - begin).astype(np.float64)
        duration = mine["duration_ns"].to_numpy(np.float64)
        value = mine["value"].to_numpy(np.float64)
        covered = _integral(start, duration, np.ones(len(mine)), edges)
        total = _integral(start, duration, value if level else value / duration, edges)
        # Threads of one process overlap: their rates add up. A level has one reader per process.
        weight = covered if level else np.where(covered > 0, edges[1] - edges[0], 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = np.where(weight > 0, total / weight, np.nan)
        found[int(str(process))] = ((edges[:-1] + edges[1:]) / 2 + begin, mean)
    return found


def _integral(start: Numbers, duration: Numbers, height: Numbers, edges: Numbers) -> Numbers:
    """The area under the sum of boxes between neighbouring edges: slopes of the integral change where boxes begin and
    end."""
    times = np.concatenate([start, start + duration])
    order = np.argsort(times, kind="stable")
    times, slope = times[order], np.cumsum(np.concatenate([height, -height])[order])
    area = np.concatenate([[0.0], np.cumsum(slope[:-1] * np.diff(times))])
    return np.diff(np.interp(edges, times, area))


def buckets_between(run: Run, meetings: Meetings, clocks: Sequence[Clock], begin: int, end: int) -> pd.DataFrame:
    """The gradient buckets of a group's ranks that are under way in [begin, end), Unix time in ns by the clock of the
    first rank's host, as `aligned` has it: lane (the place of the rank), bucket, bytes, ready_ns, back_ns and
    unsure_ns, by which it may have been back earlier."""
    ahead = {clock.host: clock for clock in clocks}
    lanes = [_NO_BUCKETS]
    for lane, (process, host) in enumerate(zip(meetings.processes, meetings.hosts, strict=True)):
        clock = ahead.get(host)
        shift = round(clock.offset_ns) if clock else 0
        own = begin + (int(clock.ahead(np.array([begin + shift]))[0]) if clock else 0)
        rows = run.sql(
            f"SELECT {lane} AS lane, bucket, bytes, ready_ns, start_ns + duration_ns AS back_ns, unsure_ns"
            ' FROM collectives WHERE process = $1 AND "group" = $2 AND bucket >= 0 AND unsure_ns >= 0'
            " AND ready_ns < $4 AND start_ns + duration_ns > $3 ORDER BY ready_ns",
            [process, meetings.group, own, own + end - begin],
        )
        rows[["ready_ns", "back_ns"]] -= own - begin
        lanes.append(rows)
    return pd.concat(lanes, ignore_index=True)


def described(name: str) -> Counter:
    """What a counter is; of one that this tracekit does not know, its name and no more."""
    try:
        return describe(name)
    except KeyError:
        return Counter(name, "process", "count", "")


def process_labels(processes: pd.DataFrame) -> dict[int, str]:
    """What each process is called: its role, with the host where there are several."""
    several = processes["host"].nunique() > 1
    return {
        int(row.process): f"{row.role or 'process'}{f' on {row.host}' if several else ''} · pid {row.pid}"
        for row in processes.itertuples()
    }
