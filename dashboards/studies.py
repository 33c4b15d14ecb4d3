"""The studies beside the runs: what there is, and the runs inside them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tracekit.errors import RunError
from tracekit.run.folder import is_run, is_study, list_runs, list_studies, study_written_ns
from tracekit.study.result import Study

# The page that is about what a study compares; that of a study, too.
SHOWN_ON = {
    "threads": "threads",
    "loading": "loading",
    "ddp": "distributed",
    "noise": "noise",
    "verify": "settings",
}


@dataclass(frozen=True)
class StudyEntry:
    """A study in the list, and when it was written (ns, Unix time); without one, why it cannot be opened."""

    name: str
    written_ns: int
    study: Study | None
    problem: str = ""


def study_paths(directory: Path) -> dict[str, Path]:
    """The studies of a directory by name, newest first; or the directory itself where it is one."""
    if is_run(directory) or not directory.is_dir():
        return {}
    found = [directory.resolve()] if is_study(directory) else list_studies(directory)
    return {path.name: path for path in found}


def study_entries(paths: Mapping[str, Path]) -> list[StudyEntry]:
    """The studies as a list shows them."""
    entries = []
    for name, path in paths.items():
        try:
            entries.append(StudyEntry(name, study_written_ns(path), Study.load(path)))
        except RunError as error:
            entries.append(StudyEntry(name, study_written_ns(path), None, str(error)))
    return entries


def runs_inside(paths: Mapping[str, Path]) -> dict[str, Path]:
    """The runs of studies, called `<study>/<run>`: no name of a run in the directory itself has a slash."""
    return {f"{name}/{run.name}": run for name, path in paths.items() for run in list_runs(path / "runs")}


def explored_run(name: str, path: Path, study: Study) -> str | None:
    """What the run is called that a study's settings come from; None where there is none, or no more.

    The study names it by the path that it had: only its last part is used, so a study may be moved.
    """
    if study.explored is None:
        return None
    run = f"{name}/{Path(study.explored).name}"
    return run if run in runs_inside({name: path}) else None
