"""What `record` says while ranks hang."""

from pathlib import Path

from tracekit.cli.saying import say


class Hung:
    """Says of each communication once that ranks wait in it for others. Of a job on several hosts the supervisor says
    it that has the lowest rank of those that wait."""

    def __init__(self) -> None:
        self._said: set[tuple[str, int, int]] = set()

    def __call__(self, path: Path, host: str) -> None:
        from tracekit.analysis.findings import title_of_never_ended
        from tracekit.analysis.ranks import unfinished
        from tracekit.record.wire import LONG_IN_IT_S
        from tracekit.run.reader import Run

        run = Run(path)
        # Before what was recorded of all ranks is looked through.
        waiting = run.sql(
            "SELECT host FROM reached JOIN processes ON processes.process = reached.process WHERE NOT is_over"
            " AND rank >= 0 AND processes.start_ns + processes.duration_ns - reached.start_ns >= 1e9 * ?"
            " ORDER BY attempt DESC, rank LIMIT 1",
            [LONG_IN_IT_S],
        )
        if waiting.empty or waiting["host"].item() != host:
            return
        for each in unfinished(run):
            key = each.group, each.attempt, each.sequence
            if key not in self._said:
                self._said.add(key)
                say(title_of_never_ended(each))
