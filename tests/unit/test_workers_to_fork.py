"""Workers that are forked together begin in one file: who they are and what they record reaches the reader."""

import errno
import importlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spooling import NOBODY

from tracekit.collectors import workers_to_fork as forking
from tracekit.collectors.agent import Agent
from tracekit.collectors.spool import Mapped, Spool
from tracekit.collectors.workers_to_fork import NO_WORKER, WorkersToFork
from tracekit.record import spools as reading
from tracekit.record.wire import RECORD, WORKER_BEGUN, WORKERS_HEAD, WORKERS_RECORDS, Kind, WorkersLayout

PARENT = f"{NOBODY}-1"


@pytest.fixture(autouse=True)
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process counts as a recorded one."""
    start = importlib.import_module("tracekit.collectors.bootstrap.tracekit_start")
    monkeypatch.setitem(sys.modules, "tracekit_start", start)
    monkeypatch.setattr(start, "stem", None)


class Parent:
    """A recorded process that forks: what its child would do is done here, in the order in which it happens."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spool = Spool(str(folder), PARENT)
        self.spool.intern("shared")
        self._children = 0
        self.interrupted: list[Callable[[], object]] = []  # what a signal handler does right before a fork
        agent = SimpleNamespace(folder=str(folder), stem=PARENT, spool=self.spool)
        self.forks = WorkersToFork(cast(Agent, agent))

    def fork(self) -> "Child":
        self.forks.before_fork()
        self._children += 1
        pid = NOBODY + self._children
        forks = self.forks
        own = forks._workers, forks._next, forks._files
        if self.interrupted:
            self.interrupted.pop()()
        with patch.object(os, "getpid", lambda: pid):
            child = Child(self.folder, forks.begin_in_child())
        forks._workers, forks._next, forks._files = own
        forks.has_forked()
        return child


class Child:
    def __init__(self, folder: Path, child: Any) -> None:
        self.worker, self.stem = child.worker, child.stem
        self.spool = Spool(str(folder), PARENT)
        self.spool.continue_as(str(folder), child.stem, child.names_of, child.first)

    def write(self, numbers: range) -> None:
        for number in numbers:
            self.spool.write(Kind.FETCH, 0, 0, 0, number)


def files(folder: Path) -> set[str]:
    """The kinds of files in it, but for names."""
    return {path.suffix for path in folder.iterdir() if path.suffix != ".names"}


def take(spool: reading.Spool, ended: bool = False) -> list[int]:
    records, segment, offset = spool.read(ended)
    spool.go_on_from(segment, offset)
    return [int(number) for number in records["a"]]


@given(st.integers(1, 1000), st.integers(1, 200_000))
def test_nothing_in_the_file_overlaps(workers: int, length: int) -> None:
    layout = WorkersLayout(workers, length)

    assert WORKERS_HEAD.size + length <= layout.begun < WORKERS_HEAD.size + length + 8
    assert layout.begun + workers * WORKER_BEGUN.size <= layout.segments
    assert layout.segments % 4096 == 0 and layout.segment(0) == layout.segments
    assert layout.size - layout.segment(workers - 1) == WORKERS_RECORDS * RECORD.size


def test_workers_of_one_loader_share_a_file_and_none_is_mixed_up(tmp_path: Path) -> None:
    parent = Parent(tmp_path)
    folder = reading.SpoolFolder(tmp_path)
    parent.forks.begin(2)

    first = parent.fork()
    (met,) = folder.discover()
    first.write(range(3))
    second = parent.fork()
    second.write(range(100, 102))
    first.write(range(3, 5))
    parent.forks.end()
    (met_later,) = folder.discover()

    assert files(tmp_path) == {".workers"}
    assert (met.stem, met_later.stem) == (first.stem, second.stem)
    assert [spool.facts["worker"] for spool in (met, met_later)] == [0, 1]
    assert [spool.pid for spool in (met, met_later)] == [NOBODY + 1, NOBODY + 2]
    assert met.facts["parent"] == os.getppid() and met.facts["command"] == sys.orig_argv
    assert take(met) == [0, 1, 2, 3, 4] and met.names == ["shared"]
    assert take(met_later) == [100, 101]
    assert met.status() == {"facts": {"worker": 0}}
    assert folder.discover() == []


@pytest.mark.parametrize("beyond", [-1, 0, 1, 700])
def test_a_worker_that_records_more_goes_on_in_files_of_its_own(tmp_path: Path, beyond: int) -> None:
    count = WORKERS_RECORDS + beyond
    parent = Parent(tmp_path)
    parent.forks.begin(2)
    workers = [parent.fork(), parent.fork()]
    for worker in workers:
        worker.write(range(count))

    found = [take(spool, ended=True) + take(spool, ended=True) for spool in reading.SpoolFolder(tmp_path).discover()]

    assert found == [list(range(count))] * 2
    assert files(tmp_path) == {".workers"}  # what was read of others is gone


def test_what_has_been_read_is_cut_off_and_who_they_were_is_kept(tmp_path: Path) -> None:
    """GIVEN workers of which all has been read WHEN somebody else comes, as to salvage THEN he meets the same ones."""
    parent = Parent(tmp_path)
    parent.forks.begin(2)
    for worker in (parent.fork(), parent.fork()):
        worker.write(range(5))
    (file,) = tmp_path.glob("*.workers")
    spools = reading.SpoolFolder(tmp_path).discover()
    sizes = []
    for spool in spools:
        take(spool, ended=True)
        sizes.append(file.stat().st_size)

    again = reading.SpoolFolder(tmp_path).discover()

    assert sizes[0] > 2 * WORKERS_RECORDS * RECORD.size > sizes[1]
    assert [spool.facts for spool in again] == [spool.facts for spool in spools]
    assert [take(spool, ended=True) for spool in again] == [[], []]


def test_who_was_forked_beside_the_workers_is_none_of_them(tmp_path: Path) -> None:
    parent = Parent(tmp_path)
    before = parent.fork()
    parent.forks.begin(1)
    worker, further = parent.fork(), parent.fork()
    parent.forks.end()
    after = parent.fork()

    assert [child.worker for child in (before, worker, further, after)] == [NO_WORKER, 0, NO_WORKER, NO_WORKER]
    told = {spool.stem: spool.facts.get("worker") for spool in reading.SpoolFolder(tmp_path).discover()}
    assert told == {before.stem: None, worker.stem: 0, further.stem: None, after.stem: None}


def test_nothing_is_made_where_no_worker_is_forked(tmp_path: Path) -> None:
    parent = Parent(tmp_path)
    parent.forks.begin(4)
    parent.forks.end()

    assert files(tmp_path) == set()


def test_on_a_full_disk_each_worker_has_files_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: str, size: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    parent = Parent(tmp_path)
    parent.forks.begin(2)
    with monkeypatch.context() as patched:
        patched.setattr(forking, "Mapped", full)
        children = [parent.fork(), parent.fork()]
    for child in children:
        child.write(range(3))

    spools = reading.SpoolFolder(tmp_path).discover()
    assert [spool.facts["worker"] for spool in spools] == [0, 1]
    assert [take(spool, ended=True) for spool in spools] == [[0, 1, 2]] * 2


def test_a_signal_handler_that_forks_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a program that forks in a handler, while its workers are prepared THEN all are who they are."""
    parent = Parent(tmp_path)
    forked: list[Child] = []

    def interrupted(path: str, size: int) -> Mapped:
        signal.raise_signal(signal.SIGUSR1)
        return Mapped(path, size)

    monkeypatch.setattr(forking, "Mapped", interrupted)
    before = signal.signal(signal.SIGUSR1, lambda *_: forked.append(parent.fork()))
    try:
        parent.forks.begin(1)
        worker = parent.fork()
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert [child.worker for child in (*forked, worker)] == [NO_WORKER, 0]


def test_a_signal_handler_that_forks_right_before_a_fork(tmp_path: Path) -> None:
    parent = Parent(tmp_path)
    forked: list[Child] = []
    parent.forks.begin(2)
    parent.interrupted.append(lambda: forked.append(parent.fork()))
    children = [parent.fork(), *forked, parent.fork()]
    for number, child in enumerate(children):
        child.write(range(number, number + 1))

    spools = {spool.stem: spool for spool in reading.SpoolFolder(tmp_path).discover()}

    assert [take(spools[child.stem]) for child in children] == [[0], [1], [2]]


def test_who_lives_on_although_he_seemed_to_have_ended_is_not_hurt(tmp_path: Path) -> None:
    """GIVEN workers that are taken for ended ones, as in a PID namespace of their own WHEN all that they have written
    until then has been read THEN they may write on."""
    parent = Parent(tmp_path)
    parent.forks.begin(1)
    worker = parent.fork()
    worker.write(range(5))
    (spool,) = reading.SpoolFolder(tmp_path).discover()
    assert take(spool, ended=True) == list(range(5))

    worker.write(range(5, 400))  # its first segment is no more; one that were cut short would kill this process

    assert take(spool, ended=True) == list(range(WORKERS_RECORDS, 400))


def test_a_file_that_somebody_removes_costs_what_was_in_it(tmp_path: Path) -> None:
    parent = Parent(tmp_path)
    parent.forks.begin(1)
    worker = parent.fork()
    worker.write(range(WORKERS_RECORDS + 3))
    (spool,) = reading.SpoolFolder(tmp_path).discover()
    next(tmp_path.glob("*.workers")).unlink()

    assert take(spool, ended=True) + take(spool, ended=True) == list(range(WORKERS_RECORDS, WORKERS_RECORDS + 3))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 8,
        WORKERS_HEAD.pack(2, 20) + b'{"names_of"',
        WORKERS_HEAD.pack(1, 2),
        WORKERS_HEAD.pack((1 << 32) - 1, 2) + b"{}" + b"\0" * 10_000,
        WORKERS_HEAD.pack(1, 100_000) + b"[" * 100_000 + b"\0" * 10_000,
    ],
)
def test_a_file_that_is_not_there_in_full_is_nothing_yet(tmp_path: Path, content: bytes) -> None:
    (tmp_path / f"{PARENT}.000001.workers").write_bytes(content)
    folder = reading.SpoolFolder(tmp_path)

    assert folder.discover() == []

    parent = Parent(tmp_path)
    (tmp_path / f"{PARENT}.000001.workers").unlink()
    parent.forks.begin(1)
    worker = parent.fork()
    assert [spool.stem for spool in folder.discover()] == [worker.stem]
