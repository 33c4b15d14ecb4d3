"""Programs and places that make recording hard: nothing of it may reach the program."""

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from recording import ENVIRONMENT, PROGRAMS, TRACEKIT, plain, record

from tracekit.analysis.steps import find_steps
from tracekit.run.reader import open_run

HOSTILE = [sys.executable, str(PROGRAMS / "hostile.py")]
LOOP = [sys.executable, str(PROGRAMS / "optimizer_loop.py")]
# A training with a loader that collects its garbage in the end: each collector of one process has something to do.
THEN_COLLECTS = "import gc, runpy, sys; runpy.run_path(sys.argv.pop(1), run_name='__main__'); gc.collect()"
TRAINING = [sys.executable, "-c", THEN_COLLECTS, str(PROGRAMS / "loader.py"), "none"]
# Its one rank is told of itself as torchrun would: without that launcher there is a process less to start.
OF_ONE_RANK = ["env", "RANK=0", "WORLD_SIZE=1", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=0"]
RANK = [*OF_ONE_RANK, sys.executable, str(PROGRAMS / "ddp.py")]
NAMES = {"line\nbreak", "100 %s", "\"quote'", "<img src=x onerror=alert(1)>", "über 你好"}


@cache
def _plain(*program: str) -> subprocess.CompletedProcess[str]:
    """A program without tracekit; one that ends alike every time is started once."""
    return plain(list(program))


@pytest.mark.parametrize(
    ("what", "code", "steps"),
    [
        ("leaves raises", 1, [10]),
        pytest.param("leaves", 0, [10], marks=pytest.mark.long),
        pytest.param("raises", 1, [10], marks=pytest.mark.long),
        pytest.param("execs", 0, [8, 10], marks=pytest.mark.long),
        pytest.param("exits", 5, [10], marks=pytest.mark.long),
    ],
)
def test_awkward_program_runs_as_without_us(what: str, code: int, steps: list[int], tmp_path: Path) -> None:
    """Also: hostile names of its layers survive the way."""
    without = plain([*HOSTILE, what])
    recorded = record([*HOSTILE, what], tmp_path / "run")

    assert without.returncode == recorded.code == code
    assert recorded.out == without.stdout
    assert recorded.err == without.stderr
    found = find_steps(recorded.run)
    assert [len(found.of(process)) for process in sorted(found.rule) if len(found.of(process))] == steps
    assert set(recorded.run.sql("SELECT DISTINCT name FROM spans WHERE kind = 'layer'")["name"]) >= NAMES


@pytest.mark.long
def test_forked_child_keeps_its_own_evidence(tmp_path: Path) -> None:
    without, recorded = plain([*HOSTILE, "forks"]), record([*HOSTILE, "forks"], tmp_path / "run")

    assert (recorded.out, recorded.err, recorded.code) == (without.stdout, without.stderr, 0)
    run = recorded.run
    rows = run.sql(
        "SELECT process, count(*) AS steps FROM spans WHERE name = 'optimizer' GROUP BY process ORDER BY process"
    )
    assert list(rows["steps"]) == [10, 3]
    assert list(run.sql("SELECT parent FROM processes ORDER BY process")["parent"]) == [-1, 0]


@pytest.mark.long
def test_a_program_that_may_write_little_hears_nothing_of_what_we_cannot(tmp_path: Path) -> None:
    """GIVEN a limit to the size of files that a trace of the profiler exceeds."""
    without = plain([*HOSTILE, "limits"])
    recorded = record([*HOSTILE, "limits"], tmp_path / "run", "--profile", "full")

    assert (recorded.out, recorded.err, recorded.code) == (without.stdout, without.stderr, 0)
    assert any("operators" in note.what for note in recorded.run.missing)


@pytest.mark.long
def test_saved_model_is_the_same_bytes(tmp_path: Path) -> None:
    """Nothing of tracekit is stored in the user's modules: not in a pickle either."""
    files = [tmp_path / folder / "model.pt" for folder in ("plain", "recorded")]
    for file in files:
        file.parent.mkdir()
    plain([*HOSTILE, "pickles", str(files[0])])
    record([*HOSTILE, "pickles", str(files[1])], tmp_path / "run")

    assert b"tracekit" not in files[1].read_bytes()
    assert files[0].read_bytes() == files[1].read_bytes()


def test_own_sitecustomize_is_started_and_its_output_kept(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import builtins\nbuiltins.from_site = 'hello from site'\n")
    environment = {**ENVIRONMENT, "PYTHONPATH": str(site)}
    script = (
        "import torch, sys\n"
        "print(from_site, sys.modules['sitecustomize'].__file__, [p for p in sys.path if 'bootstrap' in p])"
    )

    arguments = [*TRACEKIT, "record", "-q", "-o", str(tmp_path / "run"), "--", sys.executable, "-c", script]
    done = subprocess.run(arguments, capture_output=True, text=True, env=environment, timeout=120)

    assert done.stdout == f"hello from site {site}/sitecustomize.py []\n", done.stderr


@pytest.mark.parametrize("flag", ["-I", *(pytest.param(each, marks=pytest.mark.long) for each in ("-E", "-IB"))])
def test_python_that_cannot_be_reached_is_named(flag: str, tmp_path: Path) -> None:
    recorded = record([sys.executable, flag, "-c", "print('ran')"], tmp_path / "run")

    assert (recorded.code, recorded.out) == (0, "ran\n")
    assert any(flag in note.why for note in recorded.run.missing)


def test_two_recordings_cannot_share_a_folder(tmp_path: Path) -> None:
    first = record(["true"], tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in first.path.rglob("*")}

    second = record(["sh", "-c", "echo ran"], tmp_path / "run")

    assert (second.code, second.out) == (2, "")
    assert "--force" in second.err and len(second.err.splitlines()) == 1
    assert before == {path: path.stat().st_mtime_ns for path in first.path.rglob("*")}


def test_force_replaces_a_run_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "thesis.txt").write_text("years of work")

    refused = record(["true"], tmp_path / "data", "--force")
    record(["true"], tmp_path / "run")
    replaced = record(["sh", "-c", "exit 6"], tmp_path / "run", "--force")

    assert refused.code == 2 and (tmp_path / "data" / "thesis.txt").exists()
    assert replaced.code == 6 == replaced.run.manifest.exit_code


def test_output_that_cannot_be_written_does_not_stop_the_program(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")

    done = plain([*TRACEKIT, "record", "-o", str(tmp_path / "file" / "run"), "--", "sh", "-c", "echo ran; exit 3"])

    assert (done.returncode, done.stdout) == (3, "ran\n")
    assert "unrecorded" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
@pytest.mark.parametrize("full", ["output", "spool"])
def test_full_disk_does_not_stop_the_program(full: str, tmp_path: Path) -> None:
    """GIVEN 300 KB of disk for run or spool WHEN it fills THEN the program ends as ever and the loss is said."""
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(small)], check=False).returncode:
        pytest.skip("this machine does not let us mount")
    try:
        output = small / "run" if full == "output" else tmp_path / "run"
        environment = {**ENVIRONMENT, "TMPDIR": str(small) if full == "spool" else str(tmp_path)}
        arguments = [*TRACEKIT, "record", "-o", str(output), "--profile", "full", "--", *LOOP]
        done = subprocess.run(arguments, capture_output=True, text=True, env=environment, timeout=120)
        without = _plain(*LOOP)
    finally:
        subprocess.run(["umount", str(small)], check=True)

    assert (done.returncode, done.stdout) == (0, without.stdout)
    assert "LOST" in done.stderr or "records" in done.stderr or "not captured" in done.stderr


OF_A_LOOP = ["steps", "layers", "loading", "conditions", "counters"]
COLLECTORS = [*OF_A_LOOP, "operators", "collectives", "garbage"]  # operators are looked at where there are steps
IN_PROGRAM_AND_BESIDE = ["layers", "counters"]  # all collectors of either are installed by the same lines


@pytest.mark.parametrize(
    ("faulty", "when"),
    [
        (["operators", "garbage"], "event"),
        pytest.param(["collectives"], "event", marks=pytest.mark.long),
        (OF_A_LOOP, "event"),
        (IN_PROGRAM_AND_BESIDE, "install"),
        *(pytest.param([each], "event", marks=pytest.mark.long) for each in COLLECTORS if each != "collectives"),
        *(pytest.param([each], "install", marks=pytest.mark.long) for each in COLLECTORS),
    ],
)
def test_collectors_that_fail_switch_themselves_off(faulty: list[str], when: str, tmp_path: Path) -> None:
    """GIVEN collectors with a fault in their start or in all they do THEN the program ends as ever, and each is named
    and no other."""
    program = RANK if faulty == ["collectives"] else TRAINING
    plugin = tmp_path / "plugin"
    plugin.mkdir()
    shutil.copy(Path(__file__).parent / "planted_faults.py", plugin / "sitecustomize.py")
    environment = {**ENVIRONMENT, "PYTHONPATH": str(plugin), "PLANTED_FAULT": f"{','.join(faulty)}:{when}"}

    arguments = [*TRACEKIT, "record", "-q", "-o", str(tmp_path / "run"), "--", *program]
    done = subprocess.run(arguments, capture_output=True, text=True, env=environment, timeout=120)
    without = _plain(*program)

    assert (done.returncode, done.stdout) == (without.returncode, without.stdout), done.stderr
    notes = [note for note in open_run(tmp_path / "run").missing if "planted" in note.why]
    named = [[each for each in COLLECTORS if each in note.what] for note in notes]
    assert all(named) and {each for names in named for each in names} == set(faulty)


def test_a_job_that_stands_back_is_recorded_and_stands_back(tmp_path: Path) -> None:
    """GIVEN a niceness beyond that with which we record THEN no thread of ours goes before it."""
    code = (
        "import os, time\n"
        "time.sleep(2)\n"
        "tasks = [f'/proc/{os.getppid()}/task/{name}/stat' for name in os.listdir(f'/proc/{os.getppid()}/task')]\n"
        "print(*sorted({open(task).read().rpartition(')')[2].split()[16] for task in tasks}))"
    )
    arguments = ["nice", "-n", "15", *TRACEKIT, "record", "-q", "-o", str(tmp_path / "run"), "--", sys.executable, "-c"]
    done = subprocess.run([*arguments, code], capture_output=True, text=True, env=ENVIRONMENT, timeout=120)

    assert (done.stdout, done.stderr, done.returncode) == ("15\n", "", 0)
    assert not [note for note in open_run(tmp_path / "run").missing if note.lost]
