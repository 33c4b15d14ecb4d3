"""Who the processes of a run are: their numbers, roles, ranks and parents."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from spooling import NOBODY, announce

from tracekit.record.pid_namespaces import NOT_SHOWN
from tracekit.record.processes import Process, Processes
from tracekit.record.spools import SpoolFolder

ROOT, CHILD, OTHER = NOBODY, NOBODY + 1, NOBODY + 2
TORCH: dict[str, object] = {"facts": {"torch": {"version": "2.13"}}}


@pytest.fixture(autouse=True)
def all_live(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The pids that live; tests take out what has ended."""
    living = {ROOT, CHILD, OTHER}
    monkeypatch.setattr("tracekit.record.processes.process_started", lambda pid: pid if pid in living else None)
    return living


@pytest.fixture(autouse=True)
def commands(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[str]]:
    """The words of living processes, by pid."""
    words: dict[int, list[str]] = {}
    monkeypatch.setattr("tracekit.record.processes._command_of", lambda pid: words.get(pid, []))
    return words


def status(**facts: object) -> dict[str, object]:
    return {"facts": {"torch": {}, **facts}}


def rows(processes: Processes) -> list[dict[str, Any]]:
    return processes.table("host", 1_000, 100).to_pylist()


def welcome(folder: Path, root: int | None = ROOT) -> Processes:
    processes = Processes(SpoolFolder(folder), root)
    processes.welcome()
    return processes


def test_command_itself_is_main_whether_python_or_not(tmp_path: Path) -> None:
    announce(tmp_path, ROOT, 5, parent=os.getpid(), command=["python", "a b.py"], status=TORCH)
    announce(tmp_path, CHILD, 7, parent=ROOT)
    (main, child) = rows(welcome(tmp_path))

    assert (main["process"], main["role"], main["parent"], main["pid"]) == (0, "main", -1, ROOT)
    assert (main["start_ns"], main["duration_ns"], main["command"]) == (1_005, 95, "python a b.py")
    assert (main["rank"], main["local_rank"], main["world_size"], main["worker"]) == (-1, -1, -1, -1)
    assert (child["process"], child["role"], child["parent"], child["recorded"]) == (1, "helper", 0, True)

    (tmp_path / "empty").mkdir()
    (shell,) = rows(welcome(tmp_path / "empty"))
    assert (shell["role"], shell["recorded"]) == ("main", False)


@pytest.mark.parametrize(
    ("environment", "facts", "role", "rank", "local_rank", "world_size", "attempt"),
    [
        ({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}, status(), "rank 3", 3, 1, 4, 0),
        ({"RANK": "0", "TORCHELASTIC_RESTART_COUNT": "2"}, status(), "rank 0", 0, -1, -1, 2),
        ({}, status(rank=2, world_size=8), "rank 2", 2, -1, 8, 0),
        ({"RANK": "0", "WORLD_SIZE": "1"}, status(rank=2, world_size=8), "rank 2", 2, -1, 8, 0),
        ({"RANK": "1"}, None, "helper", -1, -1, -1, 0),  # torchrun's own helpers never import torch
        ({"RANK": "1"}, status(worker=0), "loader worker 0", 1, -1, -1, 0),
        ({"RANK": "1", "LOCAL_RANK": "1"}, status(rank=1, worker=3), "loader worker 3", 1, 1, -1, 0),
        ({}, status(worker=2), "loader worker 2", -1, -1, -1, 0),
        ({"RANK": "", "LOCAL_RANK": "x"}, status(), "helper", -1, -1, -1, 0),
        ({"RANK": "--5", "TORCHELASTIC_RESTART_COUNT": "-"}, status(), "helper", -1, -1, -1, 0),
        ({"RANK": "1" * 30, "WORLD_SIZE": "9" * 5000}, status(), "helper", -1, -1, -1, 0),
        ({"RANK": "-1"}, status(rank="<b>", worker=[1]), "helper", -1, -1, -1, 0),
    ],
)
def test_roles(
    environment: dict[str, str],
    facts: dict[str, object] | None,
    role: str,
    rank: int,
    local_rank: int,
    world_size: int,
    attempt: int,
    tmp_path: Path,
) -> None:
    announce(tmp_path, CHILD, 5, parent=ROOT, environment=environment, status=facts)

    row = rows(welcome(tmp_path))[1]

    assert (row["role"], row["rank"], row["local_rank"]) == (role, rank, local_rank)
    assert (row["world_size"], row["attempt"]) == (world_size, attempt)


def test_rank_that_a_helper_inherits_is_not_its_own(tmp_path: Path) -> None:
    """GIVEN a rank and processes below it, all with RANK=1 and torch THEN only the first is rank 1."""
    rank = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
    announce(tmp_path, CHILD, 5, parent=ROOT, environment=rank, status=TORCH)
    announce(tmp_path, OTHER, 6, parent=CHILD, environment=rank, status=TORCH)
    announce(tmp_path, OTHER + 1, 7, parent=OTHER, environment=rank, status=status(worker=0))

    assert [row["role"] for row in rows(welcome(tmp_path))] == ["main", "rank 1", "helper", "loader worker 0"]
    assert [row["rank"] for row in rows(welcome(tmp_path))] == [-1, 1, -1, -1]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([{}, {}], [0, 1, 1]),
        ([{"SLURM_LOCALID": "0"}] * 2, [0, 1, 1]),  # that of the task whose program has spawned both
        ([{"SLURM_LOCALID": "2"}, {"SLURM_LOCALID": "3"}], [2, 3, 3]),
        ([{"SLURM_LOCALID": "0", "LOCAL_RANK": "0"}] * 2, [0, 0, 0]),  # two nodes that are one
    ],
)
def test_place_on_the_node(told: list[dict[str, str]], expected: list[int], tmp_path: Path) -> None:
    """GIVEN two ranks and a worker of the second, and what the environment says of their place."""
    for rank, environment in enumerate(told):
        facts = status(rank=4 + rank, world_size=8)
        announce(tmp_path, CHILD + rank, 5 + rank, parent=ROOT, environment=environment, status=facts)
    announce(tmp_path, OTHER + 1, 9, parent=OTHER, environment=told[1], status=status(rank=5, worker=0))

    assert [row["local_rank"] for row in rows(welcome(tmp_path))[1:]] == expected


def test_execv_ends_what_the_process_was(tmp_path: Path) -> None:
    """GIVEN a program that replaces itself THEN it is two processes of one pid, one after the other, both main."""
    announce(tmp_path, ROOT, 5, parent=os.getpid(), command=["python", "first.py"])
    announce(tmp_path, CHILD, 10, parent=ROOT)
    processes = welcome(tmp_path)
    announce(tmp_path, ROOT, 30, parent=os.getpid(), command=["python", "second.py"])
    announce(tmp_path, OTHER, 40, parent=ROOT)
    processes.welcome()

    first, child, second, grandchild = rows(processes)

    assert [first["command"], second["command"]] == ["python first.py", "python second.py"]
    assert [first["role"], second["role"]] == ["main", "main"]
    assert (first["duration_ns"], second["start_ns"], second["duration_ns"]) == (25, 1_030, 70)
    assert (child["parent"], second["parent"], grandchild["parent"]) == (0, -1, 2)
    assert [number for number, _ in processes.living()] == [1, 2, 3]


def test_process_that_was_seen_before_it_announced_itself_is_one(tmp_path: Path) -> None:
    processes = welcome(tmp_path)
    processes.see(CHILD, ROOT, 50)
    processes.see(CHILD, ROOT, 60)
    announce(tmp_path, CHILD, 45, parent=ROOT, command=["python", "x.py"])
    processes.welcome()

    assert [(row["pid"], row["start_ns"], row["recorded"]) for row in rows(processes)[1:]] == [(CHILD, 1_045, True)]


def test_pid_that_is_used_again_is_another_process(
    tmp_path: Path, all_live: set[int], commands: dict[int, list[str]]
) -> None:
    announce(tmp_path, CHILD, 5, parent=ROOT)
    processes = welcome(tmp_path)
    all_live.discard(CHILD)
    processes.check_alive(20)
    all_live.add(CHILD)
    commands[CHILD] = ["later"]
    processes.see(CHILD, ROOT, 30)

    _, first, later = rows(processes)

    assert (first["start_ns"], first["duration_ns"]) == (1_005, 15)
    assert (later["start_ns"], later["command"], later["recorded"]) == (1_030, "later", False)


def test_process_that_ended_before_it_was_read_has_ended(tmp_path: Path) -> None:
    stem = announce(tmp_path, OTHER + 1, 5, parent=ROOT)
    processes = welcome(tmp_path)
    processes.check_alive(9)

    assert processes.of(next(s for s in processes._spools.spools.values() if s.stem == stem)).ended == 9


def test_parents_are_not_sought_among_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Loader workers that come and go with every epoch are thousands in the end."""
    processes = Processes(SpoolFolder(tmp_path), ROOT)
    for number in range(100):
        processes.see(CHILD + number, ROOT if number % 2 else CHILD, number)
    asked: list[int] = []

    def is_child(process: Process, parent: Process) -> bool:
        asked.append(process.number)
        return process.parent_pid == parent.pid

    monkeypatch.setattr("tracekit.record.processes._is_child", is_child)

    assert [row["parent"] for row in rows(processes)] == [-1, -1, *[0, 1] * 49, 0]
    assert len(asked) <= 101


def test_words_that_are_no_text_are_kept_readable(tmp_path: Path, commands: dict[int, list[str]]) -> None:
    """Any bytes may stand in a command line; Python shows them as lone surrogates, which no file takes."""
    announce(tmp_path, ROOT, 5, command=["python", "caf\udce9.py", "a\nb"])
    processes = welcome(tmp_path)
    commands[CHILD] = ["\udcff"]
    processes.see(CHILD, ROOT, 7)

    assert [row["command"] for row in rows(processes)] == ["python caf\\udce9.py a\nb", "\\udcff"]
    assert all(word.encode() for process in processes.all for word in process.command)


def test_numbers_stay_through_a_salvage(tmp_path: Path) -> None:
    """GIVEN a ledger's processes WHEN another supervisor goes on THEN old ones keep their numbers, new ones follow."""
    for pid, start in ((ROOT, 5), (CHILD, 7)):
        announce(tmp_path, pid, start)
    before = welcome(tmp_path)
    before.see(OTHER, ROOT, 9)
    announce(tmp_path, OTHER + 1, 1)  # announced late, though it started first
    announce(tmp_path, OTHER, 20)  # was seen: known by its pid

    after = Processes(SpoolFolder(tmp_path), None, before.all)
    after.welcome()

    assert [(process.number, process.pid) for process in after.all] == [
        (0, ROOT),
        (1, CHILD),
        (2, OTHER),
        (3, OTHER + 1),
    ]
    assert {spool.pid: spool.process for spool in after._spools.spools.values()} == {
        ROOT: 0,
        CHILD: 1,
        OTHER: 2,
        OTHER + 1: 3,
    }


def test_salvage_without_a_ledger_numbers_by_start(tmp_path: Path) -> None:
    for pid, start in ((CHILD, 7), (ROOT, 5)):
        announce(tmp_path, pid, start)

    assert [row["role"] for row in rows(welcome(tmp_path, root=None))] == ["main", "helper"]


def test_no_process_at_all(tmp_path: Path) -> None:
    assert rows(welcome(tmp_path, root=None)) == []


def test_whoever_has_numbers_of_its_own_is_found_by_those_of_proc(
    all_live: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a program in a PID namespace, met in the process tree, and its workers, the last of which has ended before
    anybody looked, THEN each is one process under the number that it records, with its parent, and alive as long as
    the process that /proc shows is."""
    namespace = 7
    shown = {1: CHILD, 2: OTHER}
    monkeypatch.setattr("tracekit.record.processes.shown_as", lambda own: shown.get(own.pid, NOT_SHOWN))
    monkeypatch.setattr("tracekit.record.processes.parent_of", {CHILD: ROOT, OTHER: CHILD, NOT_SHOWN: NOT_SHOWN}.get)
    processes = Processes(SpoolFolder(tmp_path), ROOT)
    processes.see(CHILD, ROOT, 4)
    for pid, parent in ((1, 0), (2, 1), (3, 1), (4, 1)):
        announce(tmp_path, pid, 4 + pid, parent, pid_namespace=namespace)
    processes.welcome()
    processes.see(OTHER, CHILD, 9)

    told = [(row["pid"], row["parent"]) for row in rows(processes)]
    assert told == [(ROOT, -1), (1, 0), (2, 1), (3, 1), (4, 1)]
    processes.check_alive(10)
    assert processes.living() == [(0, ROOT), (1, CHILD), (2, OTHER)]
    all_live.remove(OTHER)
    processes.check_alive(11)
    assert [process.ended for process in processes.all] == [None, None, 11, 10, 10]


def test_process_is_alive_while_its_start_is_the_same(all_live: set[int]) -> None:
    assert Process(0, CHILD, ROOT, 1, ticks=CHILD).is_alive()
    assert not Process(0, CHILD, ROOT, 1, ticks=CHILD - 1).is_alive()
    assert not Process(0, CHILD, ROOT, 1, ticks=None).is_alive()
    assert not Process(0, CHILD, ROOT, 1, ticks=CHILD, ended=5).is_alive()


def test_who_cannot_be_asked_after_has_not_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a supervisor without a file descriptor left WHEN it checks who lives THEN nobody is taken for ended."""
    announce(tmp_path, CHILD, 7, parent=ROOT)
    processes = welcome(tmp_path)

    def without_descriptors(pid: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr("tracekit.record.processes.process_started", without_descriptors)
        processes.check_alive(9)
    assert [process.ended for process in processes.all] == [None, None]

    monkeypatch.setattr("tracekit.record.processes.process_started", lambda pid: None)
    processes.check_alive(10)
    assert [process.ended for process in processes.all] == [10, 10]
