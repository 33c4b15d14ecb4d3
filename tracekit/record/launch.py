"""Starting the program exactly as given, with the recorder's environment around it."""

import errno
import importlib.util
import os
import shutil
import sys
from pathlib import Path

from tracekit.errors import TracekitError

SPOOL_VARIABLE = "TRACEKIT_SPOOL"
NOT_FOUND, NOT_EXECUTABLE = 127, 126
_KEEPS_US_OUT = {"I": "isolated mode", "E": "environment variables ignored", "S": "site not imported"}


class LaunchError(TracekitError):
    """The command cannot be started; the exit code is the one a shell would give."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def program_environment(spool: Path | None) -> dict[str, str]:
    """The environment of the program: our own, and what makes every Python below start the recorder."""
    environment = dict(os.environ)
    if spool is None:
        return environment
    bootstrap = importlib.util.find_spec("tracekit.collectors.bootstrap")
    if bootstrap is None or not bootstrap.submodule_search_locations:
        raise TracekitError("tracekit.collectors is not installed; install tracekit again")
    folder = bootstrap.submodule_search_locations[0]
    users = environment.get("PYTHONPATH") or folder  # Python takes an empty variable for none, an empty entry for "."
    others = [entry for entry in users.split(os.pathsep) if entry != folder]
    environment["PYTHONPATH"] = os.pathsep.join([folder, *others])
    environment[SPOOL_VARIABLE] = str(spool)
    return environment


def find_program(command: list[str]) -> str:
    """The file that a shell would run for the command. Raises LaunchError (127 not found, 126 not executable)."""
    name = command[0]
    if os.sep not in name:
        found = shutil.which(name)
        if found is not None:
            return found
        if name and shutil.which(name, os.F_OK):
            raise LaunchError(f"{name}: is on the PATH, but not executable", NOT_EXECUTABLE)
        raise LaunchError(f"{name}: command not found", NOT_FOUND)
    if not os.path.exists(name):
        raise LaunchError(f"{name}: no such file", NOT_FOUND)
    if os.path.isdir(name) or not os.access(name, os.X_OK):
        raise LaunchError(f"{name}: cannot be executed; for a script: tracekit record -- python {name}", NOT_EXECUTABLE)
    return name


def spawn(command: list[str], environment: dict[str, str], unblocked: set[int], cpus: list[int] | None = None) -> int:
    """Start the command with our own stdin, stdout, stderr and working directory; returns its pid.

    `unblocked` are the signals that this process has blocked and the program must not inherit blocked; `cpus` those to
    run on, where they are not ours.
    """
    import signal

    program = find_program(command)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, []) - unblocked
    ours = os.sched_getaffinity(0)
    try:
        if cpus is not None:
            os.sched_setaffinity(0, cpus)  # what we start inherits it
        # Python ignores the two, and what is not Python would go on to.
        return os.posix_spawn(
            program, command, environment, setsigmask=mask, setsigdef=[signal.SIGPIPE, signal.SIGXFSZ]
        )
    except OSError as error:
        if error.errno == errno.ENOENT:  # a script whose interpreter does not exist
            raise LaunchError(f"{program}: its interpreter does not exist", NOT_FOUND) from error
        raise LaunchError(f"{program}: {error.strerror}", NOT_EXECUTABLE) from error
    finally:
        if cpus is not None:
            os.sched_setaffinity(0, ours)


def injection_problem(command: list[str]) -> str | None:
    """Why the recorder cannot reach this command's Python, as far as the command line tells."""
    program = Path(command[0]).name
    if not program.startswith(("python", "pypy")):
        return None
    words = iter(command[1:])
    for word in words:
        if not word.startswith("-") or word in ("-", "--"):
            return None
        if word == "--check-hash-based-pycs":
            next(words, None)
        if word.startswith("--"):
            continue
        for place, flag in enumerate(word[1:], start=1):
            if flag in _KEEPS_US_OUT:
                return f"{program} {word}: {_KEEPS_US_OUT[flag]}, so no recorder can be started in it"
            if flag in "cm":  # the program and its own words follow
                return None
            if flag in "WX":  # takes the rest of the word, else the next one
                if place == len(word) - 1:
                    next(words, None)
                break
    return None


def words_to_run(module: str) -> list[str]:
    """How a module of tracekit is run by the interpreter that runs us, as a process of its own.

    Not from the working directory, where `-m` looks first: it is the program's, and may have a queue.py.
    """
    return [sys.executable, "-P", "-m", module]
