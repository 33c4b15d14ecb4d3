"""Salvage: completing a run whose supervisor was killed, from the spool folder it left."""

import os
from pathlib import Path

from tracekit.record.finish import finish
from tracekit.record.flush import Flusher
from tracekit.record.spools import SpoolFolder
from tracekit.run.folder import is_being_recorded
from tracekit.run.manifest import Manifest


def salvage(run: Path) -> list[str]:
    """Bring what a killed supervisor left in its spool into the run. Returns what was done, a line each.

    Does nothing for runs that ended in order, are being recorded, or were recorded on another host.
    """
    if is_being_recorded(run):
        return [f"{run.name} is being recorded right now: what follows is what it holds so far"]
    done = []
    for path in sorted((run / "manifest").glob("*.json")):
        manifest = Manifest.load(path)
        if manifest.ended_ns is not None or manifest.host != os.uname().nodename:
            continue
        folder = Path(manifest.spool or "")
        if not manifest.spool or not folder.is_dir():
            manifest.add_missing(
                "the last seconds", "the supervisor was killed and its spool folder is gone", lost=True
            )
            manifest.ended_ns = path.stat().st_mtime_ns
            manifest.save(manifest.path_in(run))
            continue
        spools = SpoolFolder(folder)
        manifest.add_missing("counters after the last part, exit status", "the supervisor was killed", lost=True)
        finish(run, manifest, Flusher(run, manifest, spools, None), spools)
        done.append(f"{run.name}: its supervisor was killed; salvaged what it had left in {folder}")
    return done
