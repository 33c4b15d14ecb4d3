"""PID namespaces: a process in one of its own, as in a container, has another number for itself than /proc shows us.
So have we and all below us where /proc is that of the namespace before, which `unshare --pid` leaves mounted."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

NOT_SHOWN = -1


class OwnNumbers(NamedTuple):
    """What a process in a namespace that is not ours calls itself and its parent."""

    namespace: int  # inode number of /proc/pid/ns/pid, see pid_namespaces(7)
    pid: int
    parent: int


def shows_ours() -> bool:
    """Whether /proc shows the processes of our namespace by the numbers that they have for us."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:  # no /proc, or no numbers in it
        return True


def shown(pid: int) -> int:
    """Under which number /proc shows a process of our namespace; NOT_SHOWN where it has ended."""
    if shows_ours():
        return pid
    with suppress(OSError):  # who may not ask for our namespace finds nobody in it
        return shown_as(OwnNumbers(_namespace_of("self"), pid, NOT_SHOWN))
    return NOT_SHOWN


def own_numbers(facts: dict[str, Any]) -> OwnNumbers | None:
    """Those of a process that announced itself so; None where /proc shows it by the same ones, or it has not said in
    which namespace it is."""
    namespace = facts.get("pid_namespace")
    with suppress(OSError):
        if isinstance(namespace, int) and namespace and not (namespace == _namespace_of("self") and shows_ours()):
            return OwnNumbers(namespace, facts["pid"], facts["parent"])
    return None


def shown_as(own: OwnNumbers) -> int:
    """Under which number /proc shows a process; NOT_SHOWN where it has ended, or belongs to somebody else."""
    with suppress(OSError):  # without a file descriptor left nobody is found
        for entry in filter(str.isdecimal, os.listdir("/proc")):
            if _calls_itself(entry, own):
                return int(entry)
    return NOT_SHOWN


def _calls_itself(entry: str, own: OwnNumbers) -> bool:
    try:
        return _namespace_of(entry) == own.namespace and _innermost(entry) == own.pid
    except OSError:  # it has ended meanwhile, or belongs to somebody else
        return False


def _namespace_of(entry: str) -> int:
    return os.stat(f"/proc/{entry}/ns/pid").st_ino


def _innermost(entry: str) -> int | None:
    """What a process calls itself: the last number of NSpid, proc_pid_status(5)."""
    for line in Path(f"/proc/{entry}/status").read_bytes().splitlines():
        if line.startswith(b"NSpid:"):
            return int(line.split()[-1])
    return None
