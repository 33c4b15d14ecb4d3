"""PID namespaces: a process in one of its own, as in a container, has another number for itself than /proc shows us."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

NOT_SHOWN = -1


class OwnNumbers(NamedTuple):
    """What a process in a namespace that is not ours calls itself and its parent."""

    namespace: int  # inode number of /proc/pid/ns/pid, see pid_namespaces(7)
    pid: int
    parent: int


def own_numbers(facts: dict[str, Any]) -> OwnNumbers | None:
    """Those of a process that announced itself so; None where it is in our namespace, or has not said in which."""
    namespace = facts.get("pid_namespace")
    with suppress(OSError):
        if isinstance(namespace, int) and namespace not in (0, _namespace_of("self")):
            return OwnNumbers(namespace, facts["pid"], facts["parent"])
    return None


def shown_as(own: OwnNumbers) -> int:
    """Under which number /proc shows a process; NOT_SHOWN where it has ended, or belongs to somebody else."""
    with suppress(OSError):  # without a file descriptor left nobody is found
        for entry in filter(str.isdecimal, os.listdir("/proc")):
            if _calls_itself(entry, own):
                return int(entry)
    return NOT_SHOWN


def parent_of(pid: int) -> int:
    """The parent's number in /proc; NOT_SHOWN where there is none."""
    with suppress(psutil.Error, ValueError):
        return psutil.Process(pid).ppid()
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
