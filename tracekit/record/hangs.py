"""Ranks that wait, while the program runs, in communication to which others do not come: it is told while it lasts.

Each supervisor sees the ranks of its own host. Where one of them waits it writes into its manifest what each came to
last, and whoever reads the manifests of the run finds the ranks of all hosts together.
"""

from collections.abc import Callable
from pathlib import Path

from tracekit.record.flush import Flusher
from tracekit.record.spools import LOST, Spool, SpoolFolder
from tracekit.record.wire import IN_IT, LEFT, UNKNOWN
from tracekit.run.manifest import LONG_WAIT_S, CameTo, Manifest

# Ranks wait for each other in every step, and for minutes where one of them saves what was learnt. What somebody may
# ask for is written early; to the user, on the stderr of the program, it is worth a line when it takes twice as long as
# whatever has ended before. Backends give up after 10 or 30 minutes.
TOLD_AFTER_S = 60.0
_S = 1e9

Tell = Callable[[Path, str], bool]  # of a run the host that has something to tell; whether that is told now


class Hangs:
    """Looks at what the ranks of this host came to last, each time that their records are moved to the run."""

    def __init__(self, run: Path, manifest: Manifest, flusher: Flusher, spools: SpoolFolder, tell: Tell | None) -> None:
        self._run, self._manifest, self._processes, self._spools = run, manifest, flusher.processes, spools
        self._tell = tell
        self._inside: dict[str, tuple[bytes, float]] = {}  # by stem: the record of what a rank waits in, for how long
        self._written: set[bytes] = set()
        self._told: set[bytes] = set()
        self._longest_ended = self._longest_written = self._not_before = 0.0

    def look(self, now: int) -> None:
        """`now`: CLOCK_MONOTONIC ns. Raises OSError when the disk does not take it."""
        came = self._came_to(now)
        ended = (waited for stem, (record, waited) in self._inside.items() if stem in came and came[stem][0] != record)
        self._longest_ended = max(self._longest_ended, *ended, 0.0)
        self._inside = {stem: (record, each.waits_s) for stem, (record, each) in came.items() if each.waits_s >= 0}
        longest = max((waited for _, waited in self._inside.values()), default=0.0)
        due = max(TOLD_AFTER_S, 2 * self._longest_ended, self._not_before)
        records = {record for record, _ in self._inside.values()}
        untold = {record for record, waited in self._inside.values() if waited >= due} - self._told
        if longest < LONG_WAIT_S:
            self.forget()
        elif untold or records != self._written or longest >= 2 * self._longest_written:
            self._write([each for _, each in came.values()])
            self._written, self._longest_written = records, longest
        if untold and self._tell is not None:
            is_told = self._tell(self._run, self._manifest.host)
            self._told |= untold if is_told else set()
            self._not_before = 0.0 if is_told else 2 * longest

    def forget(self) -> None:
        """Nobody waits, as far as we know."""
        if self._manifest.hanging:
            self._write([])
        self._written, self._longest_written = set(), 0.0

    def _write(self, came: list[CameTo]) -> None:
        self._manifest.hanging = came
        self._manifest.save(self._manifest.path_in(self._run))

    def _came_to(self, now: int) -> dict[str, tuple[bytes, CameTo]]:
        """What each living rank came to last, by stem, with the record that says so."""
        found = {}
        for spool in self._spools.that_communicate():
            process = self._processes.of(spool)
            if process.ended is None and len(entered := spool.entered()) and entered["b"][0] >= 0:
                rank, attempt, world = self._processes.rank_of(process)
                is_in_it = entered["direction"][0] == IN_IT
                found[spool.stem] = entered.tobytes(), CameTo(
                    rank, attempt, world, _word(spool, int(entered["name"][0])),
                    _word(spool, int(entered["a"][0]) & UNKNOWN), int(entered["b"][0]),
                    (now - int(entered["start"][0])) / _S if is_in_it else -1.0, bool(entered["direction"][0] == LEFT),
                )  # fmt: skip
        return found


def _word(spool: Spool, number: int) -> str:
    return spool.names[number] if 0 <= number < len(spool.names) else LOST
