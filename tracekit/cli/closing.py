"""The closing summary of a recording."""

from pathlib import Path

from tracekit.analysis.steps import find_steps
from tracekit.run.reader import Run

# More notes than this are left to `tracekit analyze`.
_NOTES_SHOWN = 4


def describe(path: Path, host: str, lost: str | None) -> list[str]:
    """A few lines on what has just been recorded on this host; `lost` is what could not be written."""
    run = Run(path, host)  # of others nothing is looked at: they may be at their end, and merge what they wrote
    steps = find_steps(run)
    overhead = run.manifest.overhead
    processes = len(run.table("processes"))
    count = len(steps.of(steps.main)) if steps.main is not None else 0
    lines = [
        f"recorded {path} ({run.manifest.condition}){_failure(run.manifest.exit_code)}",
        f"{count:,} steps, {processes} process{'es' if processes != 1 else ''}; recording took about "
        f"{overhead.program:.1%} of the program's time and {overhead.supervisor:.1%} of the machine's "
        f"(budget {overhead.budget:.1%})",
    ]
    if lost:
        lines.append(f"LOST: {lost}")
    notes = run.missing
    lines += [f"not captured: {note.what}: {note.why}" for note in notes[:_NOTES_SHOWN]]
    if len(notes) > _NOTES_SHOWN:
        lines.append(f"not captured: {len(notes) - _NOTES_SHOWN} more, see tracekit analyze")
    return lines


def _failure(code: int | None) -> str:
    return f"; the command ended with exit code {code}" if code else ""
