"""Copies to a GPU from memory that is not page-locked: the driver copies it once more itself, and the program waits."""

from tracekit.run.reader import Run

# As Kineto names them.
_PAGEABLE = "Memcpy HtoD (Pageable%"


def share_of_pageable(run: Run, process: int) -> float:
    """The share of a process's profiler windows that such copies took; 0 where none was seen."""
    rows = run.sql(
        "SELECT sum(copying) / sum(whole) AS share FROM ("
        "  SELECT max(start_ns + duration_ns) - min(start_ns) AS whole,"
        "   coalesce(sum(duration_ns) FILTER (category = 'gpu_memcpy' AND name LIKE $2), 0) AS copying"
        '  FROM operators WHERE process = $1 GROUP BY "window"'
        ") WHERE whole > 0",
        [process, _PAGEABLE],
    )
    return min(float(rows["share"].fillna(0.0).iloc[0]), 1.0)
