"""Samples: which of a data set take longest, of those whose making was looked at."""

import pandas as pd

from tracekit.run.reader import Run


def slowest_samples(run: Run, most: int) -> pd.DataFrame:
    """The samples that take longest, by their index in the data set: `index`, `times` looked at, and the medians
    `wall_ns`, `cpu_ns`, `waited_ns` (for storage, locks or a CPU). Data sets of several loaders are not told apart."""
    return run.sql(
        'SELECT "index", count(*) AS times, median(duration_ns) AS wall_ns, median(cpu_ns) AS cpu_ns, '
        "median(greatest(duration_ns - cpu_ns, 0)) AS waited_ns "
        'FROM samples WHERE "index" >= 0 GROUP BY "index" ORDER BY wall_ns DESC, "index" LIMIT ?',
        [most],
    )
