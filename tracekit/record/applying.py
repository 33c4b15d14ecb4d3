"""Running a command with settings and without a recording: `tracekit apply`."""

import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tracekit.errors import TracekitError
from tracekit.record import signals
from tracekit.record.launch import find_program, injection_problem, program_environment, spawn
from tracekit.record.machine import cpus_for, refuse_elsewhere
from tracekit.record.spools import SpoolFolder, settings_taken
from tracekit.record.supervisor import Options, write_session
from tracekit.settings.inside import is_of_threads, never_taken


def run_with(command: list[str], settings: dict[str, Any]) -> tuple[int, list[str]]:
    """Run the command with the settings in force; its exit code, and what was not applied, in lines.

    Raises LaunchError when it cannot be started, TracekitError when the settings are for another machine or there is no
    place for what its processes have to be told; nothing was run then.
    """
    find_program(command)
    refuse_elsewhere(settings)
    try:
        spool = Path(tempfile.mkdtemp(prefix="tracekit-"))
        write_session(spool, "", Options(command, Path(), settings=settings, profile="off"), {})
    except OSError as error:
        raise TracekitError(
            f"{error.filename or 'temporary folder'}: {error.strerror}; settings reach the program through a file"
            " there; point TMPDIR at a folder with room"
        ) from error
    heard, witness = signals.block(), signals.Witness()
    try:
        child = spawn(command, program_environment(spool), heard, cpus_for(settings))
        code = signals.exit_code(signals.wait_for(child, heard, witness))
        try:
            return code, _not_applied(command, settings, spool)
        except Exception as error:  # the program has emptied the folder for temporary files, say
            return code, [f"what was not applied is not known: {error}"]
    except BaseException:
        witness.dismiss()
        raise
    finally:
        shutil.rmtree(spool, ignore_errors=True)


def _not_applied(command: list[str], settings: dict[str, Any], spool: Path) -> list[str]:
    folder = SpoolFolder(spool)
    folder.discover()
    notes: dict[str, str] = {}
    statuses = [process.status() for process in folder.spools.values()]
    reached = sum("torch" in status.get("facts", {}) for status in statuses)
    counts = Counter(what for status in statuses for what in status.get("missing", {}) if is_of_threads(what))
    taken: set[str] = set()
    for status in statuses:
        taken |= settings_taken(status)
        for what, why in status.get("missing", {}).items():
            some = f", in {counts[what]} of {reached} processes" if 0 < counts[what] < reached else ""
            notes[what + some] = why
        notes |= {f"settings ({name})": f"switched off: {why}" for name, why in status.get("failed", {}).items()}
    if not reached and set(settings) - {"threads.affinity"}:
        why = injection_problem(command) or "no Python process below the command imported torch"
        notes["any setting but the affinity"] = why
    if reached:
        notes |= never_taken(settings, taken)
    return [f"not applied: {what}: {why}" for what, why in notes.items()]
