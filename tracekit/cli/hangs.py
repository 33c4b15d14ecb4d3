"""What `record` says while ranks hang."""

from pathlib import Path

from tracekit.cli.saying import say, would_wait


class Hung:
    """Says of each communication once that ranks wait in it for others. Of a job on several hosts the supervisor says
    it that has the lowest rank of those that wait."""

    def __init__(self) -> None:
        self._said: set[tuple[str, int, int]] = set()

    def __call__(self, path: Path, host: str) -> bool:
        from tracekit.analysis.findings import title_of_never_ended
        from tracekit.analysis.hanging import hanging
        from tracekit.run.reader import Run

        manifests = Run(path).manifests
        own = {each.rank for manifest in manifests if manifest.host == host for each in manifest.hanging}
        found = [each for each in hanging(manifests) if each.ranks[0] in own]
        if not found or would_wait():
            return False
        for each in found:
            key = each.group, each.attempt, each.sequence
            if key not in self._said:
                self._said.add(key)
                say(title_of_never_ended(each))
        return True
