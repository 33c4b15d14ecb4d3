"""Salvage: completing a run whose supervisor was killed, from the spool folder it left."""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tracekit.record.finish import finish
from tracekit.record.flush import Flusher
from tracekit.record.spools import SpoolFolder
from tracekit.run.folder import SESSION_FILE, is_being_recorded, still_records
from tracekit.run.manifest import LAST_SECONDS, Manifest


def salvage(run: Path) -> list[str]:
    """Bring what a killed supervisor left in its spool into the run. Returns what was done, a line each.

    Does nothing for runs that ended in order, are being recorded, or of which that cannot be told from here, as on
    another host. Where the program outlived its supervisor and still runs, the run is brought up to date and left open.
    """
    if is_being_recorded(run):
        return [f"{run.name} is being recorded right now: what follows is what it holds so far"]
    done = []
    for path in sorted((run / "manifest").glob("*.json")):
        manifest = Manifest.load(path)
        if manifest.ended_ns is None and still_records(manifest) is False:
            done += _salvage_host(run, manifest)
    return done


def _salvage_host(run: Path, manifest: Manifest) -> list[str]:
    folder = Path(manifest.spool or "")
    if manifest.spool and os.path.lexists(folder) and not _is_its_own(folder, manifest.run):
        return [f"{run.name}: its supervisor was killed; {folder} is not what it left, or another user's: left alone"]
    if not manifest.spool or not folder.is_dir():
        manifest.add_missing(LAST_SECONDS, "the supervisor was killed and its spool folder is gone", lost=True)
        manifest.ended_ns = manifest.path_in(run).stat().st_mtime_ns
        manifest.save(manifest.path_in(run))
        return []
    with _alone(folder):
        if not folder.is_dir():  # another command was quicker
            return []
        spools = SpoolFolder(folder)
        flusher = Flusher(run, manifest, spools, None)
        now = time.perf_counter_ns()
        while flusher.flush(now):
            pass
        if flusher.processes.living():
            flusher.tell(now)
            return [f"{run.name}: its supervisor was killed, but the program still runs; so far it did this"]
        if manifest.exit_code is None:  # else it was killed as it put the tables in order
            manifest.add_missing("counters after the last part, exit status", "the supervisor was killed", lost=True)
        finish(run, manifest, flusher, spools)
    return [f"{run.name}: its supervisor was killed; salvaged what it had left in {folder}"]


def _is_its_own(folder: Path, run: str) -> bool:
    """Whether a folder is the spool of this run, and of this user: a manifest may come from anybody, and name any."""
    try:
        is_ours = os.stat(folder, follow_symlinks=False).st_uid == os.geteuid()
        return is_ours and json.loads((folder / SESSION_FILE).read_bytes())["run"] == run
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return False


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other command salvages from the folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
