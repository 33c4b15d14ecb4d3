"""Which processes are below one."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tracekit.record.processes import _command_of
from tracekit.record.tree import descendants

PROGRAM = """
import subprocess, sys, threading
def start():
    child = subprocess.Popen(["sh", "-c", "sleep 60 & sleep 60 & echo; wait"], stdout=subprocess.PIPE)
    child.stdout.readline()  # it has started its own
    children.append(child)
children = []
start()
thread = threading.Thread(target=lambda: (start(), ended.wait()))
ended = threading.Event()
thread.start()
while len(children) < 2: pass
print(flush=True)
sys.stdin.read()
for child in children:
    child.kill()
ended.set()
"""


@pytest.fixture
def program() -> Iterator[psutil.Process]:
    """A program whose threads have each started a shell with two children."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as started:
        assert started.stdout is not None
        started.stdout.readline()
        below = psutil.Process(started.pid)
        yield below
        for each in below.children(recursive=True):
            each.kill()


def test_children_of_all_threads_and_theirs_are_found(program: psutil.Process) -> None:
    expected = {(child.pid, child.ppid()) for child in program.children(recursive=True)}
    assert len(expected) == 6
    found = descendants(program.pid)
    assert set(found) == expected and len(found) == 6
    seen = {program.pid}
    for pid, parent in found:  # a parent before its children
        assert parent in seen
        seen.add(pid)
    assert [_command_of(pid) for pid, parent in found if parent == program.pid] == [
        ["sh", "-c", "sleep 60 & sleep 60 & echo; wait"]
    ] * 2


def test_a_kernel_that_keeps_no_lists(program: psutil.Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "exists", lambda path: False)
    assert set(descendants(program.pid)) == {(child.pid, child.ppid()) for child in program.children(recursive=True)}


def test_a_process_that_is_gone_has_none() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert descendants(ended.pid) == [] and _command_of(ended.pid) == []
