"""Runs in every Python below `tracekit record`, before the program: announces the process and waits for torch.

Imports nothing heavy: this runs in pip, compilers and helpers too. Only when torch (or tracekit) is imported does the
agent start. Any Python 3 below the program may come here, however old: it must find nothing that it cannot read.
"""

import json
import os
import sys
import time
from importlib import import_module

TYPE_CHECKING = False  # as in `typing`, which takes longer to import than all of this
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_SPOOL = "TRACEKIT_SPOOL"
_OLDEST = (3, 11)  # that tracekit itself runs in
# Not programs of the user's: packaging tools, multiprocessing's book-keeper, tracekit itself.
_LEFT_ALONE = ("pip", "uv", "ensurepip", "build", "venv", "virtualenv", "tracekit")
_LEFT_ALONE_CODE = ("from multiprocessing.resource_tracker import main",)
# Before us, as without us: garbage is to be collected when it would be, and nothing is while we import what is ours. A
# collection that comes just after a fork instead of just before is paid for in every child.
_TORCH_IMPORTS_TOO = (
    "asyncio", "ctypes", "dataclasses", "importlib.metadata", "importlib.resources", "multiprocessing.reduction",
)  # fmt: skip

stem: "str | None" = None  # names this process's files in the spool folder; None where the process is not recorded


def start() -> None:
    """Announce this process if it is to be recorded, then start the `sitecustomize` that ours stands before."""
    sys.path[:] = [entry for entry in sys.path if entry != _FOLDER]
    spool = os.environ.get(_SPOOL)
    if spool and sys.version_info >= _OLDEST and not _is_left_alone():
        try:
            announce(spool)
            sys.meta_path.insert(0, _TorchWatch())
        except OSError:
            pass  # the spool is gone or full: the program runs unrecorded, and the supervisor says so
    _start_next_sitecustomize()


def announce(spool: str) -> None:
    """Write who this process is to `<stem>.process`."""
    announce_as(spool, who_it_is())


def who_it_is() -> bytes:
    """What a process and those that it forks have in common: the end of a JSON object."""
    variables = (
        "RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK",
        "MPI_LOCALRANKID",
    )  # fmt: skip
    try:
        pid_namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        pid_namespace = 0  # not known: taken to be the supervisor's
    facts = {
        "command": getattr(sys, "orig_argv", sys.argv),
        "environment": {name: os.environ[name] for name in variables if name in os.environ},
        "pid_namespace": pid_namespace,
    }
    return json.dumps(facts)[1:].encode("ascii")  # `dump` encodes in Python, some 10 times as long


def announce_as(spool: str, who: bytes) -> None:
    """Write it for this process, with as little as can be: in a forked one whatever is touched has to be copied."""
    now, pid = time.perf_counter_ns(), os.getpid()
    name = f"{pid}-{now:x}"
    path = f"{spool}/{name}.process"  # `join` is a function of Python's own
    facts = f'{{"pid": {pid}, "parent": {os.getppid()}, "start": {now}, '.encode("ascii") + who
    # Readers come again for what is not there in full: JSON ends with its bracket.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        while facts:
            facts = facts[os.write(descriptor, facts) :]
    finally:
        os.close(descriptor)
    write_as(name)


def write_as(name: str) -> None:
    """This process has announced itself, and its files have this stem."""
    global stem
    stem = name


def wake() -> None:
    """Start the agent, once; without effect in a process that is not recorded."""
    if stem is None:
        return
    import gc

    collects = gc.isenabled()
    try:
        for module in _TORCH_IMPORTS_TOO:
            import_module(module)
        gc.disable()
        if not stem.startswith(f"{os.getpid()}-"):  # forked before torch was imported, as from a forkserver
            announce(os.environ[_SPOOL])
        _start_agent()
    except Exception as error:  # whatever is wrong with our own installation must not reach the program
        note_failure(os.environ.get(_SPOOL, ""), error)
    finally:
        if collects:
            gc.enable()


def _start_agent() -> None:
    """With what it needs of Python's own library: the program may have files of the same names, such as
    `statistics.py`, in a folder before that. They are left for it to import."""
    from importlib.machinery import PathFinder

    path, known = sys.path[:], set(sys.modules)
    library = os.path.dirname(os.__file__)
    of_python = [folder for folder in path if folder in (library, os.path.join(library, "lib-dynload"))]
    sys.path[:] = of_python + [folder for folder in path if folder not in of_python]
    try:
        from tracekit.collectors import agent

        agent.start(os.environ[_SPOOL], stem or "")
    finally:
        sys.path[:] = path + [folder for folder in sys.path if folder not in path]
        before = path[: path.index(library)] if library in path else []
        for name in (set(sys.modules) - known) & sys.stdlib_module_names:
            found = PathFinder.find_spec(name, before)
            if found is not None and found.loader is not None:
                del sys.modules[name]


def note_failure(spool: str, error: Exception) -> None:
    """Leave word for the supervisor that this process could not be recorded."""
    try:
        with open(os.path.join(spool, f"{stem}.failure"), "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{type(error).__name__}: {error}"[:300])
    except OSError:
        pass


def _is_left_alone() -> bool:
    # What Python was given before the program's own words ends with the script, the module or the code.
    words, arguments = getattr(sys, "orig_argv", []), getattr(sys, "argv", None) or [""]
    given = words[: len(words) - len(arguments) + 1]
    last = given[-1] if given else ""
    if arguments[0] == "-c":
        return any(code in last for code in _LEFT_ALONE_CODE)
    if arguments[0] == "-m":
        module = last.partition("m")[2] if last.startswith("-") else last  # -mpip
        return module.partition(".")[0] in _LEFT_ALONE
    return os.path.basename(arguments[0]).rstrip("0123456789.") in _LEFT_ALONE  # pip3.11 too


class _TorchWatch:
    """Sees that torch is about to be imported; finds nothing itself."""

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        if name != "torch":
            return None
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        wake()
        # The agent has put finders of its own in front, which this search has passed already: search again.
        for finder in list(sys.meta_path):
            found = finder.find_spec(name, path, target)
            if found is not None:
                return found
        return None


def _start_next_sitecustomize() -> None:
    """Python imports only the first `sitecustomize` on the path: give the one behind ours its turn, errors and all."""
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401  the next one: our folder is off the path
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours  # the import system expects the module it is loading to stay
