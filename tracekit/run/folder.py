"""Where runs live: naming, creating, finding and replacing run directories."""

import errno
import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain, count
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tracekit.errors import RunError

if TYPE_CHECKING:
    from tracekit.run.manifest import Manifest

DEFAULT_DIRECTORY = "tracekit-runs"
STUDY_FILE = "study.json"
_OTHERS_S = 5.0
_STARTED_TOGETHER_NS = 30_000_000_000  # who starts so long after all of a job have ended is of its next attempt
AGAIN = " attempt "  # behind the name of a job that was started again: how often
PROCESSES_OF_A_HOST = 1 << 18  # of each supervisor of a run: 8192 of them have room in an int32
SESSION_FILE = "session.json"  # of a spool folder; it is locked while the recording lives
_SLOT, _HOST = ".slot-", ".host-"  # what a supervisor of a job has claimed, beside its manifest
_BEING_REPLACED = ".being-replaced"  # in a run that another is to take the place of
_ASIDE = ".tracekit-"  # how the name of what was replaced begins, until it is removed
PROBE = "probe"  # below a run: runs of its command with other loader settings (`probes`)


class _OvertakenError(RunError):
    """Others were quicker, and what is there now is another thing."""


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
    # Where a shared file system has no locks another one may be about to make it, or to replace what is there.
    patience = time.monotonic() + (_OTHERS_S if manifest.job else 0)
    while True:
        try:
            return _take_part(path, manifest, force)
        except (RunError, FileNotFoundError) as error:
            is_changing = isinstance(error, _OvertakenError | FileNotFoundError) or not is_run(path)
            is_settled = not is_changing and not _company(path, manifest)
            if is_settled or time.monotonic() >= patience:
                raise
            time.sleep(0.1)


def _take_part(path: Path, manifest: "Manifest", force: bool) -> Path:
    with _alone_in(path.parent), ExitStack() as undo:
        company = _company(path, manifest)
        if not company:
            _create(path, force, manifest.job)
        undo.callback(_remove_empty, *_folders_of(path))
        if manifest.job:
            taken = {claim for each in company for claim in _claims(each)}  # older ones made no folders of them
            slots = (f"{_SLOT}{number}" for number in count())
            slot = _claim(path, slots, taken, undo).removeprefix(_SLOT)
            hosts = chain([_HOST + manifest.host], (f"{_HOST}{manifest.host}.{number}" for number in count(2)))
            manifest.host = _claim(path, hosts, taken, undo).removeprefix(_HOST)
            manifest.first_process = int(slot) * PROCESSES_OF_A_HOST
        manifest.save(manifest.path_in(path))
        undo.pop_all()
    return path


def _company(path: Path, manifest: "Manifest") -> "list[Manifest]":
    """The supervisors whose run this one takes part in; none where it has to make one, as after a requeue."""
    others = _supervisors(path) if manifest.job else []
    same_job = [each for each in others if each.job == manifest.job]
    was_here = any(each.is_on(manifest.node) and still_records(each) is False for each in same_job)
    if was_here and any(still_records(each) is not False for each in same_job):
        raise RunError(f"{path}: others of this job are still recorded into it; choose another --output")
    earlier = manifest.started_ns - _STARTED_TOGETHER_NS
    if was_here or all(each.ended_ns is not None and each.ended_ns < earlier for each in same_job):
        return []
    return others


def _claims(manifest: "Manifest") -> tuple[str, str]:
    """The folders beside a manifest that stand for its numbers and its name."""
    return f"{_SLOT}{manifest.first_process // PROCESSES_OF_A_HOST}", _HOST + manifest.host


def _claim(path: Path, names: Iterator[str], taken: set[str], undo: ExitStack) -> str:
    """The first of these names that nobody has. To make a folder is one step for the server too: what locks there are
    may hold on one node only, as those of folders do on NFS and Lustre."""
    while True:
        mine = path / "manifest" / next(names)
        if mine.name in taken:
            continue
        try:
            mine.mkdir()
        except FileExistsError:
            continue
        undo.callback(_remove_empty, mine)
        return mine.name


def leave(path: Path, manifest: "Manifest") -> None:
    """Nothing was recorded: remove the manifest, and the run where nobody else takes part in it."""
    with _alone_in(path.parent):
        manifest.path_in(path).unlink(missing_ok=True)
        claims = (path / "manifest" / claim for claim in _claims(manifest))
        _remove_empty(*claims, *_folders_of(path))


def _folders_of(path: Path) -> tuple[Path, ...]:
    return path / "manifest", path / "tables", path


def _remove_empty(*folders: Path) -> None:
    """Remove those that are there up to the first that holds something: it may be another's, who is to record there."""
    with suppress(OSError):
        for folder in folders:
            with suppress(FileNotFoundError):
                folder.rmdir()


def _supervisors(path: Path) -> "list[Manifest]":
    from tracekit.run.manifest import Manifest

    return [Manifest.load(file) for file in sorted((path / "manifest").glob("*.json"))]


def _create(path: Path, force: bool, job: str = "") -> Path:
    if os.path.lexists(path):
        if not force:
            again = "; a job that runs again, as after a requeue, needs one --output for each time" if job else ""
            raise RunError(f"{path}: exists already, will not overwrite it without --force{again}")
        _remove_run(path, job)
    try:
        for folder in reversed(_folders_of(path)):
            folder.mkdir()
    except FileExistsError:
        raise _OvertakenError(f"{path}: was made by another just now; choose another --output") from None
    except OSError:
        _remove_empty(*_folders_of(path))
        raise
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


def _remove_run(path: Path, job: str) -> None:
    _refuse_to_replace(path, job)
    overtaken = _OvertakenError(f"{path}: is being replaced by another; choose another --output")
    mark, is_empty = path / _BEING_REPLACED, not is_run(path)
    try:
        (path.rmdir if is_empty else mark.mkdir)()
    except OSError as error:
        raise overtaken if error.errno in (errno.EEXIST, errno.ENOTEMPTY) else error from None
    if is_empty:
        return
    try:  # it may be what another has put there meanwhile; from now on nobody replaces it but us
        _refuse_to_replace(path, job)
    except BaseException:
        _remove_empty(mark)
        raise
    aside = path.with_name(f"{_ASIDE}{secrets.token_hex(8)}")
    try:
        os.rename(path, aside)
    except OSError:  # not every file system can, as overlayfs and buckets
        shutil.rmtree(path)
    else:
        shutil.rmtree(aside, ignore_errors=True)


def _refuse_to_replace(path: Path, job: str) -> None:
    if not path.is_dir() or path.is_symlink() or not (is_run(path) or not any(path.iterdir())):
        raise RunError(f"{path}: is not a run of tracekit, --force will not replace it; choose another --output")
    if is_being_recorded(path):
        raise RunError(f"{path}: is being recorded right now; choose another --output")
    untold = (each for each in _supervisors(path) if still_records(each) is None)
    elsewhere = next((each for each in untold if not _was_before(each.job, job)), None)
    if elsewhere is not None:
        raise RunError(
            f"{path}: is being recorded on {elsewhere.node or elsewhere.host}, or was killed there; give both the same"
            " --job to record into one run, or choose another --output"
        )


def _was_before(other: str, job: str) -> bool:
    """Whether a job is another one that was started again, as a batch system does when that one is over."""
    (name, again), (other_name, other_again) = (each.partition(AGAIN)[::2] for each in (job, other))
    counts = [int(each) if each.isdecimal() else 0 for each in (other_again, again)]
    return bool(name) and name == other_name and counts[0] < counts[1]


def still_records(manifest: "Manifest") -> bool | None:
    """Whether a supervisor lives that has not ended the recording. None where that cannot be told from here: it is on
    another node, or in another PID namespace, as a container is, and its spool folder is not to be seen."""
    if manifest.ended_ns is not None:
        return False
    if not manifest.is_on(os.uname().nodename):
        return None
    is_held = _is_held(manifest.spool)
    told, here = (manifest.boot, manifest.pid_namespace), whose_pids()
    if is_held:
        return True
    if not manifest.boot or told == here:
        return process_started(manifest.supervisor) == manifest.supervisor_started
    return False if here[0] and manifest.boot != here[0] else is_held


def is_being_recorded(path: Path) -> bool:
    """Whether a supervisor on this host is known to write into the run."""
    return any(map(still_records, _supervisors(path)))


def hold(spool: Path) -> IO[bytes]:
    """Let all who see the spool folder know that its recording lives, until the file is closed. Raises OSError."""
    file = (spool / SESSION_FILE).open("r+b")  # NFS locks for one alone what is open to be written
    with suppress(OSError):  # where there are no locks nobody can ask for it either
        fcntl.flock(file, fcntl.LOCK_EX)
    return file


def _is_held(spool: str | None) -> bool | None:
    """Whether somebody holds a spool folder; None where it is not to be seen, or not for us."""
    try:
        descriptor = os.open(Path(spool or "", SESSION_FILE), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except (OSError, ValueError):  # a manifest may name any path
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)


def whose_pids() -> tuple[str, int]:
    """Whose numbers of processes /proc shows us: the boot and the inode of our PID namespace, pid_namespaces(7);
    ("", 0) where that cannot be told, as where it is that of the namespace before."""
    try:
        if os.readlink("/proc/self") == str(os.getpid()):
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            return boot, os.stat("/proc/self/ns/pid").st_ino if boot else 0
    except OSError:
        pass
    return "", 0


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
    runs = [path for path in directory.iterdir() if not path.name.startswith(_ASIDE) and is_run(path)]
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
