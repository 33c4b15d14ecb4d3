"""The end of a recording, in order or by salvage: last flush, compaction, manifest, spool folder removed."""

import os
import shutil
import subprocess
import time
from pathlib import Path

from tracekit.record.flush import Flusher
from tracekit.record.launch import words_to_run
from tracekit.record.spools import SpoolFolder
from tracekit.run.manifest import Manifest


def finish(run: Path, manifest: Manifest, flusher: Flusher, spools: SpoolFolder) -> None:
    """Complete the run directory. Raises OSError when the disk does not take it; the spool folder then stays."""
    flusher.finish(time.perf_counter_ns())
    if not any("torch" in spool.status().get("facts", {}) for spool in spools.spools.values()):
        manifest.add_missing("steps, layers, operators, batches, collectives", _why_nothing(spools))
    manifest.save(manifest.path_in(run))  # what follows may take longer than a batch system grants
    compacted = subprocess.run(
        [*words_to_run("tracekit.record.compact"), str(run), manifest.host, str(spools.folder)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        cwd=_somewhere(run),
    )  # fmt: skip
    if compacted.returncode:
        last = compacted.stderr.decode(errors="replace").strip().splitlines()[-1:]
        manifest.add_missing(
            "the compaction of the tables", f"it failed, the parts are as they were ({''.join(last)})", lost=True
        )
    manifest.spool = None
    manifest.hanging = []
    manifest.ended_ns = time.time_ns()
    manifest.save(manifest.path_in(run))
    shutil.rmtree(spools.folder, ignore_errors=True)


def _somewhere(run: Path) -> str:
    """Where to work: here, or in the run where the program has removed the folder, in which DuckDB would abort."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return str(run)


def _why_nothing(spools: SpoolFolder) -> str:
    if not spools.spools:
        return "no Python process announced itself (not a Python program, python -I/-E/-S, or a scrubbed environment)"
    return "the program never imported torch"
