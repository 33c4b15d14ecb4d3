"""The processes below one and above it, as the kernel lists them."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from tracekit.record.pid_namespaces import NOT_SHOWN


def descendants(root: int) -> list[tuple[int, int]]:
    """(pid, parent) of all processes below `root`, a parent before its children; what ends meanwhile may be missing.

    From the lists of children that the kernel keeps (proc(5), /proc/pid/task/tid/children): looking at every process of
    the machine for its parent takes 20 us for each, and large nodes have thousands. Where it keeps none, that is done.
    """
    if not Path(f"/proc/{root}/task/{root}/children").exists():
        with suppress(psutil.Error):
            return [(child.pid, child.ppid()) for child in psutil.Process(root).children(recursive=True)]
        return []
    found, parents = [], [root]
    for parent in parents:  # it grows meanwhile
        for child in _children(parent):
            found.append((child, parent))
            parents.append(child)
    return found


def parent_of(pid: int) -> int:
    """The parent's number in /proc; NOT_SHOWN where there is none."""
    with suppress(psutil.Error, ValueError):
        return psutil.Process(pid).ppid()
    return NOT_SHOWN


def _children(pid: int) -> Iterator[int]:
    tasks = f"/proc/{pid}/task"
    with suppress(OSError):
        for thread in os.listdir(tasks):
            with suppress(OSError):
                yield from map(int, Path(f"{tasks}/{thread}/children").read_bytes().split())
