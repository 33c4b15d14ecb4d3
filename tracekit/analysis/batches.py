"""Batches: when the program asked for each and had it, and who made it, when, at what cost.

The program's rows and the workers' are told apart by process. They are put together by two facts: the program noted the
pid of each worker that it started, and a worker delivers its batches in the order in which it makes them.
"""

import numpy as np
import pandas as pd

from tracekit.run.reader import Run

_MADE = [
    "maker", "made_start_ns", "made_ns", "cpu_ns", "reading_cpu_ns", "sampling_ns", "sampled", "delayed_ns",
    "faults_ns", "others_ns", "collating_ns", "samples", "iteration", "turn", "started_ns", "ready_ns",
]  # fmt: skip


def made_batches(run: Run, process: int) -> pd.DataFrame:
    """One row per batch that a process got, by loader, epoch and index: `asked_ns`, `received_ns`, `worker` (-1: the
    program itself), `bytes`, `taking_ns` (-1: not known); and how it was made: by which process (`maker`), from
    `made_start_ns` to `made_ns`, `cpu_ns`, of those that were looked at `reading_cpu_ns` (of it, in reads),
    `sampling_ns` (to get so many samples as were `sampled`) and `delayed_ns` (waiting for a CPU; -1 where not measured)
    and `faults_ns` (that page faults may have taken; -1 likewise) and `others_ns` (for how long other threads of the
    maker ran; -1 likewise), `collating_ns` (to put its samples together; -1 likewise), `samples`, `iteration`, `turn`,
    and from when till when all workers were started (`started_ns`, `ready_ns`). Where that is not known, `maker` is -1
    and the times are 0. `is_left`: of the epoch its worker was seen to make more than the program took.
    """
    workers = started_workers(run, process)
    run = run.of(process, *workers["maker"].tolist())  # what others made is as much again for each rank
    batches = run.sql(
        "SELECT process, thread, loader, epoch, index, worker, bytes, coalesce(taking_ns, -1) AS taking_ns, "
        "start_ns AS asked_ns, "
        "start_ns + duration_ns AS received_ns FROM batches WHERE process = ? ORDER BY loader, epoch, index",
        [process],
    )
    fetches = run.sql(
        "SELECT process AS maker, thread, iteration, turn, samples, cpu_ns, delayed_ns, "
        "coalesce(faults_ns, -1) AS faults_ns, coalesce(others_ns, -1) AS others_ns, "
        "coalesce(collating_ns, -1) AS collating_ns, start_ns AS made_start_ns, "
        "start_ns + duration_ns AS made_ns FROM fetches"
    )
    reading = _within(run, "reads", "sum(inside.cpu_ns) AS reading_cpu_ns")
    sampling = _within(run, "samples", "sum(inside.duration_ns) AS sampling_ns, count(*) AS sampled")
    for each in (reading, sampling):
        fetches = fetches.merge(each, on=["maker", "thread", "made_start_ns"], how="left")
    fetches = fetches.fillna({"reading_cpu_ns": 0, "sampling_ns": 0, "sampled": 0})
    by_worker = batches["worker"] >= 0
    found = pd.concat([_by_workers(workers, batches[by_worker], fetches), _by_itself(batches[~by_worker], fetches)])
    found = found.sort_values(["process", "loader", "epoch", "index"], ignore_index=True)
    # What was made after it was had is another's: iterators of one name that were under way at once.
    known = found["maker"].notna() & (found["made_ns"] <= found["received_ns"])
    found.loc[~known, _MADE] = np.nan
    found["maker"] = found["maker"].fillna(-1)
    return found.fillna(dict.fromkeys(_MADE, 0)).astype(dict.fromkeys(_MADE, np.int64))


def _within(run: Run, table: str, sums: str) -> pd.DataFrame:
    """Sums over what happened `inside` the making of each batch, of those in which something did."""
    return run.sql(
        "SELECT fetches.process AS maker, fetches.thread, fetches.start_ns AS made_start_ns, "
        f"{sums} FROM {table} AS inside ASOF JOIN fetches ON inside.process = fetches.process "
        "AND inside.thread = fetches.thread AND inside.start_ns >= fetches.start_ns "
        "WHERE inside.start_ns < fetches.start_ns + fetches.duration_ns GROUP BY ALL"
    )


def _by_workers(workers: pd.DataFrame, batches: pd.DataFrame, fetches: pd.DataFrame) -> pd.DataFrame:
    per_worker = ["process", "loader", "epoch", "worker"]
    batches = batches.assign(turn=batches.groupby(per_worker).cumcount())
    fetches = fetches.drop(columns="thread").merge(workers, on="maker")
    # Workers that persist go on to the next epoch of their loader.
    fetches["epoch"] = fetches["first_epoch"] + fetches["iteration"]
    fetches = fetches.drop(columns="first_epoch").drop_duplicates([*per_worker, "turn"])
    last_made = fetches.groupby(per_worker, as_index=False)["turn"].max().rename(columns={"turn": "last_made"})
    last_taken = batches.groupby(per_worker)["turn"].transform("max").to_numpy()
    is_left = batches.merge(last_made, on=per_worker, how="left")["last_made"].to_numpy() > last_taken
    return batches.assign(is_left=is_left).merge(fetches, on=[*per_worker, "turn"], how="left")


def started_workers(run: Run, process: int) -> pd.DataFrame:
    """The process (`maker`) of every worker that the loaders of a process started: `process`, `loader`, `first_epoch`,
    `worker`, and from when till when all were started (`started_ns`, `ready_ns`)."""
    started = run.sql(
        "SELECT workers.process, loader, epoch AS first_epoch, workers.worker, workers.pid, host, "
        "workers.start_ns AS started_ns, "
        "workers.start_ns + workers.duration_ns AS ready_ns "
        "FROM workers JOIN processes ON processes.process = workers.process "
        "WHERE workers.process = ? AND workers.worker >= 0",
        [process],
    )
    alive = run.sql("SELECT process AS maker, pid, host, start_ns FROM processes WHERE worker >= 0")
    pairs = started.merge(alive, on=["host", "pid"])
    pairs["apart"] = (pairs["ready_ns"] - pairs["start_ns"]).abs()  # of several with a recycled pid, the one of then
    pairs = pairs.sort_values("apart").drop_duplicates("maker").drop_duplicates(["pid", "ready_ns"])
    return pairs[["maker", "process", "loader", "first_epoch", "worker", "started_ns", "ready_ns"]]


def _by_itself(batches: pd.DataFrame, fetches: pd.DataFrame) -> pd.DataFrame:
    """A program without workers makes a batch while it waits for it."""
    batches = batches.sort_values("asked_ns").assign(is_left=False)
    fetches = fetches.sort_values("made_start_ns").rename(columns={"maker": "process"})
    fetches["maker"], fetches["started_ns"], fetches["ready_ns"] = fetches["process"], 0, 0
    found = pd.merge_asof(
        fetches, batches, left_on="made_start_ns", right_on="asked_ns", by=["process", "thread"], direction="backward"
    )
    found = found[found["made_ns"] <= found["received_ns"]].drop_duplicates(["process", "asked_ns"], keep="last")
    keys = ["process", "thread", "asked_ns"]
    return batches.merge(found[[*keys, *_MADE]], on=keys, how="left")
