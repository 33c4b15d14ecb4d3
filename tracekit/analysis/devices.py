"""What GPUs did in the profiler's windows: how much of the time one worked, and for how long what kind of copy."""

from tracekit.analysis.report_schema import DeviceUse
from tracekit.run.reader import Run

# What a GPU does itself, of all that Kineto draws in its rows.
WORK = ("kernel", "gpu_memcpy", "gpu_memset")
# What CUPTI does for the profiler alone, by the names of libkineto/src/ActivityType.h; its other overheads, the loading
# of modules above all, a program has without a profiler, too.
OF_PROFILER = ("Activity Buffer Request", "Buffer Flush", "Instrumentation", "Resource", "UVM Activity Init")
# Copies from memory that is not page-locked: the driver copies it once more itself, and the program waits.
_PAGEABLE = "Memcpy HtoD (Pageable%"


def device_use(run: Run, process: int) -> list[DeviceUse]:
    """Of each GPU that worked for `process`: the share of the windows' time in which a kernel or a copy ran there.

    Work on several streams at once counts once. Windows are as long as their events, and longer than the same steps
    without a profiler: a program that keeps a GPU busy while it is profiled does so all the more without.
    """
    rows = run.sql(
        f"""
        WITH work AS (
            SELECT coalesce(device, 0) AS device, "window", start_ns, start_ns + duration_ns AS end_ns, category
            FROM operators WHERE process = $1 AND category IN {WORK}
        ), seen AS (
            SELECT *, max(end_ns) OVER (PARTITION BY device, "window" ORDER BY start_ns, end_ns
                                        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
            FROM work
        ), whole AS (
            SELECT sum(length) AS ns FROM (
                SELECT max(start_ns + duration_ns) - min(start_ns) AS length
                FROM operators WHERE process = $1 GROUP BY "window")
        )
        SELECT device, any_value(whole.ns) AS whole_ns,
               sum(greatest(end_ns - greatest(start_ns, coalesce(before, start_ns)), 0)) AS busy_ns,
               coalesce(sum(end_ns - start_ns) FILTER (category = 'gpu_memcpy'), 0) AS copying_ns
        FROM seen, whole GROUP BY device HAVING any_value(whole.ns) > 0 ORDER BY device
        """,
        [process],
    )
    return [
        DeviceUse(int(row.device), float(row.busy_ns / row.whole_ns), float(row.copying_ns / row.whole_ns))
        for row in rows.itertuples(index=False)
    ]


def share_of_pageable(run: Run, process: int) -> float:
    """The share of a process's profiler windows that copies from memory that is not page-locked took; 0 where none was
    seen."""
    rows = run.sql(
        "SELECT sum(copying) / sum(whole) AS share FROM ("
        "  SELECT max(start_ns + duration_ns) - min(start_ns) AS whole,"
        "   coalesce(sum(duration_ns) FILTER (category = 'gpu_memcpy' AND name LIKE $2), 0) AS copying"
        '  FROM operators WHERE process = $1 GROUP BY "window"'
        ") WHERE whole > 0",
        [process, _PAGEABLE],
    )
    return min(float(rows["share"].fillna(0.0).iloc[0]), 1.0)
