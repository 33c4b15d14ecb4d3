"""Teams: torch shares the work of an operator among threads in the program; in a worker of a loader one thread has it
all."""

from tracekit.run.manifest import Manifest
from tracekit.run.reader import Run

# Operators are looked at in so many windows of the profiler: `--profile full` has four a second.
_MOST_WINDOWS = 64


def crowded_team(manifest: Manifest, ranks: int) -> int:
    """How many threads share an operator, where those of so many ranks leave no CPU to what sends the gradients, and so
    wait for each other; 0 where they do, or there is one of them, whose CPU time is told apart."""
    threads = manifest.torch.intra_op if manifest.torch is not None else 0
    return threads if threads > 1 and manifest.cpu.usable / ranks < threads + 1 else 0


def share_of_operators(run: Run, process: int, loader: str) -> float:
    """Of the time on the CPU in which a process made a loader's batches itself, the part that torch's outermost
    operators took.

    They are seen in profiler windows alone. Where no batch was made in one, all of it may have been theirs: 1.
    """
    rows = run.sql(
        # A window opens and closes between two batches: those that it touches are in it.
        "WITH opened AS ("
        '  SELECT thread, "window", min(start_ns) AS first_ns, max(start_ns + duration_ns) AS last_ns'
        "  FROM operators WHERE process = $1 AND category = 'cpu_op'"
        '  GROUP BY thread, "window" ORDER BY first_ns LIMIT $2'
        "), own AS ("
        "  SELECT fetches.thread, fetches.start_ns AS made_ns, fetches.start_ns + fetches.duration_ns AS end_ns, cpu_ns"
        "  FROM fetches ASOF JOIN batches ON fetches.process = batches.process AND fetches.thread = batches.thread"
        "   AND fetches.start_ns >= batches.start_ns"
        "  WHERE fetches.process = $1 AND batches.loader = $3"
        "), made AS ("
        "  SELECT own.* FROM own ASOF JOIN opened ON own.thread = opened.thread AND made_ns < last_ns"
        "  WHERE end_ns > first_ns"
        "), called AS ("
        "  SELECT made_ns, operators.start_ns AS begin_ns, duration_ns, max(operators.start_ns + duration_ns) OVER ("
        "    PARTITION BY made.thread, made_ns ORDER BY operators.start_ns, duration_ns DESC"
        "    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS until_ns"
        "  FROM operators ASOF JOIN made ON operators.thread = made.thread AND operators.start_ns >= made_ns"
        "  WHERE process = $1 AND category = 'cpu_op' AND operators.start_ns < end_ns"
        ") "
        "SELECT (SELECT sum(cpu_ns) FROM made) AS making,"
        " (SELECT sum(duration_ns) FROM called WHERE until_ns IS NULL OR until_ns <= begin_ns) AS operating",
        [process, _MOST_WINDOWS, loader],
    )
    making, operating = (float(rows[name].fillna(0).iloc[0]) for name in ("making", "operating"))
    return min(operating / making, 1.0) if making > 0 else 1.0
