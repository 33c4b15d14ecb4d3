"""Ranks that wait, while the program runs, in communication to which others do not come: it is told while it lasts.

Each supervisor sees the ranks of its own host. Where one of them waits, all of a job write what theirs came to last
into the run that they share, and there who reads it finds them together.
"""

import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tracekit.record.flush import Flusher
from tracekit.record.spools import SpoolFolder
from tracekit.record.wire import IN_IT, LONG_IN_IT_S
from tracekit.run.manifest import Manifest
from tracekit.run.parts import host_of, live_parts

# Ranks wait for minutes where one of them saves what was learnt: to the user, on the stderr of the program, it is worth
# a line when it takes twice as long as whatever has ended before. Backends give up after 10 or 30 minutes. By then all
# supervisors of the job have written what theirs came to.
TOLD_AFTER_S = 60.0
_NS = 1_000_000_000

Tell = Callable[[Path, str], None]  # the run, and the host that has something to tell


class Hangs:
    """Looks at what the ranks of this host came to last, each time that their records are moved to the run."""

    def __init__(self, run: Path, manifest: Manifest, flusher: Flusher, spools: SpoolFolder, tell: Tell | None) -> None:
        self._run, self._manifest, self._flusher, self._spools, self._tell = run, manifest, flusher, spools, tell
        self._inside: dict[str, tuple[bytes, int]] = {}  # by stem: the record of what it is in, and for how long [ns]
        self._told: set[bytes] = set()
        self._longest_ended = 0
        self._written: set[bytes] | None = None  # what ranks were in, when what they came to was written last
        self._longest_written = 0

    def look(self, now: int) -> None:
        """`now`: CLOCK_MONOTONIC ns. Raises OSError when the disk does not take it."""
        before, self._inside = self._inside, self._waiting(now)
        ended = [waited for stem, (record, waited) in before.items() if self._inside.get(stem, (b"",))[0] != record]
        self._longest_ended = max([self._longest_ended, *ended])
        still = {record for stem, (record, _) in self._inside.items() if before.get(stem, (b"",))[0] == record}
        longest = max((waited for _, waited in self._inside.values()), default=0)
        is_due = longest >= max(TOLD_AFTER_S * _NS, 2 * self._longest_ended) and not still <= self._told
        if longest >= LONG_IN_IT_S * _NS or self._others_wait():
            # What is written may be read for a while: not anew each time.
            if is_due or still != self._written or longest >= 2 * self._longest_written:
                self._flusher.write_reached(now)
                self._written, self._longest_written = still, longest
        elif self._written is not None:
            self._flusher.take_back_reached()
            self._written = None
        if is_due:
            self._told |= still
            if self._tell is not None:
                self._tell(self._run, self._manifest.host)

    def _waiting(self, now: int) -> dict[str, tuple[bytes, int]]:
        """The ranks that live and are in communication."""
        found = {}
        for spool in self._spools.that_communicate():
            entered = spool.entered()
            if len(entered) and entered["direction"][0] == IN_IT and self._flusher.processes.of(spool).ended is None:
                found[spool.stem] = entered.tobytes(), now - int(entered["start"][0])
        return found

    def _others_wait(self) -> bool:
        """Whether ranks on other hosts of the job wait so long that their supervisors have written it."""
        if not self._manifest.job:
            return False
        parts = [part for part in live_parts(self._run / "tables" / "reached") if host_of(part) != self._manifest.host]
        long_ago = time.time_ns() - int(LONG_IN_IT_S * _NS)
        for part in parts:
            try:
                reached = pq.read_table(part, columns=["start_ns", "is_over"])
            except (OSError, pa.ArrowException):  # it was written anew
                continue
            waits = pc.and_(pc.invert(reached["is_over"]), pc.less(reached["start_ns"], long_ago))
            if pc.any(waits).as_py():
                return True
        return False
