"""Run directories: their names, who may make and replace them, and whether one is being recorded."""

import os
import re
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.errors import RunError
from tracekit.run.folder import (
    PROCESSES_OF_A_HOST,
    create_run,
    is_being_recorded,
    leave,
    list_runs,
    new_run_path,
    newest_run,
    process_started,
    take_part,
)
from tracekit.run.manifest import Manifest


def finished(path: Path) -> Path:
    """A run that holds a manifest and one table."""
    create_run(path)
    manifest = Manifest(host=os.uname().nodename, ended_ns=1)
    manifest.save(manifest.path_in(path))
    (path / "tables" / "spans").mkdir()
    return path


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "train.py", "--epochs", "3"], "train"),
        (["python", "-u", "/a b/my model.py"], "my_model"),
        (["python", "-m", "package.train", "-m", "x"], "package.train"),
        (["python", "-m", "pytest", "tests/test_x.py"], "test_x"),
        (["torchrun", "--nproc-per-node", "2", "train.py", "--config", "b.py"], "train"),
        (["/usr/bin/env"], "env"),
        (["python", "-m"], "python"),
        (["../../../etc/passwd"], "passwd"),
        ([".py"], "run"),
        (["/"], "run"),
        ([""], "run"),
        (["--", "..\n<b>%s\udcff.py"], "_b_s_"),
    ],
)
def test_run_is_named_by_its_script(command: list[str], name: str) -> None:
    assert re.fullmatch(re.escape(name) + r"-\d{8}T\d{6}Z-[0-9a-f]{6}", new_run_path(command, "runs").name)


@given(st.lists(st.text(st.characters(exclude_categories=())), min_size=1, max_size=5))
def test_name_of_any_command_is_one_plain_word(command: list[str]) -> None:
    path = new_run_path(command, "runs")

    assert path.parent == Path("runs")
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,100}", path.name)


def test_two_runs_of_one_moment_have_two_names() -> None:
    assert new_run_path(["a.py"]) != new_run_path(["a.py"])


def test_run_is_made_with_the_folders_above_it(tmp_path: Path) -> None:
    path = create_run(tmp_path / "a" / "b" / "run")

    assert (path / "manifest").is_dir() and (path / "tables").is_dir()
    assert list_runs(tmp_path / "a" / "b") == []  # no manifest yet


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("what", ["file", "folder", "link", "link to nothing", "link to a run"])
def test_what_is_no_run_is_never_replaced(what: str, force: bool, tmp_path: Path) -> None:
    path = tmp_path / "output"
    if what == "file":
        path.write_text("thesis")
    elif what == "folder":
        path.mkdir()
        (path / "thesis.txt").write_text("years of work")
    else:
        target = tmp_path / "elsewhere"
        if what == "link":
            target.mkdir()
        elif what == "link to a run":
            finished(target)
        path.symlink_to(target)
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises(RunError, match=r"--force|--output"):
        create_run(path, force)

    assert sorted(tmp_path.rglob("*")) == before


def test_force_replaces_a_finished_run_and_an_empty_folder(tmp_path: Path) -> None:
    run = finished(tmp_path / "run")
    (tmp_path / "empty").mkdir()

    with pytest.raises(RunError, match="exists already"):
        create_run(run)
    create_run(run, force=True)
    create_run(tmp_path / "empty", force=True)

    assert [child.name for child in sorted(run.iterdir())] == ["manifest", "tables"]
    assert not any((run / "tables").iterdir())


def test_force_leaves_a_run_that_is_being_recorded(tmp_path: Path) -> None:
    run = create_run(tmp_path / "run")
    pid = os.getpid()
    manifest = Manifest(host=os.uname().nodename, supervisor=pid, supervisor_started=process_started(pid) or 0)
    manifest.save(manifest.path_in(run))

    assert is_being_recorded(run)
    with pytest.raises(RunError, match="being recorded"):
        create_run(run, force=True)
    assert manifest.path_in(run).exists()


def test_other_process_with_the_pid_of_the_supervisor_is_not_it(tmp_path: Path) -> None:
    """GIVEN a supervisor that was killed and whose pid was given to another process THEN nobody records the run."""
    run = create_run(tmp_path / "run")
    started = process_started(os.getpid())
    assert started
    for pid, ticks, host, ended in [
        (os.getpid(), started - 1, os.uname().nodename, None),  # recycled
        (1 << 23, started, os.uname().nodename, None),  # no such process
        (0, 0, os.uname().nodename, None),  # never known
        (os.getpid(), started, "elsewhere", None),
        (os.getpid(), started, os.uname().nodename, 5),
    ]:
        Manifest(host=host, supervisor=pid, supervisor_started=ticks, ended_ns=ended).save(run / "manifest" / "a.json")
        assert not is_being_recorded(run)


def test_start_of_processes() -> None:
    assert process_started(os.getpid()) == process_started(os.getpid())
    assert process_started(1 << 23) is None


@pytest.mark.parametrize("existing", ["nothing", "finished", "empty"])
def test_one_of_many_creators_gets_the_folder(existing: str, tmp_path: Path) -> None:
    """The others are told by RunError, so that none records into the run of another and none goes unrecorded."""
    path = tmp_path / "run"
    if existing == "finished":
        finished(path)
    elif existing == "empty":
        path.mkdir()
    results: list[str] = []
    gate = threading.Barrier(8)

    def create() -> None:
        gate.wait()
        try:
            create_run(path, force=existing != "nothing")
            results.append("made")
        except RunError:
            results.append("refused")
        except OSError as error:
            results.append(repr(error))

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(results) == ["made"] + ["refused"] * 7
    assert (path / "manifest").is_dir() and (path / "tables").is_dir()


def test_run_taken_while_the_old_one_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = finished(tmp_path / "run")
    remove = shutil.rmtree

    def remove_and_be_overtaken(*arguments: Any, **options: Any) -> None:
        remove(*arguments, **options)
        path.mkdir()

    monkeypatch.setattr(shutil, "rmtree", remove_and_be_overtaken)

    with pytest.raises(RunError, match="--output"):
        create_run(path, force=True)


def test_run_in_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(OSError, match="file"):
        create_run(tmp_path / "file" / "run")


def test_newest_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="tracekit record"):
        newest_run(tmp_path / "none")
    for name, age in (("old", 100), ("new", 200)):
        os.utime(finished(tmp_path / name) / "manifest", (age, age))

    assert newest_run(tmp_path).name == "new"
    assert [path.name for path in list_runs(tmp_path)] == ["new", "old"]


def supervisor(job: str, node: str = "", ended: int | None = None) -> Manifest:
    node = node or os.uname().nodename
    return Manifest(host=node, node=node, job=job, started_ns=1, ended_ns=ended)


def test_supervisors_of_one_job_take_part_in_one_run(tmp_path: Path) -> None:
    path = tmp_path / "run"
    first, second, third = (supervisor("slurm 7.0", node) for node in ("a", "b", "b"))
    for each in (first, second, third):
        assert take_part(path, each) == path
    assert [each.host for each in (first, second, third)] == ["a", "b", "b.2"]
    numbers = [each.first_process for each in (first, second, third)]
    assert numbers == [0, PROCESSES_OF_A_HOST, 2 * PROCESSES_OF_A_HOST]
    leave(path, second)
    assert {each.name for each in (path / "manifest").iterdir()} == {"a.json", "b.2.json"}


def test_many_supervisors_at_once_get_a_name_and_numbers_each(tmp_path: Path) -> None:
    manifests = [supervisor("job", f"node{number}") for number in range(8)]
    threads = [threading.Thread(target=take_part, args=(tmp_path / "run", each)) for each in manifests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list((tmp_path / "run" / "manifest").glob("*.json"))) == 8
    assert len({each.first_process for each in manifests}) == 8


@pytest.mark.parametrize(("job", "node"), [("", ""), ("another", "b"), ("job", "a")])
def test_who_is_of_no_job_or_another_or_was_here_takes_no_part(job: str, node: str, tmp_path: Path) -> None:
    """The last one is a second run of the same job, after the first one has ended on this node."""
    path = tmp_path / "run"
    take_part(path, supervisor("job", "a", ended=5))
    with pytest.raises(RunError, match="exists already"):
        take_part(path, supervisor(job, node))
    replacing = supervisor(job, node or "a")
    take_part(path, replacing, force=True)
    assert (replacing.host, replacing.first_process) == (node or "a", 0)
    assert len(list((path / "manifest").iterdir())) == 1


def test_a_run_is_left_as_it_was_or_removed(tmp_path: Path) -> None:
    only = supervisor("")
    take_part(tmp_path / "run", only)
    leave(tmp_path / "run", only)
    assert not (tmp_path / "run").exists()


def test_a_run_whose_supervisor_was_killed_is_another_one(tmp_path: Path) -> None:
    """GIVEN a job whose supervisor here was killed THEN its next launch is no part of that run, and may take its place;
    that of a supervisor elsewhere, of which nobody knows whether it lives, may not be taken."""
    path = tmp_path / "run"
    killed = supervisor("job")
    killed.supervisor = 1 << 23  # no such process
    take_part(path, killed)
    with pytest.raises(RunError, match="exists already"):
        take_part(path, supervisor("job"))
    take_part(path, supervisor("job"), force=True)
    assert len(list((path / "manifest").iterdir())) == 1
    take_part(tmp_path / "other", supervisor("one", "a"))
    with pytest.raises(RunError, match="recorded on a, or was killed there; give both the same --job"):
        take_part(tmp_path / "other", supervisor("another"), force=True)
