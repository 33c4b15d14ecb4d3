"""On a machine with a GPU: recording changes no bit there either, and sees what the GPU does."""

import sys
from pathlib import Path

import pytest
import torch
from recording import PROGRAMS, plain, record

from tracekit.analysis.report import analyze

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch has no GPU here")

PROGRAM = str(PROGRAMS / "cuda_training.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]


@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver", "ranks"])
def test_recording_on_a_gpu_changes_no_bit_and_sees_its_kernels(how: str, tmp_path: Path) -> None:
    command = [*(TORCHRUN if how == "ranks" else [sys.executable]), PROGRAM, how]
    without, done = plain(command), record(command, tmp_path / "run", "--profile", "full")

    assert (done.code, done.out) == (without.returncode, without.stdout), done.err
    report = analyze(done.run)
    (device,) = report.devices
    assert 0 < device.busy <= 1 and report.steps.count == 60
    (gpu, *_) = done.run.manifest.gpus
    assert gpu and done.run.sql("SELECT count(*) AS seen FROM counters WHERE counter LIKE 'gpu.0.%'")["seen"].item()
    if how == "ranks":
        assert done.run.sql("SELECT count(*) AS seen FROM collectives WHERE bucket >= 0")["seen"].item() >= 60
