"""Loaders over a disk that the kernel slows down (emulated): what one run tells of it, and what a probe does."""

import errno
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from recording import TRACEKIT, plain
from slow_disk import SlowDisk, slow_disk

from tracekit.run.reader import open_run

pytestmark = [pytest.mark.long, pytest.mark.alone]

FILES, FILE_BYTES, BATCH, WORKERS, EPOCHS = 160, 96 << 10, 4, 2, "3"
BYTES_PER_S = 12_000_000

NOT_ALLOWED = (errno.EPERM, errno.EACCES, errno.EROFS, errno.ENOENT)

PROGRAM = """
import os, sys, time
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

class Files(Dataset):
    def __init__(self, folder):
        self.paths = sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".bin"))
    def __len__(self):
        return len(self.paths)
    def __getitem__(self, index):
        with open(self.paths[index], "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # no cache knows it
            data = file.read()
        return torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy()).float().sum()

torch.set_num_threads(1)
loader = DataLoader(Files(sys.argv[1]), batch_size=4, shuffle=True, num_workers=int(sys.argv[2]))
model = torch.nn.Linear(4, 1)
waited, began = 0.0, time.perf_counter()
for _ in range(int(sys.argv[3])):
    asked = time.perf_counter()
    for batch in loader:
        waited += time.perf_counter() - asked
        time.sleep(0.002)
        model(batch[None]).sum().backward()
        asked = time.perf_counter()
print(waited, time.perf_counter() - began)
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SlowDisk]:
    with ExitStack() as stack:
        try:
            disk = stack.enter_context(slow_disk(tmp_path, BYTES_PER_S))
        except (subprocess.CalledProcessError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in NOT_ALLOWED:
                raise
            pytest.skip(f"no disk can be slowed down here: {error}")
        for number in range(FILES):
            (disk.folder / f"{number}.bin").write_bytes(bytes([number]) * FILE_BYTES)
        subprocess.run(["sync", "-f", str(disk.folder)], check=True)
        yield disk


def test_a_disk_that_is_full_is_told_as_storage_and_promises_nothing(disk: SlowDisk, tmp_path: Path) -> None:
    """GIVEN two workers that read all that a disk gives THEN the wait is storage's, as it is for what the same program
    waits without the limit; a run with more workers lies within what is predicted, and none are recommended: more
    readers get no more. The reads are those of its files."""
    program, run = tmp_path / "program.py", tmp_path / "run"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), str(disk.folder)]
    recording = [*TRACEKIT, "record", "-q", "-o", str(run), "--", *command, str(WORKERS), EPOCHS]
    slow_s, _ = seconds(disk.throttled(recording))
    fast_s, _ = seconds([*command, str(WORKERS), EPOCHS])
    assert slow_s > 3 * fast_s  # else it is not slow
    _, with_many_s = seconds(disk.throttled([*command, "6", EPOCHS]))

    report = report_of([*TRACEKIT, "analyze", "--json", str(run)])
    (loader,) = report["loaders"]
    assert loader["split"]["storage"] == pytest.approx(1 - fast_s / slow_s, abs=0.12)
    (many,) = [each for each in loader["forecasts"] if (each["num_workers"], each["prefetch_factor"]) == (6, 2)]
    batches = int(EPOCHS) * FILES / BATCH
    assert 0.9 * many["low_ms"] < with_many_s * 1e3 / batches < 1.1 * many["high_ms"]
    assert not [each for each in report["settings"] if each["name"].endswith("num_workers")], report["advice"]
    paths = set(open_run(run).sql("SELECT DISTINCT path FROM reads WHERE bytes > 0")["path"])
    assert paths and all(path.startswith(str(disk.folder)) for path in paths)


def test_a_probe_of_a_full_disk_recommends_no_workers(disk: SlowDisk, tmp_path: Path) -> None:
    program, run = tmp_path / "program.py", tmp_path / "run"
    program.write_text(PROGRAM)
    recording = [*TRACEKIT, "record", "-q", "-o", str(run), "--", sys.executable, str(program), str(disk.folder)]
    seconds(disk.throttled([*recording, str(WORKERS), "6"]))
    report = report_of(disk.throttled([*TRACEKIT, "analyze", "--probe", "--json", str(run)]))
    (loader,) = report["loaders"]
    assert loader["probed"] and loader["readers"] > WORKERS
    assert not [each for each in report["settings"] if each["name"].endswith("num_workers")], report["advice"]
    (many,) = [each for each in loader["forecasts"] if (each["num_workers"], each["prefetch_factor"]) == (8, 2)]
    assert many["expected_ms"] > 0.85 * loader["batch_ms"]


def seconds(command: list[str]) -> tuple[float, float]:
    """For how long the program waited, and took."""
    done = plain(command)
    assert done.returncode == 0, done.stderr
    waited, took = done.stdout.split()
    return float(waited), float(took)


def report_of(command: list[str]) -> dict[str, Any]:
    done = plain(command)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
