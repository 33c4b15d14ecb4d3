"""Run directories: their names, who may make and replace them, and whether one is being recorded."""

import contextlib
import errno
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.cli.record import _job_here
from tracekit.errors import RunError
from tracekit.record.salvage import salvage
from tracekit.run import folder
from tracekit.run.folder import (
    PROCESSES_OF_A_HOST,
    create_run,
    hold,
    is_being_recorded,
    leave,
    list_runs,
    new_run_path,
    newest_run,
    process_started,
    still_records,
    take_part,
    whose_pids,
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


def manifests_in(path: Path) -> set[str]:
    return {each.name for each in (path / "manifest").glob("*.json")}


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
    assert manifests_in(path) == {"a.json", "b.2.json"}


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
    assert manifests_in(path) == {f"{node or 'a'}.json"}


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
    assert len(manifests_in(path)) == 1
    take_part(tmp_path / "other", supervisor("one", "a"))
    with pytest.raises(RunError, match="recorded on a, or was killed there; give both the same --job"):
        take_part(tmp_path / "other", supervisor("another"), force=True)


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shared file system whose folders are locked on one node only, as those of NFS and Lustre."""
    monkeypatch.setattr(folder, "_alone_in", lambda path: contextlib.nullcontext())


@pytest.mark.usefixtures("no_locks")
def test_nodes_that_do_not_see_each_other_yet_get_a_name_and_numbers_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN three nodes, two of one name, that all have seen none but the first supervisor."""
    path = tmp_path / "run"
    first = supervisor("job", "a")
    take_part(path, first)
    monkeypatch.setattr(folder, "_supervisors", lambda path: [first])
    others = [supervisor("job", node) for node in ("b", "c", "c")]
    for each in others:
        take_part(path, each)
    assert [each.first_process for each in others] == [number * PROCESSES_OF_A_HOST for number in (1, 2, 3)]
    assert manifests_in(path) == {"a.json", "b.json", "c.json", "c.2.json"}


def test_a_run_of_an_older_tracekit_is_taken_part_in(tmp_path: Path) -> None:
    """GIVEN one whose supervisors have claimed no numbers, nor their names."""
    path = create_run(tmp_path / "run")
    for number, node in enumerate(("a", "b")):
        manifest = supervisor("job", node)
        manifest.first_process = number * PROCESSES_OF_A_HOST
        manifest.save(manifest.path_in(path))
    newer = supervisor("job", "b")
    take_part(path, newer)
    assert (newer.host, newer.first_process) == ("b.2", 2 * PROCESSES_OF_A_HOST)


@pytest.mark.usefixtures("no_locks")
@pytest.mark.parametrize("there", ["nothing", "an empty folder", "a run"])
def test_many_nodes_at_once_make_one_run(there: str, tmp_path: Path) -> None:
    """Also where each is to replace what is there: one does, and nobody removes what another has just made."""
    path = tmp_path / "run"
    if there == "a run":
        finished(path)
    elif there == "an empty folder":
        path.mkdir()
    manifests = [supervisor("job", f"node{number}") for number in range(8)]
    failed: list[BaseException] = []
    gate = threading.Barrier(8)

    def take(manifest: Manifest) -> None:
        gate.wait()
        try:
            take_part(path, manifest, force=there != "nothing")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=take, args=(each,)) for each in manifests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert manifests_in(path) == {f"node{number}.json" for number in range(8)}
    assert {each.first_process // PROCESSES_OF_A_HOST for each in manifests} == set(range(8))
    assert [each.name for each in tmp_path.iterdir()] == ["run"]


TAKE_PART = """
import contextlib, sys, time
from pathlib import Path
from tracekit.run import folder
from tracekit.run.manifest import Manifest
folder._alone_in = lambda path: contextlib.nullcontext()
print("ready", flush=True)
sys.stdin.readline()
for number in range(20):
    manifest = Manifest(host=sys.argv[2], node=sys.argv[2], job=f"job {number}", started_ns=time.time_ns())
    folder.take_part(Path(sys.argv[1], str(number)), manifest)
    print(number, manifest.host, manifest.first_process)
"""


def test_processes_that_start_at_once_share_runs_and_no_numbers(tmp_path: Path) -> None:
    """Each stands for a node, and two have the same name; nothing but the shared folder is between them."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", TAKE_PART, str(tmp_path), node],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for node in ("a", "b", "c", "c")
    ]  # fmt: skip
    for each in started:
        assert each.stdout is not None and each.stdout.readline() == "ready\n"
    for each in started:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()
    told = [line.split() for each in started for line in each.communicate(timeout=60)[0].splitlines()]
    assert [each.returncode for each in started] == [0] * 4
    for run in map(str, range(20)):
        numbers = {first for number, _, first in told if number == run}
        assert numbers == {str(slot * PROCESSES_OF_A_HOST) for slot in range(4)}
        assert manifests_in(tmp_path / run) == {"a.json", "b.json", "c.json", "c.2.json"}


@pytest.mark.usefixtures("no_locks")
def test_a_run_that_another_node_made_meanwhile_is_taken_part_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a node that has seen no run, and finds one when it is to make it."""
    path = tmp_path / "run"
    look = folder._supervisors

    def look_and_be_overtaken(path: Path) -> list[Manifest]:
        monkeypatch.setattr(folder, "_supervisors", look)
        take_part(path, supervisor("job", "a"))
        return []

    monkeypatch.setattr(folder, "_supervisors", look_and_be_overtaken)
    second = supervisor("job", "b")
    take_part(path, second)
    assert second.first_process == PROCESSES_OF_A_HOST
    assert manifests_in(path) == {"a.json", "b.json"}


@pytest.mark.usefixtures("no_locks")
def test_what_another_node_put_in_the_place_of_a_run_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN one that is about to replace a run, WHEN another one does so, and records."""
    path = finished(tmp_path / "run")
    refuse = folder._refuse_to_replace

    def look_and_be_overtaken(path: Path, job: str) -> None:
        monkeypatch.setattr(folder, "_refuse_to_replace", refuse)
        refuse(path, job)
        take_part(path, supervisor("job", "a"), force=True)

    monkeypatch.setattr(folder, "_refuse_to_replace", look_and_be_overtaken)
    with pytest.raises(RunError, match="is being recorded on a"):
        take_part(path, supervisor("another", "b"), force=True)
    assert manifests_in(path) == {"a.json"}
    assert not (path / folder._BEING_REPLACED).exists()


def test_a_file_system_that_renames_no_folders_has_runs_replaced_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = finished(tmp_path / "run")

    def cannot(source: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link", str(source))

    monkeypatch.setattr(os, "rename", cannot)
    create_run(path, force=True)
    assert list((path / "manifest").iterdir()) == [] == list((path / "tables").iterdir())


def test_one_of_a_job_that_recorded_nothing_leaves_the_others_alone(tmp_path: Path) -> None:
    """Also who has a number there and no manifest yet."""
    path = tmp_path / "run"
    first = supervisor("job", "a")
    take_part(path, first)
    (path / "manifest" / ".slot-1").mkdir()  # of one that is just starting
    leave(path, first)
    assert sorted(path.rglob("*")) == [path / "manifest", path / "manifest" / ".slot-1", path / "tables"]


@pytest.mark.parametrize("joins", [False, True])
def test_a_disk_that_is_full_at_the_start_leaves_nothing(
    joins: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    if joins:
        take_part(path, supervisor("job", "a"))
    before = sorted(tmp_path.rglob("*"))

    def full(manifest: Manifest, path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "save", full)
        with pytest.raises(OSError, match="No space"):
            take_part(path, supervisor("job", "b"))
    assert sorted(tmp_path.rglob("*")) == before
    take_part(path, supervisor("job", "b"))
    assert "b.json" in manifests_in(path)


def elsewhere(spool: Path) -> Manifest:
    """Of a supervisor on this node in another PID namespace, where its number is not one of ours."""
    manifest = supervisor("job")
    manifest.boot, manifest.pid_namespace = whose_pids()
    manifest.pid_namespace += 1
    manifest.run, manifest.supervisor, manifest.spool = "run", 1 << 23, str(spool)
    return manifest


def test_a_supervisor_in_another_pid_namespace_may_live(tmp_path: Path) -> None:
    """GIVEN a container with the name of this node, whose files are not to be seen here, THEN nobody takes what it
    records for the rest of a killed one."""
    path = tmp_path / "run"
    container = elsewhere(tmp_path / "not here")
    take_part(path, container)
    assert still_records(container) is None
    assert salvage(path) == [] and Manifest.load(container.path_in(path)) == container
    with pytest.raises(RunError, match="is being recorded on"):
        take_part(path, supervisor(""), force=True)
    beside = supervisor("job")
    take_part(path, beside)
    assert beside.first_process == PROCESSES_OF_A_HOST


def test_who_holds_its_spool_lives_and_who_does_not_was_killed(tmp_path: Path) -> None:
    path, spool = tmp_path / "run", tmp_path / "spool"
    spool.mkdir()
    container = elsewhere(spool)
    take_part(path, container)
    assert still_records(container) is None  # it is just starting
    (spool / "session.json").write_text('{"run": "run"}')
    with hold(spool):
        assert still_records(container) is True
        (said,) = salvage(path)
        assert "is being recorded right now" in said and spool.is_dir()
        unknown = elsewhere(spool)  # as where its /proc was that of the namespace before
        unknown.boot, unknown.pid_namespace = "", 0
        assert still_records(unknown) is True
    assert still_records(container) is False


@pytest.mark.parametrize(
    ("boot", "further", "lives"),
    [(None, 0, False), (None, 1, None), ("another", 1, False), ("another", 0, False), ("", 0, False)],
)
def test_a_number_means_a_process_of_one_boot_and_one_namespace(
    boot: str | None, further: int, lives: bool | None, tmp_path: Path
) -> None:
    """GIVEN that nobody has the number here; without a boot, as older manifests are, it is taken for one of ours."""
    manifest = elsewhere(tmp_path / "not here")
    ours = whose_pids()
    manifest.boot, manifest.pid_namespace = ours[0] if boot is None else boot, ours[1] + further
    assert still_records(manifest) is lives


def test_a_number_that_stands_for_itself_in_no_proc_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN that /proc is that of the namespace before, as `unshare --pid` leaves it."""
    manifest = elsewhere(tmp_path / "not here")
    monkeypatch.setattr(os, "readlink", lambda path: "1")
    assert whose_pids() == ("", 0)
    assert still_records(manifest) is None


@pytest.mark.parametrize(
    ("before", "now", "is_over"),
    [
        ("slurm 7.0", "slurm 7.0 attempt 1", True),
        ("slurm 7.0 attempt 1", "slurm 7.0 attempt 10", True),
        ("slurm 7.0 attempt 2", "slurm 7.0 attempt 1", False),
        ("slurm 8.0", "slurm 7.0 attempt 1", False),
        ("", "", False),
        ("slurm 7.0", "slurm 7.0", False),
        ("slurm 7.0 attempt x", "slurm 7.0 attempt x", False),
    ],
)
def test_a_requeued_job_may_replace_what_was_killed_elsewhere(
    before: str, now: str, is_over: bool, tmp_path: Path
) -> None:
    """GIVEN a run whose supervisor was killed on another node, with its job WHEN that is started again here with
    --force THEN it takes its place: a job that starts again is over."""
    take_part(tmp_path / "run", supervisor(before, "a"))
    with contextlib.nullcontext() if is_over else pytest.raises(RunError):
        folder._create(tmp_path / "run", force=True, job=now)
    assert manifests_in(tmp_path / "run") == (set() if is_over else {"a.json"})


def test_the_next_attempt_of_a_job_takes_no_part_in_the_run_of_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a batch system that gives a requeued job its old number, and nodes that were no part of the first attempt;
    who starts a moment late, after a short program has ended on other nodes, is no next attempt."""
    for name in ("SLURM_RESTART_COUNT", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    first = _job_here()
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert _job_here().startswith(first) and _job_here() != first
    path = tmp_path / "run"
    second = 10**9
    take_part(path, supervisor("pbs 7", "a", ended=5 * second))
    for started, node in ((10 * second, "b"), (100 * second, "c")):
        late = supervisor("pbs 7", node, ended=6 * second)
        late.started_ns = started
        if node == "b":
            take_part(path, late)
        else:
            with pytest.raises(RunError, match=r"exists already.*as after a requeue, needs one"):
                take_part(path, late)
    assert manifests_in(path) == {"a.json", "b.json"}
