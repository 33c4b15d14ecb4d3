"""Under which number /proc shows a process that has another one for itself."""

import errno
import os
import subprocess

import pytest
from spooling import NOBODY

from tracekit.record.pid_namespaces import NOT_SHOWN, OwnNumbers, own_numbers, shown, shown_as
from tracekit.record.tree import parent_of

OURS = os.stat("/proc/self/ns/pid").st_ino
OTHER = OURS + 1


def test_who_is_in_our_namespace_has_no_numbers_of_its_own() -> None:
    assert own_numbers({"pid": 5, "parent": 1, "pid_namespace": OURS}) is None
    for not_known in ({}, {"pid_namespace": 0}, {"pid_namespace": "7"}, {"pid_namespace": None}):
        assert own_numbers({"pid": 5, "parent": 1, **not_known}) is None
    assert own_numbers({"pid": 5, "parent": 1, "pid_namespace": OTHER}) == (OTHER, 5, 1)


def test_a_process_is_found_by_its_namespace_and_its_number_there() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        assert shown_as(OwnNumbers(OURS, child.pid, os.getpid())) == child.pid
        assert shown_as(OwnNumbers(OTHER, child.pid, os.getpid())) == NOT_SHOWN
        assert parent_of(child.pid) == os.getpid()
    finally:
        child.kill()
        child.wait()
    assert shown_as(OwnNumbers(OURS, child.pid, os.getpid())) == NOT_SHOWN
    assert shown(child.pid) == child.pid  # nobody has looked
    assert parent_of(child.pid) == parent_of(NOBODY) == parent_of(NOT_SHOWN) == NOT_SHOWN


def test_where_proc_is_that_of_another_namespace_we_are_looked_for_in_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracekit.record.pid_namespaces.os.readlink", lambda path: str(NOBODY))
    assert shown(os.getpid()) == os.getpid()  # as the innermost number that it is shown with
    assert shown(NOBODY) == NOT_SHOWN
    assert own_numbers({"pid": 5, "parent": 1, "pid_namespace": OURS}) == (OURS, 5, 1)


def test_who_cannot_look_finds_nobody_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_descriptors(path: str) -> list[str]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("tracekit.record.pid_namespaces.os.listdir", without_descriptors)
    assert shown_as(OwnNumbers(OURS, os.getpid(), os.getppid())) == NOT_SHOWN
    monkeypatch.setattr("tracekit.record.pid_namespaces.os.readlink", lambda path: str(NOBODY))
    assert shown(os.getpid()) == NOT_SHOWN
    monkeypatch.setattr("tracekit.record.pid_namespaces.os.stat", without_descriptors)
    assert shown(os.getpid()) == NOT_SHOWN
