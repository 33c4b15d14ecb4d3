"""Workers to fork: which workers the forks of a thread are, and the file in which all of a loader's begin.

To make a file takes 10 to 500 us, by the file system, and of what a forked process touches each page is to be copied
first. So the workers say who they are, and write their first records, in one file that is there before they are.
"""

import os
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import get_ident
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING

from tracekit.record.wire import WORKER_BEGUN, WORKERS_HEAD, WORKERS_RECORDS, WorkersLayout

from .spool import Mapped, Segment

if TYPE_CHECKING:
    from .agent import Agent

NO_WORKER = -1

Names = list[tuple[str, int]]


class WorkersToFork:
    """What a child of this process is to know of itself, by the thread that forks it."""

    def __init__(self, agent: "Agent") -> None:
        self._agent = agent
        self._files = 0
        self._workers: dict[int, Iterator[_Child]] = {}
        self._next: dict[int, list[_Child]] = {}  # several where a signal handler forks meanwhile

    def begin(self, count: int) -> None:
        """This thread starts so many workers of a loader: they are forked in their order, and nothing else meanwhile,
        if they are forked at all."""
        self._files += 1
        path = f"{self._agent.folder}/{self._agent.stem}.{self._files:06d}.workers"
        self._workers[get_ident()] = _workers(self._agent, count, path)

    def end(self) -> None:
        self._workers.pop(get_ident(), None)

    def before_fork(self) -> None:
        """What the child will need, made where nothing has to be copied for it."""
        ident = get_ident()
        workers = self._workers.get(ident)
        child = None
        with suppress(ValueError):  # it is in the midst of preparing them, and a signal handler of the program's forks
            child = next(workers, None) if workers is not None else None
        self._next.setdefault(ident, []).append(child or _Child.of(self._agent))

    def has_forked(self) -> None:
        children = self._next.get(get_ident())
        if children:
            children.pop()

    def begin_in_child(self) -> "_Child":
        """Say who this forked process is."""
        children = self._next.get(get_ident())
        child = children[-1] if children else _Child([], _who_it_is())
        self._of_parent = self._workers, self._next  # to let go of these, they would have to be copied
        self._workers, self._next, self._files = {}, {}, 0
        child.announce(self._agent.folder)
        return child


@dataclass(slots=True)
class _Child:
    names_of: Names
    facts: bytes  # the end of a JSON object
    worker: int = NO_WORKER
    file: Mapped | None = None  # where there is none, it announces itself
    announcement: int = 0  # where in the file
    first: Segment | None = None
    stem: str = ""

    @classmethod
    def of(cls, agent: "Agent") -> "_Child":
        names = agent.spool.names_on_disk()
        told = ", ".join(f'["{stem}", {count}]' for stem, count in names)
        return cls(names, b'"names_of": [%s], ' % told.encode("ascii") + _who_it_is())

    def announce(self, folder: str) -> None:
        start = sys.modules["tracekit_start"]
        if self.file is None:
            worker = b"" if self.worker == NO_WORKER else b'"worker": %d, ' % self.worker
            start.announce_as(folder, worker + self.facts)
        else:
            now, pid = clock(), os.getpid()
            WORKER_BEGUN.pack_into(self.file.buffer, self.announcement, pid, os.getppid(), now)
            start.write_as(f"{pid}-{now:x}")
        self.stem = start.stem


def _workers(agent: "Agent", count: int, path: str) -> Iterator[_Child]:
    """Those of a loader, in the order in which they are forked; nothing is made before the first one is."""
    common = _Child.of(agent)
    children = [replace(common, worker=worker) for worker in range(count)]
    layout = WorkersLayout(count, len(common.facts) + 1)
    with suppress(OSError):  # where the disk does not take the file, each has files of its own
        file = Mapped(path, layout.size)
        struct.pack_into(f"{layout.length}s", file.buffer, WORKERS_HEAD.size, b"{" + common.facts)
        WORKERS_HEAD.pack_into(file.buffer, 0, *layout)
        for child in children:
            child.file = file
            child.announcement = layout.begun + child.worker * WORKER_BEGUN.size
            child.first = Segment(file, WORKERS_RECORDS, layout.segment(child.worker))
    yield from children


def _who_it_is() -> bytes:
    who: bytes = sys.modules["tracekit_start"].who_it_is()
    return who
