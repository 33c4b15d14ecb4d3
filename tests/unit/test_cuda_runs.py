"""Runs that were recorded on a machine with an H100 GPU and 16 CPUs: what is told of them without one.

`runs/cuda` trains a small network with an LSTM on batches that four workers make, in page-locked memory; `runs/nccl` is
one rank of DistributedDataParallel.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tracekit.advice import analyze
from tracekit.analysis.report_schema import Report
from tracekit.analysis.text import text_report
from tracekit.run.reader import Run, open_run

RUNS = Path(__file__).parents[1] / "runs"


@pytest.fixture(scope="module", params=["cuda", "nccl"])
def told(request: pytest.FixtureRequest) -> tuple[Run, Report]:
    run = open_run(RUNS / request.param)
    return run, analyze(run)


def test_the_share_in_which_the_gpu_worked_is_that_of_its_events(told: tuple[Run, Report]) -> None:
    run, report = told
    events = run.table("operators")
    work = events[events["category"].isin(["kernel", "gpu_memcpy", "gpu_memset"])]
    busy, whole = 0, 0
    for window, mine in events.groupby("window"):
        first, last = mine["start_ns"].min(), (mine["start_ns"] + mine["duration_ns"]).max()
        occupied = np.zeros(last - first, dtype=bool)
        for event in work[work["window"] == window].itertuples():
            occupied[event.start_ns - first : event.start_ns - first + event.duration_ns] = True
        busy, whole = busy + int(occupied.sum()), whole + len(occupied)

    (device,) = report.devices
    assert device.device == 0 and device.busy == pytest.approx(busy / whole)
    assert 0 < device.copying < device.busy < 0.1  # a small network: the host does not keep the GPU busy


def test_the_sides_share_out_their_own_time_and_the_profiler_has_one(told: tuple[Run, Report]) -> None:
    sides = pd.DataFrame([(each.side, each.share) for each in told[1].operators], columns=["side", "share"])
    assert sides.groupby("side")["share"].sum().to_dict() == pytest.approx(
        {"cpu": 1, "device": 1, "profiler": 1, "gpu_user_annotation": 1}
    )


def test_the_text_tells_kernels_apart_from_what_the_program_did(told: tuple[Run, Report]) -> None:
    text = text_report(told[1])
    on_cpu, on_gpu = text[text.index("\nOPERATORS") :].split("\nON THE GPU", 1)
    assert "cudaLaunchKernel" in on_cpu and "_xmma_" not in on_cpu and "Activity Buffer" not in on_cpu
    assert "_xmma_" in on_gpu.split("\n\n")[0] and "of the profiler itself" in on_cpu
    assert all(len(line) <= 100 for line in text.splitlines() if not line.startswith("next:"))


def test_batches_of_workers_are_seen_in_the_predicted_order() -> None:
    report = analyze(open_run(RUNS / "cuda"))
    (loader,) = report.loaders
    assert (loader.num_workers, loader.batches, loader.predictability) == (4, 120, "epoch")
    assert report.steps.count == 120 and not [each for each in report.findings if each.id == "loading.pageable"]


def test_gradient_buckets_on_a_gpu_are_seen_and_nothing_is_predicted_of_them() -> None:
    run = open_run(RUNS / "nccl")
    buckets = run.sql("SELECT count(*) AS seen, min(bytes) AS least FROM collectives WHERE bucket >= 0")
    report = analyze(run)
    assert buckets["seen"].item() >= 600 and buckets["least"].item() > 0
    assert report.buckets is None and "gradients on a device" in report.advice
