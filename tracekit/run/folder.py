"""Where runs live: naming, creating, finding and replacing run directories."""

import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.errors import RunError

if TYPE_CHECKING:
    from tracekit.run.manifest import Manifest

DEFAULT_DIRECTORY = "tracekit-runs"
STUDY_FILE = "study.json"
_OTHERS_S = 5.0
PROCESSES_OF_A_HOST = 1 << 20  # of each supervisor of a run
PROBE = "probe"  # below a run: runs of its command with other loader settings (`probes`)


def new_run_path(command: list[str], directory: Path | str = DEFAULT_DIRECTORY) -> Path:
    """`<directory>/<script>-<utc>-<id>` for a command; the name holds only letters, digits, '.', '_' and '-'."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return Path(directory) / f"{_script_name(command)}-{stamp}-{secrets.token_hex(3)}"


def _script_name(command: list[str]) -> str:
    """The script of `python script.py`, the module of `python -m module`, else the program itself."""
    words = [word for word in command[1:] if word == "-m" or not word.startswith("-")]
    script = next((word for word in command if word.endswith(".py")), None)
    if script is None and "-m" in words[:-1]:
        script = words[words.index("-m") + 1]
    stem = Path(script or command[0]).name.removesuffix(".py")
    return re.sub(r"[^A-Za-z0-9._-]+", "_", stem)[:60].lstrip(".-") or "run"


def is_run(path: Path) -> bool:
    """Whether a directory is a run: it holds a manifest."""
    try:
        return any((path / "manifest").glob("*.json"))
    except OSError:  # somebody else's, who shows it to nobody
        return False


def create_run(path: Path, force: bool = False) -> Path:
    """Make the run directory; the one that makes it owns it, so two recordings cannot share one.

    Raises RunError when something is there (with `force`, when it is not a finished run), OSError when it cannot be
    made.
    """
    path = Path(os.path.abspath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone_in(path.parent):
        return _create(path, force)


def take_part(path: Path, manifest: "Manifest", force: bool = False) -> Path:
    """Make the run directory, or take part in the one that another supervisor of the same job has made, and put the
    manifest there; its `host` and the numbers of its processes become such that nobody else has them.

    Raises RunError and OSError as `create_run` does.
    """
    path = Path(os.path.abspath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    # Where a shared file system has no locks another one may be about to make it.
    patience = time.monotonic() + (_OTHERS_S if manifest.job else 0)
    while True:
        try:
            return _take_part(path, manifest, force)
        except RunError:
            if time.monotonic() >= patience or is_run(path):
                raise
            time.sleep(0.1)


def _take_part(path: Path, manifest: "Manifest", force: bool) -> Path:
    with _alone_in(path.parent):
        others = _supervisors(path) if manifest.job else []
        same_job = [each for each in others if each.job == manifest.job]
        was_here = any(each.is_on(manifest.node) and _has_ended(each) for each in same_job)
        if was_here and not all(map(_has_ended, same_job)):
            raise RunError(f"{path}: others of this job are still recorded into it; choose another --output")
        if not same_job or was_here:
            others = []
            _create(path, force)
        taken = {each.host for each in others}
        names = (manifest.host, *(f"{manifest.host}.{number}" for number in range(2, len(others) + 2)))
        manifest.host = next(name for name in names if name not in taken)
        manifest.first_process = max((each.first_process + PROCESSES_OF_A_HOST for each in others), default=0)
        manifest.save(manifest.path_in(path))
    return path


def leave(path: Path, manifest: "Manifest") -> None:
    """Nothing was recorded: remove the manifest, and the run where nobody else takes part in it."""
    with _alone_in(path.parent):
        manifest.path_in(path).unlink(missing_ok=True)
        if not is_run(path):
            shutil.rmtree(path, ignore_errors=True)


def _supervisors(path: Path) -> "list[Manifest]":
    from tracekit.run.manifest import Manifest

    return [Manifest.load(file) for file in sorted((path / "manifest").glob("*.json"))]


def _create(path: Path, force: bool) -> Path:
    if os.path.lexists(path):
        if not force:
            raise RunError(f"{path}: exists already, will not overwrite it without --force")
        _remove_run(path)
    try:
        path.mkdir()
    except FileExistsError:
        raise RunError(f"{path}: was made by another just now; choose another --output") from None
    (path / "manifest").mkdir()
    (path / "tables").mkdir()
    return path


def create_study(path: Path) -> Path:
    """Make the folder of a study. Raises RunError when something is there, or it cannot be made."""
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        raise RunError(f"{path}: exists already; choose another --output") from None
    except OSError as error:
        raise RunError(f"{path}: cannot be made ({error.strerror}); choose another --output") from None
    return path


def is_study(path: Path) -> bool:
    """Whether a directory is a study that has ended."""
    try:
        return (path / STUDY_FILE).is_file()
    except OSError:
        return False


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep others from replacing runs of the folder meanwhile: looking, removing and making are three steps."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            pass  # a file system without locks: `mkdir` still lets one recording win, unless both replace
        yield
    finally:
        os.close(descriptor)


def _remove_run(path: Path) -> None:
    if not path.is_dir() or path.is_symlink() or not (is_run(path) or not any(path.iterdir())):
        raise RunError(f"{path}: is not a run of tracekit, --force will not replace it; choose another --output")
    if is_being_recorded(path):
        raise RunError(f"{path}: is being recorded right now; choose another --output")
    elsewhere = next((each for each in _supervisors(path) if not _has_ended(each)), None)
    if elsewhere is not None:
        raise RunError(
            f"{path}: is being recorded on {elsewhere.node or elsewhere.host}, or was killed there; give both the same"
            " --job to record into one run, or choose another --output"
        )
    shutil.rmtree(path)


def _has_ended(manifest: "Manifest") -> bool:
    """Whether a supervisor has ended, or was killed on this node: of others nobody knows."""
    if manifest.ended_ns is not None:
        return True
    is_here = manifest.is_on(os.uname().nodename)
    return is_here and process_started(manifest.supervisor) != manifest.supervisor_started


def is_being_recorded(path: Path) -> bool:
    """Whether a living supervisor on this host writes into the run."""
    here = os.uname().nodename
    return any(each.is_on(here) and not _has_ended(each) for each in _supervisors(path))


def process_started(pid: int) -> int | None:
    """When a living process started, in clock ticks since boot (proc(5), field 22 of stat); None when there is none.

    Raises OSError where that cannot be told, as without a file descriptor left.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(b")")[2].split()
    return None if fields[0] == b"Z" else int(fields[19])


def list_runs(directory: Path | str = DEFAULT_DIRECTORY) -> list[Path]:
    """The runs of a directory, newest first."""
    directory = Path(directory)
    if not directory.is_dir():
        return []
    runs = [path for path in directory.iterdir() if path.is_dir() and is_run(path)]
    return sorted(runs, key=lambda path: (path / "manifest").stat().st_mtime_ns, reverse=True)


def list_studies(directory: Path | str = DEFAULT_DIRECTORY) -> list[Path]:
    """The studies of a directory, newest first."""
    directory = Path(directory)
    if not directory.is_dir():
        return []
    found = [path for path in directory.iterdir() if is_study(path) and not is_run(path)]
    return sorted(found, key=study_written_ns, reverse=True)


def study_written_ns(path: Path) -> int:
    """When a study was last written, Unix time."""
    try:
        return (path / STUDY_FILE).stat().st_mtime_ns
    except OSError:
        return 0  # removed since


def newest_run(directory: Path | str = DEFAULT_DIRECTORY) -> Path:
    """The newest run of a directory. Raises RunError when it has none."""
    runs = list_runs(directory)
    if not runs:
        raise RunError(f"no run in {directory}/; record one with: tracekit record -- python your_script.py")
    return runs[0]
