"""`tracekit runs`."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracekit.cli.saying import say

if TYPE_CHECKING:
    from tracekit.run.manifest import Manifest

_WHEN = "%Y-%m-%d %H:%M:%S"


@click.command()
@click.argument("directory", required=False, type=click.Path(path_type=Path))
def command(directory: Path | None) -> None:
    """List the runs and studies of DIRECTORY, the newest first (default: where runs are kept, see `tracekit config
    show`).

    Steps are known of runs that were analyzed, "-" stands for others. What cannot be read is named on stderr.
    """
    from tracekit import config
    from tracekit.analysis.words import shortened
    from tracekit.errors import RunError
    from tracekit.run.folder import list_runs, list_studies

    found = directory or Path(config.resolve()["runs"].value)
    paths, studies = list_runs(found), list_studies(found)
    if not paths and not studies:
        raise RunError(f"no run in {found}/; record one with: tracekit record -- python your_script.py")
    rows = [
        ["RUN", "WHEN (UTC)", "CONDITION", "STEPS", "ENDED", "COMPLETE", "COMMAND"],
        *map(_row, paths),
        *map(_study_row, studies),
    ]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]) - 1)]
    for *cells, last in rows:
        columns = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
        click.echo("  ".join([*columns, shortened(last, 60)]).rstrip())


def _row(path: Path) -> list[str]:
    """What the manifests and findings.json say; the tables are not opened."""
    from tracekit.analysis.words import shell_line, shortened
    from tracekit.errors import RunError
    from tracekit.run.folder import is_being_recorded
    from tracekit.run.manifest import Manifest

    name = shortened(path.name, 60)
    try:
        manifests = [Manifest.load(file) for file in sorted((path / "manifest").glob("*.json"))]
        first = min(manifests, key=lambda manifest: manifest.started_ns)
        ended = "recording" if is_being_recorded(path) else _end(first)
        complete = all(manifest.ended_ns is not None for manifest in manifests)
        complete = complete and not any(note.lost for manifest in manifests for note in manifest.missing)
    except RunError as error:
        say(str(error))
        return [name, "?", "?", "?", "?", "?", "?"]
    when = _when(first.started_ns)
    condition = shortened(first.condition, 20)
    return [name, when, condition, _steps(path), ended, "yes" if complete else "no", shell_line(first.command)]


def _when(unix_ns: int) -> str:
    try:
        return time.strftime(_WHEN, time.gmtime(unix_ns / 1e9))
    except (OverflowError, ValueError, OSError):  # a manifest may say anything
        return "?"


def _study_row(path: Path) -> list[str]:
    from tracekit.analysis.words import shell_line, shortened
    from tracekit.errors import RunError
    from tracekit.run.folder import study_written_ns
    from tracekit.study.result import Study

    name = shortened(path.name, 60)
    try:
        study = Study.load(path)
    except RunError as error:
        say(str(error))
        return [name, "?", "?", "?", "?", "?", "?"]
    when = _when(study_written_ns(path))
    return [name, when, f"study {shortened(study.study, 14)}", "-", "-", "-", shell_line(study.command)]


def _end(manifest: "Manifest") -> str:
    if manifest.exit_signal is not None:
        return f"signal {manifest.exit_signal}"
    return "?" if manifest.exit_code is None else f"code {manifest.exit_code}"


def _steps(path: Path) -> str:
    import msgspec

    class Steps(msgspec.Struct):
        count: int

    class Findings(msgspec.Struct):
        steps: Steps

    try:
        return str(msgspec.json.decode((path / "findings.json").read_bytes(), type=Findings).steps.count)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return "-"
