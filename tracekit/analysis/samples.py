"""Samples: which of a data set take longest, and which files, of the batches whose making was looked at."""

import pandas as pd

from tracekit.run.reader import Run

# With the first sample that a process makes it does more: it imports, opens files, connects.
_SAMPLES = "(SELECT * FROM samples QUALIFY row_number() OVER (PARTITION BY process ORDER BY start_ns) > 1)"


def slowest_samples(run: Run, most: int) -> pd.DataFrame:
    """The samples that take longest, by their index in the data set: `index`, `times` looked at, and the medians
    `wall_ns`, `cpu_ns`, `waited_ns` (for storage, locks or a CPU). The first one of each process is left out. Data sets
    of several loaders are not told apart."""
    return run.sql(
        'SELECT "index", count(*) AS times, median(duration_ns) AS wall_ns, median(cpu_ns) AS cpu_ns, '
        "median(greatest(duration_ns - cpu_ns, 0)) AS waited_ns "
        f'FROM {_SAMPLES} WHERE "index" >= 0 GROUP BY "index" ORDER BY wall_ns DESC, "index" LIMIT ?',
        [most],
    )


def slowest_files(run: Run, most: int) -> pd.DataFrame:
    """The files and objects that take longest to read for one batch: `path`, `times` that a batch read it, and of each
    such time, on average, `reads`, `bytes`, `wall_ns` and `cpu_ns`."""
    return run.sql(
        "SELECT path, count(*) AS times, avg(reads) AS reads, avg(bytes) AS bytes, avg(wall_ns) AS wall_ns, "
        "avg(cpu_ns) AS cpu_ns FROM ("
        "  SELECT path, count(*) AS reads, sum(reads.bytes) AS bytes, sum(reads.duration_ns) AS wall_ns, "
        "  sum(reads.cpu_ns) AS cpu_ns FROM reads ASOF JOIN fetches "
        "  ON reads.process = fetches.process AND reads.start_ns >= fetches.start_ns "
        "  WHERE path != '' GROUP BY path, fetches.process, fetches.start_ns"
        ") GROUP BY path ORDER BY wall_ns DESC, path LIMIT ?",
        [most],
    )


def share_of_slowest(run: Run, share: float) -> tuple[int, float]:
    """How many samples were looked at, and which part of their time the slowest took: this share of them. (0, 0) where
    that is not even one."""
    rows = run.sql(
        "SELECT count(*) AS looked_at, coalesce(sum(duration_ns), 0) AS whole, "
        "coalesce(sum(duration_ns) FILTER (place <= round(? * total)), 0) AS slowest FROM ("
        "  SELECT duration_ns, row_number() OVER (ORDER BY duration_ns DESC) AS place, count(*) OVER () AS total"
        f"  FROM {_SAMPLES})",
        [share],
    ).iloc[0]
    seen = rows["slowest"] > 0
    return (int(rows["looked_at"]), float(rows["slowest"] / rows["whole"])) if seen else (0, 0.0)
