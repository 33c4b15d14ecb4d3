"""Spool folders as recorded processes leave them, with segments small enough to fill, for tests of both ends."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from tracekit.collectors import spool as writing
from tracekit.record.spools import Spool, SpoolFolder

# Above any pid_max of Linux (2^22): no such process lives, so the supervisor takes these for ended ones.
NOBODY = 1 << 23


@contextmanager
def small_segments(records: int, waiting: int = 128) -> Iterator[None]:
    """Segments of so few records; a writer that nobody reads fills at most `waiting` of them."""
    with (
        patch.object(writing, "SEGMENT_RECORDS", records),
        patch.object(writing, "FIRST_RECORDS", records),
        patch.object(writing, "MAX_SEGMENTS", waiting),
        patch.object(writing, "_DROPPED_AT_ONCE", 4),
    ):
        yield


def announce(
    folder: Path,
    pid: int,
    start: int,
    parent: int = -1,
    command: list[str] | None = None,
    environment: dict[str, str] | None = None,
    status: dict[str, object] | None = None,
    names_of: list[tuple[str, int]] | None = None,
    pid_namespace: int = 0,
) -> str:
    """Leave word of a process, as the bootstrap and the agent do; returns the stem of its files."""
    stem = f"{pid}-{start:x}"
    facts = {
        "pid": pid,
        "parent": parent,
        "start": start,
        "command": command or ["python", "train.py"],
        "environment": environment or {},
        "names_of": names_of or [],
        "pid_namespace": pid_namespace,
    }
    (folder / f"{stem}.process").write_text(json.dumps(facts))
    if status is not None:
        (folder / f"{stem}.status").write_text(json.dumps(status))
    return stem


def reader(folder: Path, stem: str) -> Spool:
    """The reading end of one process's spool."""
    return next(spool for spool in SpoolFolder(folder).discover() if spool.stem == stem)
