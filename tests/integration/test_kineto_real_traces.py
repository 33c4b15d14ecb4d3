"""Traces that others recorded on real machines (CUDA, ROCm, NCCL, CPU only), against what HTA 0.5.0 says of them."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from synthetic import Tape, make_run

from tracekit.analysis.intervals import Intervals, subtract, union
from tracekit.analysis.operators import operator_times, windows
from tracekit.run.reader import open_run
from tracekit.run.writer import PartWriter
from tracekit.traces.kineto import load_kineto, read_kineto

TRACES = Path(__file__).parents[3] / "shared" / "traces"
REFERENCE = TRACES / "hta-0.5.0-reference.json"
pytestmark = pytest.mark.skipif(not REFERENCE.is_file(), reason="the real traces are not beside this checkout")

Reference = dict[str, dict[str, object]]


@cache
def reference() -> Reference:
    """Per trace, or traces of one job joined by " + ", what HTA says."""
    return json.loads(REFERENCE.read_bytes()) if REFERENCE.is_file() else {}


@cache
def events(name: str) -> pd.DataFrame:
    """A whole trace, with the words as plain text."""
    frame = pa.concat_tables(read_kineto(TRACES / name, process=0)).to_pandas()
    return frame.astype({"category": str, "name": str, "dims": str})


def compared_by_hta(name: str) -> pd.DataFrame:
    """The events that HTA looks at: of a trace with several profiler steps all but the last one's, those on a device
    by the step that launched them.
    """
    frame = events(name)
    steps = frame[(frame["category"] == "user_annotation") & frame["name"].str.startswith("ProfilerStep")]["start_ns"]
    if len(steps) < 2:
        return frame
    in_steps = (frame["start_ns"] >= steps.min()) & (frame["start_ns"] < steps.max())
    on_cpu = frame["device"] < 0
    launched = frame["correlation"].isin(frame["correlation"][on_cpu & in_steps & (frame["correlation"] >= 0)])
    return frame[np.where(on_cpu | (frame["correlation"] < 0), in_steps, launched)]


JOBS = [(job, job.split(" + ")) for job in reference()]
ALL = [name for _, names in JOBS for name in names]

# Where HTA is wrong: it knows the launches of the CUDA runtime, not those of HIP or of the CUDA driver …
LAUNCHES = {"amd_minitoy.json.gz": {"0": 16}, "triton_example.json.gz": {"0": 1}}
# … and takes the operator that launches the Triton kernel for a kernel, 94 µs for its 1.76 µs.
COMPUTATION_US = {"triton_example.json.gz": 1}


@pytest.mark.parametrize("name", ALL)
def test_every_trace_is_read_whole(name: str) -> None:
    trace = load_kineto(TRACES / name)

    assert trace.unreadable == 0
    assert len(trace.events) == len(events(name)) > 0
    assert (events(name)["duration_ns"] >= 0).all()


@pytest.mark.parametrize(("job", "names"), JOBS)
def test_the_number_of_events_is_that_of_hta(job: str, names: list[str]) -> None:
    counts = {str(rank): len(compared_by_hta(name)) for rank, name in enumerate(names)}

    assert counts == reference()[job]["events"]


@pytest.mark.parametrize(("job", "names"), JOBS)
def test_the_launches_are_those_of_hta(job: str, names: list[str]) -> None:
    counts = {}
    for rank, name in enumerate(names):
        frame = compared_by_hta(name)
        calls = frame["correlation"][frame["category"].isin(["cuda_runtime", "cuda_driver"])]
        counts[str(rank)] = int((is_work(frame) & frame["correlation"].isin(calls)).sum())

    assert counts == LAUNCHES.get(job, reference()[job]["launch"])


@pytest.mark.parametrize(("job", "names"), JOBS)
def test_the_time_of_kernels_by_type_is_that_of_hta(job: str, names: list[str]) -> None:
    ours = dict.fromkeys(("COMPUTATION", "COMMUNICATION", "MEMORY"), 0.0)
    for name in names:
        frame = compared_by_hta(name)
        kernel = frame["category"] == "kernel"
        collective = frame["name"].str.startswith("nccl")
        compute, communication = whole_us(frame[kernel & ~collective]), whole_us(frame[kernel & collective])
        memory = whole_us(frame[is_work(frame) & ~kernel])
        ours["COMPUTATION"] += subtract(subtract(compute, communication), memory).total
        ours["COMMUNICATION"] += subtract(subtract(communication, compute), memory).total
        ours["MEMORY"] += subtract(subtract(memory, compute), communication).total

    types: list[dict[str, object]] = reference()[job]["ktype"]  # type: ignore[assignment]
    theirs = dict.fromkeys(ours, 0) | {row["kernel_type"]: row["sum"] for row in types if row["kernel_type"] in ours}
    theirs["COMPUTATION"] = COMPUTATION_US.get(job, theirs["COMPUTATION"])
    # HTA counts waits on a stream ("Stream Sync") as computation: a few µs, within what is allowed.
    assert ours == {kind: pytest.approx(theirs[kind], rel=0.005, abs=2) for kind in ours}


@pytest.mark.parametrize("name", ALL)
def test_self_times_on_a_thread_add_up_to_the_time_covered(name: str, tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", [Tape()])
    for table in read_kineto(TRACES / name, process=0, window=4):
        PartWriter(path, "node0").write("operators", table)
    run = open_run(path)

    times = operator_times(run)

    frame = events(name)
    covered = sum(covered_ns(thread) for _, thread in frame[frame["device"] < 0].groupby("thread"))
    covered += sum(covered_ns(stream) for _, stream in frame[is_work(frame)].groupby(["device", "stream"]))
    counted = ~times["category"].isin(frame["category"][(frame["device"] >= 0) & ~is_work(frame)])
    assert times["self_ns"][counted].sum() == covered
    assert times["calls"].sum() == len(frame)
    kernels = times[times["category"] == "kernel"]
    assert kernels["total_ns"].sum() == frame["duration_ns"][frame["category"] == "kernel"].sum()
    assert windows(run)[["process", "window", "events"]].to_numpy().tolist() == [[0, 4, len(frame)]]


def is_work(frame: pd.DataFrame) -> pd.Series:
    """Which rows are work of a device."""
    return frame["category"].isin(["kernel", "gpu_memcpy", "gpu_memset"])


def whole_us(frame: pd.DataFrame) -> Intervals:
    """The time covered in µs, each event shrunk to the whole microseconds inside it as HTA does."""
    starts = -(-frame["start_ns"].to_numpy() // 1000)
    return union(starts, (frame["start_ns"] + frame["duration_ns"]).to_numpy() // 1000)


def covered_ns(frame: pd.DataFrame) -> int:
    return union(frame["start_ns"].to_numpy(), (frame["start_ns"] + frame["duration_ns"]).to_numpy()).total
