"""A run's processes shared out to a real Dask cluster: the same report, whoever makes it and whoever dies at it."""

import asyncio
import os
import pickle
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from ranks import STEP_MS, both, delay, noise, ranks_run
from recording import run, tracekit

from tracekit.advice import analyze
from tracekit.analysis.report import report_json
from tracekit.cluster import cluster
from tracekit.errors import TracekitError
from tracekit.run.reader import Run, open_run

distributed = pytest.importorskip("distributed")

# What `sbatch` does, as far as Dask goes: a copy of the script runs, and the job's number is told. Slurm is emulated.
SBATCH = """#!/bin/sh
cp "$1" "$SLURM_EMULATED/job"
setsid sh "$SLURM_EMULATED/job" >"$SLURM_EMULATED/out" 2>&1 &
echo $! >>"$SLURM_EMULATED/jobs"
echo "Submitted batch job $!"
"""
SCANCEL = '#!/bin/sh\nkill -TERM -- "-$1"\n'


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    late = both(delay("backward", 0.1 * STEP_MS, lambda step: 4), noise(0.01))
    return ranks_run(tmp_path_factory.mktemp("cluster") / "run", 6, 60, late, hosts=2).path


@pytest.fixture(scope="module")
def alone(path: Path) -> bytes:
    """The report that this process makes."""
    return report_json(analyze(open_run(path)))


@pytest.mark.long
def test_the_report_is_the_same_whoever_looks_at_the_processes(path: Path, alone: bytes) -> None:
    with cluster("local:2") as each:
        assert report_json(analyze(open_run(path), each)) == alone


def test_a_worker_that_dies_in_the_midst_changes_nothing(path: Path, alone: bytes) -> None:
    killed: list[int] = []
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as workers:
        client = distributed.Client(workers)

        def and_kill(each: Callable[..., Iterable[Any]]) -> Callable[..., Iterator[Any]]:
            def killing(function: Callable[..., Any], *items: Iterable[Any]) -> Iterator[Any]:
                for found in each(function, *items):
                    if not killed:
                        killed.append(next(iter(client.run(os.getpid).values())))
                        os.kill(killed[0], signal.SIGKILL)
                    yield found

            return killing

        with cluster(workers.scheduler_address) as each:
            assert report_json(analyze(open_run(path), and_kill(each))) == alone
        client.close()
    assert killed


@pytest.mark.long
def test_a_notebook_whose_event_loop_runs_has_workers_too(path: Path, alone: bytes) -> None:
    async def cell() -> bytes:
        workers = distributed.LocalCluster(n_workers=1, dashboard_address=":0")
        with workers, cluster(workers.scheduler_address) as each:
            return report_json(analyze(open_run(path), each))

    with ThreadPoolExecutor(1) as thread:  # this one may have a loop of the browser's
        assert thread.submit(asyncio.run, cell()).result() == alone


@pytest.mark.long
def test_the_command_takes_workers_of_its_own(path: Path, alone: bytes) -> None:
    own = tracekit("analyze", str(path), "--json", "--scheduler", "local:2")
    assert (own.returncode, own.stderr) == (0, "")
    assert own.stdout.encode().rstrip() == alone
    assert b'"rank": 4,\n' in alone  # who is late


@pytest.mark.long
def test_the_command_takes_workers_of_a_scheduler(path: Path, alone: bytes) -> None:
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as workers:
        given = tracekit("analyze", str(path), "--json", "--scheduler", workers.scheduler_address)
    assert (given.returncode, given.stderr) == (0, "")
    assert given.stdout.encode().rstrip() == alone


@pytest.mark.long
def test_jobs_of_a_queue_do_the_work_and_are_ended(path: Path, alone: bytes, tmp_path: Path) -> None:
    pytest.importorskip("dask_jobqueue")
    for name, text in (("sbatch", SBATCH), ("scancel", SCANCEL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(stat.S_IRWXU)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_EMULATED": str(tmp_path),
        "DASK_JOBQUEUE__SLURM__CORES": "2",
        "DASK_JOBQUEUE__SLURM__MEMORY": "2GB",
    }
    words = ["-m", "tracekit", "analyze", str(path), "--json", "--scheduler", "slurm"]
    done = run(sys.executable, *words, environment=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.encode().rstrip() == alone
    (job,) = (tmp_path / "jobs").read_text().split()
    assert not group_lives(int(job))


def group_lives(group: int) -> bool:
    """Whether processes of the group are there; those of a job have some seconds to end."""
    import time

    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.1)
    return True


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("nowhere", "none; give local, slurm"),
        pytest.param("local:0", "none; give local, slurm", marks=pytest.mark.long),
        pytest.param("127.0.0.1:1", "no cluster to be had", marks=pytest.mark.long),
        ("/no/such/scheduler.json", "No such file"),
    ],
)
def test_a_cluster_that_is_none_is_told_in_one_line(where: str, said: str, path: Path) -> None:
    done = tracekit("analyze", str(path), "--scheduler", where)
    assert done.returncode == 2
    assert said in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert done.stdout == ""


def test_a_port_at_which_nobody_listens_is_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracekit.cluster._PATIENCE_S", 1)
    with pytest.raises(TracekitError, match="no cluster to be had"), cluster("127.0.0.1:1"):
        pass


@pytest.mark.parametrize(
    "text", ["", *(pytest.param(each, marks=pytest.mark.long) for each in ("[1]", "{}", '{"address": 5}', "\xff"))]
)
def test_a_file_that_no_scheduler_has_written_is_told_in_one_line(text: str, path: Path, tmp_path: Path) -> None:
    file = tmp_path / "scheduler.json"
    file.write_bytes(text.encode("latin-1"))
    refused(tracekit("analyze", str(path), "--scheduler", str(file)), "no cluster to be had")


@pytest.mark.long
@pytest.mark.parametrize("answer", [None, b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"])
def test_a_port_at_which_no_scheduler_listens_is_told_in_one_line(answer: bytes | None, path: Path) -> None:
    """GIVEN something that never answers, or answers in another language."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    caller, _ = server.accept()
                    callers.append(caller)
                    if answer is not None:
                        caller.sendall(answer)

        callers: list[socket.socket] = []
        threading.Thread(target=serve, daemon=True).start()
        done = tracekit("analyze", str(path), "--scheduler", f"127.0.0.1:{server.getsockname()[1]}")
        server.shutdown(socket.SHUT_RDWR)
    refused(done, "no cluster to be had")


def test_a_scheduler_without_workers_is_told_in_one_line(path: Path) -> None:
    with distributed.LocalCluster(n_workers=0, dashboard_address=":0") as workers:
        refused(tracekit("analyze", str(path), "--scheduler", workers.scheduler_address), "it has no workers")


@pytest.mark.parametrize(
    ("sbatch", "said"),
    [
        (None, "no sbatch"),
        pytest.param("echo bad partition >&2; exit 1", "bad partition", marks=pytest.mark.long),
    ],
)
def test_a_queue_that_takes_no_job_is_told_in_one_line(
    sbatch: str | None, said: str, path: Path, tmp_path: Path
) -> None:
    pytest.importorskip("dask_jobqueue")
    if sbatch is not None:
        (tmp_path / "sbatch").write_text(f"#!/bin/sh\n{sbatch}\n")
        (tmp_path / "sbatch").chmod(stat.S_IRWXU)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "DASK_JOBQUEUE__SLURM__CORES": "1",
        "DASK_JOBQUEUE__SLURM__MEMORY": "1GB",
    }
    words = ["-m", "tracekit", "analyze", str(path), "--scheduler", "slurm"]
    refused(run(sys.executable, *words, environment=environment), said)


def test_a_folder_that_a_job_would_not_find_is_told_in_one_line(path: Path, tmp_path: Path) -> None:
    """GIVEN a folder with a space in its name THEN a job's script, which has it as it is, would name two others."""
    pytest.importorskip("dask_jobqueue")
    (tmp_path / "sbatch").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "sbatch").chmod(stat.S_IRWXU)
    (tmp_path / "my project").mkdir()
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "DASK_JOBQUEUE__SLURM__CORES": "1",
        "DASK_JOBQUEUE__SLURM__MEMORY": "1GB",
        "DASK_JOBQUEUE__SLURM__SHARED_TEMP_DIRECTORY": str(tmp_path / "my project"),
    }
    words = ["-m", "tracekit", "analyze", str(path), "--scheduler", "slurm"]
    refused(run(sys.executable, *words, environment=environment), "jobqueue.slurm.shared-temp-directory")
    assert list((tmp_path / "my project").iterdir()) == []


def refused(done: "subprocess.CompletedProcess[str]", said: str) -> None:
    assert done.returncode == 2, done.stderr
    assert said in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_what_fails_on_a_worker_is_told() -> None:
    with cluster("local:1") as each:
        for function, argument, said in ((os.stat, "/no/such/file", "No such file"), (bytes, 10**15, "MemoryError")):
            with pytest.raises(TracekitError, match=f"a worker failed at part 1 of 1 .*{said}"):
                list(each(function, [argument]))


def test_a_worker_that_sees_some_of_the_run_refuses(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    sent = pickle.dumps(open_run(copy).of(3))
    (part,) = copy.glob("tables/spans/node1-*.parquet")
    part.unlink()
    with pytest.raises(TracekitError, match="is not to be seen on"):
        pickle.loads(sent).table("spans")


def test_a_queue_without_its_configuration_is_told_in_one_line(path: Path) -> None:
    pytest.importorskip("dask_jobqueue")
    done = tracekit("analyze", str(path), "--scheduler", "slurm")
    assert done.returncode == 2
    assert "jobqueue.slurm" in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_a_worker_that_does_not_see_the_run_finds_nothing_in_it(path: Path, tmp_path: Path) -> None:
    """GIVEN a machine that has no such folder THEN it says so, and does not take the run for an empty one."""
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    sent = pickle.dumps(open_run(copy).of(3))
    there: Run = pickle.loads(sent)
    assert len(there.table("processes")) == 1
    shutil.rmtree(copy)
    with pytest.raises(TracekitError, match="is not to be seen on"):
        pickle.loads(sent).table("processes")
