"""Programs that use torch's data loading in ways that nobody foresaw."""

import subprocess
import sys
from pathlib import Path

import pytest
from recording import ENVIRONMENT, TRACEKIT, plain, record, run, tracekit

from tracekit.advice import analyze
from tracekit.record.salvage import salvage
from tracekit.run.reader import Run, open_run

ODD = """
import functools, pickle, weakref
import numpy as np, torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data._utils import fetch

of_torch = fetch._MapDatasetFetcher.fetch

@functools.wraps(of_torch)
def of_ours(self, indices):
    assert type(indices) is list and indices[0] == int(indices[0])
    return of_torch(self, indices)

def total(loader):
    return sum(float(batch.sum()) for batch, in loader)

if __name__ == "__main__":
    data = TensorDataset(torch.arange(24.0))
    for epoch in range(3):  # indices that do not compare to a truth
        print(total(DataLoader(data, batch_sampler=torch.arange(24).split(6))))
    fetch._MapDatasetFetcher.fetch = of_ours
    for workers in (0, 1):
        print(total(DataLoader(data, 4, num_workers=workers)))
    print(total(DataLoader(data, 4, shuffle=True, num_workers=np.int64(2), prefetch_factor=np.int64(2))))
    print(total(pickle.loads(pickle.dumps(DataLoader(data, 6)))))
    left = TensorDataset(torch.arange(24.0))
    loader = DataLoader(left, 4, shuffle=True)
    next(iter(loader))
    gone = weakref.ref(left)
    del loader, left
    print(gone() is None)
"""


@pytest.mark.long
def test_odd_programs_go_on_as_without_us_and_their_last_loader_is_still_seen(tmp_path: Path) -> None:
    """GIVEN batches of arrays, a `fetch` of the program's own, counts of numpy, a loader that was pickled, and an epoch
    that is left early THEN the program does as without us, and what it has let go of is gone."""
    program = tmp_path / "odd.py"
    program.write_text(ODD)
    alone = plain([sys.executable, str(program)])
    done = record([sys.executable, str(program)], tmp_path / "run")
    assert alone.stdout.splitlines()[-1] == "True"
    assert (done.out, done.code) == (alone.stdout, 0), done.err
    loaders = done.run.manifest.loaders
    assert "loader" in loaders and loaders["loader"].predictability == "none"
    assert [each.num_workers for each in loaders.values()].count(2) == 1
    assert [each.made for each in loaders.values()].count(0) == 1
    assert len(done.run.table("batches")["loader"].unique()) == len(loaders) - 1  # but for what was pickled


DAEMON = """
import multiprocessing
import torch
from torch.utils.data import DataLoader, TensorDataset

def trains():
    for batch, in DataLoader(TensorDataset(torch.arange(240.0)), 4):
        pass
    print(float(batch.sum()), flush=True)

if __name__ == "__main__":
    process = multiprocessing.get_context("fork").Process(target=trains, daemon=True)
    process.start()
    process.join()
    raise SystemExit(process.exitcode)
"""


def test_a_daemon_gets_no_workers(tmp_path: Path) -> None:
    """GIVEN a process that may have no children, and settings that give its loader two THEN it goes on without."""
    program, settings = tmp_path / "daemon.py", tmp_path / "settings.toml"
    program.write_text(DAEMON)
    settings.write_text("[loader.loader]\nnum_workers = 2\n")
    alone = plain([sys.executable, str(program)])
    applied = tracekit("apply", str(settings), "--", sys.executable, str(program))
    assert (applied.stdout, applied.returncode) == (alone.stdout, 0), applied.stderr
    assert "daemon of multiprocessing" in applied.stderr


ENDS_AT_ONCE = """
import os
import torch
from torch.utils.data import DataLoader, TensorDataset

batch, = next(iter(DataLoader(TensorDataset(torch.arange(240.0)), 4, num_workers=2)))
print(float(batch.sum()), flush=True)
os._exit(7)
"""


def test_a_loader_of_which_only_batches_are_left_gets_no_settings(tmp_path: Path) -> None:
    """GIVEN a program that is gone before its loader's settings are kept THEN none are advised, and that is said."""
    recorded = record([sys.executable, "-c", ENDS_AT_ONCE], tmp_path / "run")
    report = analyze(recorded.run)
    assert recorded.code == 7 and [each.batches for each in report.loaders] == [1]
    assert not [each for each in report.settings if each.name.startswith("loader.")]
    assert "was not seen as it was made" in report.advice


ODD_SETTINGS = """
import torch
from torch.utils.data import DataLoader, TensorDataset

numbers = TensorDataset(torch.arange(240.0))
many = DataLoader(numbers, 4, num_workers=1, prefetch_factor=2_000_000)
loader = DataLoader(numbers, 4)
print(*(sum(float(batch.sum()) for batch, in each) for each in (many, loader)))
loader.num_workers = -3
try:
    iter(loader)
except AssertionError:
    print("no such number")
"""


@pytest.mark.long
def test_settings_that_hardly_any_loader_has_are_kept(tmp_path: Path) -> None:
    """GIVEN a loader with more batches ahead than there are, and one whose workers are set to less than none WHEN
    recorded and explained THEN all is as without us, and what both were told to have is known."""
    program = tmp_path / "program.py"
    program.write_text(ODD_SETTINGS)
    recorded = record([sys.executable, str(program)], tmp_path / "run")
    assert (recorded.out, recorded.code) == (plain([sys.executable, str(program)]).stdout, 0), recorded.err
    told = {(each.num_workers, each.prefetch_factor) for each in recorded.run.manifest.loaders.values()}
    assert told == {(1, 2_000_000), (-3, None)}
    assert tracekit("analyze", str(tmp_path / "run")).returncode == 0


SETS_LATER = """
import torch
from torch.utils.data import DataLoader, TensorDataset

for workers in (1, 2):
    loader = DataLoader(TensorDataset(torch.arange(24.0)), 4, num_workers=1)
    loader.num_workers = workers
    print(sum(float(batch.sum()) for batch, in loader))
"""


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.long), 3])
def test_settings_that_a_program_sets_over_are_told_as_refused(workers: int, tmp_path: Path) -> None:
    """GIVEN a program that sets the workers of its loader once more when it is there THEN those that it was given count
    as refused where they are others, and nowhere else."""
    program, settings = tmp_path / "program.py", tmp_path / "settings.toml"
    program.write_text(SETS_LATER)
    settings.write_text(f"[loader.loader]\nnum_workers = {workers}\n")
    done = tracekit("apply", str(settings), "--", sys.executable, str(program))
    assert (done.stdout, done.returncode) == ("276.0\n" * 2, 0), done.stderr
    assert done.stderr.count("the program sets num_workers of it afterwards") == 1


# The processes have numbers of their own, which no process has outside.
ALONE = 'echo 4000000 > /proc/sys/kernel/ns_last_pid && "$@"'
WITH_A_FOREIGN_PROC = ["unshare", "--pid", "--fork", "sh", "-c", ALONE, "sh"]
IN_A_PID_NAMESPACE = ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", ALONE, "sh"]
EVERY_ROW = ["--overhead", "100"]  # the first row after a sleep may take 3 ms where the machine is shared
LONGER_THAN_A_FLUSH = """
import time, torch

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 600
    def __getitem__(self, index):
        time.sleep(0.025)
        return index

if __name__ == "__main__":
    print(sum(int(batch.sum()) for batch in torch.utils.data.DataLoader(Slow(), 2, num_workers=2)))
"""


needs_pid_namespaces = pytest.mark.skipif(
    subprocess.run([*IN_A_PID_NAMESPACE, "true"], capture_output=True, check=False).returncode != 0,
    reason="this machine lets nobody make a PID namespace, or has too few numbers for processes",
)


@pytest.mark.long
@needs_pid_namespaces
def test_workers_whose_numbers_are_unknown_outside_are_seen(tmp_path: Path) -> None:
    """GIVEN a container's PID namespace below the recording, whose processes live for longer than a flush, THEN each is
    one process with the counters of its own, and all that they record is kept."""
    program = tmp_path / "slow.py"
    program.write_text(LONGER_THAN_A_FLUSH)
    done = record([*IN_A_PID_NAMESPACE, sys.executable, str(program)], tmp_path / "run", *EVERY_ROW)
    assert (done.out, done.code) == (f"{sum(range(600))}\n", 0), done.err
    parents = _each_was_seen_to_its_end(done.run)
    assert parents[0] != parents[1] == parents[2]


@needs_pid_namespaces
def test_a_recording_in_a_namespace_of_its_own_lives_until_it_is_killed(tmp_path: Path) -> None:
    """GIVEN a container with the name of this node and a spool that both see, THEN who looks from outside, where its
    supervisor has another number, leaves it alone, and salvages it when it was killed."""
    words = [*TRACEKIT, "record", "-q", "-o", str(tmp_path / "run"), "--", "sh", "-c", "echo begun; read end"]
    container = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", *words],
        env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert container.stdout is not None and container.stdout.readline() == b"begun\n"
    (said,) = salvage(tmp_path / "run")
    assert "is being recorded right now" in said
    container.kill()
    container.wait()
    assert container.stdout.read() == b""  # all that is in the namespace has ended
    (said,) = salvage(tmp_path / "run")
    assert "its supervisor was killed; salvaged" in said
    assert open_run(tmp_path / "run").manifest.ended_ns is not None


@pytest.mark.long
@needs_pid_namespaces
def test_all_is_seen_from_a_namespace_that_has_no_proc_of_its_own(tmp_path: Path) -> None:
    """GIVEN a recording whose /proc shows its processes by other numbers, THEN they are looked for by these; AND what
    would stop processes refuses, as it would stop others."""
    program = tmp_path / "slow.py"
    program.write_text(LONGER_THAN_A_FLUSH)
    recording = [*TRACEKIT, "record", "-q", "-o", str(tmp_path / "run"), *EVERY_ROW, "--"]
    done = run(*WITH_A_FOREIGN_PROC, *recording, sys.executable, str(program))
    assert (done.stdout, done.returncode) == (f"{sum(range(600))}\n", 0), done.stderr
    parents = _each_was_seen_to_its_end(open_run(tmp_path / "run"))
    assert parents[0] == -1 and parents[1] == parents[2] >= 0
    study = ["study", "loading", "-o", str(tmp_path / "study"), "--", sys.executable, str(program)]
    for stopping in (["analyze", "--probe", str(tmp_path / "run")], study):
        done = run(*WITH_A_FOREIGN_PROC, *TRACEKIT, *stopping)
        assert done.returncode == 2 and "/proc is that of another PID namespace" in done.stderr
    assert not (tmp_path / "study").exists()


def _each_was_seen_to_its_end(recorded: Run) -> list[int]:
    """Their parents: of the program and its two workers."""
    assert len(recorded.sql("SELECT * FROM batches")) == 300
    made = recorded.sql("SELECT process, (max(start_ns) - min(start_ns)) / 1e9 AS over_s FROM fetches GROUP BY process")
    lasts_s = 600 * 0.025 / 2
    assert len(made) == 2 and (made["over_s"] > 0.8 * lasts_s).all()
    found = recorded.sql(
        "SELECT process, role, pid, parent, processes.duration_ns / 1e9 AS lives_s, count(DISTINCT counter) AS counters"
        " FROM processes LEFT JOIN counters USING (process) WHERE recorded GROUP BY ALL ORDER BY process"
    )
    assert sorted(found["role"][1:]) == ["loader worker 0", "loader worker 1"]  # the second may be seen first
    assert (found["pid"] > 4_000_000).all() and (found["lives_s"] > lasts_s).all() and (found["counters"] > 0).all()
    return list(found["parent"])
