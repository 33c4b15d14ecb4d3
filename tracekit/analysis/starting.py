"""What it takes to start workers and to end them. While all processes were `stopped`, nothing went on."""

import pandas as pd

from tracekit.analysis.intervals import Intervals
from tracekit.run.reader import Run

_NS = 1e9
_MOSTLY = 0.5


def start_of(run: Run, process: int, loader: str, stopped: Intervals) -> float:
    """What the program takes to start one worker, s. What its sampler takes then it takes with any number of them."""
    rows = run.sql(
        "SELECT arg_max(start_ns, duration_ns) AS start_ns, max(duration_ns) AS duration_ns, count(*) AS count,"
        " max(coalesce(drawing_ns, 0)) AS drawing_ns "
        "FROM workers WHERE process = ? AND loader = ? AND worker >= 0 GROUP BY epoch",
        [process, loader],
    )
    took = _went_on(rows["start_ns"], rows["start_ns"] + rows["duration_ns"], stopped)
    each = (took - rows["drawing_ns"]).clip(lower=0) / rows["count"]
    return float(each.median()) / _NS if len(rows) else 0.0


def boot_of(batches: pd.DataFrame, cpus: float, stopped: Intervals) -> tuple[float, float]:
    """What a worker takes until it makes its first batch, s, with a CPU, and how many times as long it took: the last
    one that was started, as the others had time to boot while those after them were started. Where all began sooner
    than they boot, they shared the CPUs: new processes, which import all anew."""
    first = batches[
        (batches["turn"] == 0) & (batches["iteration"] == 0) & (batches["worker"] == batches["worker"].max())
    ]
    took = _went_on(first["ready_ns"], first["made_start_ns"], stopped)
    if first.empty:
        return 0.0, 1.0
    starting = _went_on(first["started_ns"], first["ready_ns"], stopped)
    workers = first["worker"].max() + 1
    shared = max(workers / cpus, 1.0) if (took > starting).mean() > _MOSTLY else 1.0
    return float(took.median()) / shared / _NS, shared


def cold_of(batches: pd.DataFrame) -> float:
    """For how long it computes more for that one than for others, s: it finds its memory not copied yet, modules not
    imported and storage not connected to."""
    is_first = (batches["turn"] == 0) & (batches["iteration"] == 0)
    first, others = batches["cpu_ns"][is_first], batches["cpu_ns"][batches["turn"] > 0]
    return max(float(first.median() - others.median()), 0.0) / _NS if len(first) and len(others) else 0.0


def cold_outside_of(batches: pd.DataFrame) -> float | None:
    """For how much longer of that it does not get samples, s: it puts the first ones together. None where that was not
    looked at."""
    looked = batches[(batches["samples"] > 0) & (batches["sampled"] == batches["samples"])]
    making = looked["made_ns"] - looked["made_start_ns"]
    outside = (making - looked["sampling_ns"]) * looked["cpu_ns"] / making.clip(lower=1)
    is_first = (looked["turn"] == 0) & (looked["iteration"] == 0)
    first, others = outside[is_first], outside[looked["turn"] > 0]
    return max(float(first.median() - others.median()), 0.0) / _NS if len(first) and len(others) else None


def connect_of(batches: pd.DataFrame, usual: float) -> float:
    """How much longer than the `usual` time it takes from when a worker has made its first batch until the program has
    that, s: it starts a thread that sends and one that hands over memory, with which the program connects. As seen
    where the program waited for it."""
    is_first = (batches["turn"] == 0) & (batches["iteration"] == 0) & (batches["index"] == 0)
    awaited = batches[is_first & (batches["made_ns"] > batches["asked_ns"])]
    took = (awaited["received_ns"] - awaited["made_ns"]).median() / _NS
    return max(float(took - usual), 0.0) if len(awaited) else 0.0


def stop_of(run: Run, process: int, loader: str, cpus: float, stopped: Intervals) -> float:
    """What ending a worker takes, s. Workers end side by side, as many as there are CPUs."""
    rows = run.sql(
        "SELECT start_ns, duration_ns, pid AS count FROM workers WHERE process = ? AND loader = ? AND worker < 0",
        [process, loader],
    )
    took = _went_on(rows["start_ns"], rows["start_ns"] + rows["duration_ns"], stopped)
    each = took / (rows["count"] / cpus).clip(lower=1.0)
    return float(each.median()) / _NS if len(rows) else 0.0


def _went_on(begins: "pd.Series[int]", ends: "pd.Series[int]", stopped: Intervals) -> "pd.Series[float]":
    """How much of the time between these was not stopped, ns."""
    begins, ends = begins.astype("int64"), ends.astype("int64")
    return (ends - begins - stopped.overlap(begins.to_numpy(), ends.to_numpy())).clip(lower=0).astype("float64")
