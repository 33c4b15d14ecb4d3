"""A run's processes shared out to a real Dask cluster: the same report, whoever makes it and whoever dies at it."""

import os
import pickle
import shutil
import signal
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
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


def test_the_report_is_the_same_whoever_looks_at_the_processes(path: Path, alone: bytes) -> None:
    with cluster("local:2") as each:
        assert report_json(analyze(open_run(path), each)) == alone
    assert b'"rank": 4,\n' in alone  # who is late


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


def test_the_command_takes_workers_of_its_own_or_those_of_a_scheduler(path: Path, alone: bytes) -> None:
    own = tracekit("analyze", str(path), "--json", "--scheduler", "local:2")
    assert (own.returncode, own.stderr) == (0, "")
    assert own.stdout.encode().rstrip() == alone
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as workers:
        given = tracekit("analyze", str(path), "--json", "--scheduler", workers.scheduler_address)
    assert (given.returncode, given.stderr) == (0, "")
    assert given.stdout.encode().rstrip() == alone


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
        ("local:0", "none; give local, slurm"),
        ("127.0.0.1:1", "no cluster to be had"),
        ("/no/such/scheduler.json", "no such file"),
    ],
)
def test_a_cluster_that_is_none_is_told_in_one_line(where: str, said: str, path: Path) -> None:
    done = tracekit("analyze", str(path), "--scheduler", where)
    assert done.returncode == 2
    assert said in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert done.stdout == ""


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
