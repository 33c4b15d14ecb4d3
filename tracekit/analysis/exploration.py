"""Explorations: what every section of a step took at every thread count, from one run that tried them in turn.

A section is a layer that calls no other, forward or backward; the last section is the rest of the step. Blocks of steps
ran under one count each (`tracekit.collectors.exploration`); a round holds every count once, in random order, so slow
changes of the machine meet all counts alike. A round in detail tells what layers take, the plain one after it what
whole steps take when no layer is recorded: the two are the unit over which to resample, and are called a round here.
Later rounds have a block of a plan too: a count for each section, all in force together.
"""

import re
import warnings
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import bdtr

from tracekit.analysis.counters import MACHINE, Increases
from tracekit.analysis.log_ratios import student
from tracekit.analysis.steps import Steps, steps_of
from tracekit.run.reader import Run

REST = "the rest of the step"
Matrix = NDArray[np.float64]

_CONDITION = re.compile(r"threads\.intra_op=(\d+)")
_PLAN = re.compile(r"plan (\d+)")
_PROBE = re.compile(r"switch (\d+)>(\d+)")
# Fewer rounds tell no interval; the first of each count is not counted.
_FEWEST_ROUNDS = 3
# Tukey's outer fence.
_FENCE = 3.0
# After so many the residuals of a table hardly change.
_POLISHES = 4


@dataclass(frozen=True)
class Section:
    """A part of the step that can have a thread count of its own; `direction` is "" for the rest of the step."""

    name: str
    direction: str
    calls: float  # a step


@dataclass(frozen=True)
class Trial:
    """Counts for all sections that were in force together, and what the steps took: `step_ns` [R], NaN for the rounds
    without it."""

    choice: tuple[int, ...]
    step_ns: NDArray[np.float64]

    @property
    def rounds(self) -> int:
        return int(np.count_nonzero(~np.isnan(self.step_ns)))


@dataclass(frozen=True)
class Exploration:
    """What an exploration measured: R rounds, L sections in the order in which they run, N thread counts.

    `times` [R, L, N] and `step_ns` [R, N] are ns per step, medians over the steps of a block; NaN where a round has no
    block of a count. They are as at the pace of the usual round (`_pace`): conditions are compared with those of their
    own rounds, however the machine, or the program, changes from round to round. `step_ns` is that of plain steps, and
    the rest of the step what they took beyond the layers: it is below 0 where these are slower when they are recorded.
    `switch` [N, N] ns: the first parallel region with a count after a pool of another size has idled; `change` ns:
    setting a count. `kept` [N] is for how long other programs kept threads of this one from a CPU, all threads added
    up, per ns: a team waits for its last thread, so steps may have been longer by as much. `drift` is the relative
    change of the steps at the current count from the first third of the run to the last. `problem` says why nothing can
    be made of it. `set_by_program` is the count that the program sets itself, before its loop.
    """

    process: int
    counts: tuple[int, ...]
    current: int
    sections: list[Section]
    times: Matrix
    step_ns: Matrix
    switch: Matrix
    change: float
    shapes: dict[str, list[str]]
    openmp: str
    blocks: int
    disturbed: int
    kept: NDArray[np.float64]
    drift: float | None
    trials: list[Trial]
    problem: str | None
    set_by_program: int | None = None

    @property
    def rounds(self) -> int:
        return len(self.times)


def explored(run: Run, steps: Steps) -> tuple[Run, Steps]:
    """What `explore` is to look at, given the steps of the process that stands for the run: the host and the steps of
    the process that explored, if it is another one."""
    rows = run.sql("SELECT DISTINCT process FROM spans WHERE kind IN ('block', 'plain block') ORDER BY process")
    processes = [int(process) for process in rows["process"]]
    if not processes or steps.main in processes:
        return (run if steps.main is None else run.near(steps.main)), steps
    return run.near(processes[0]), steps_of(run, processes[0])


def explore(run: Run, steps: Steps) -> Exploration | None:
    """The exploration of a run; None when it is none."""
    blocks = run.sql(
        "SELECT process, name, kind = 'plain block' AS is_plain, layer AS number, step AS round, depth AS transition, "
        "watched AS is_first, start_ns, start_ns + duration_ns AS end_ns "
        "FROM spans WHERE kind IN ('block', 'plain block') ORDER BY start_ns"
    )
    if blocks.empty:
        return None
    mine = blocks["process"] == steps.main
    process = steps.main if steps.main is not None and mine.any() else int(blocks["process"].iloc[0])
    blocks = blocks[blocks["process"] == process].reset_index(drop=True)
    blocks["count"] = [int(found[1]) if (found := _CONDITION.fullmatch(name)) else -1 for name in blocks["name"]]
    counts = tuple(sorted({int(count) for count in blocks["count"] if count > 0}))
    if not counts:
        return None
    torch = run.manifest.torch
    current = _told_count(run, process, "current") or (torch.intra_op if torch else 0)
    current = current if current in counts else counts[-1]
    frame = _steps_of(blocks, steps.of(process))
    in_detail = ~blocks["is_plain"].to_numpy(dtype=bool)
    plain = ~in_detail if not in_detail.all() else in_detail  # once no round was plain
    if not in_detail.all():
        blocks["round"] //= 2
    sections, per_step = _sections(run, process, frame, in_detail[frame["block"]])
    kept = _kept(run, process, blocks)
    usable, disturbed = _usable(kept, blocks)
    plans = sorted({name for name in blocks["name"] if _PLAN.fullmatch(name)})
    names = [f"threads.intra_op={count}" for count in counts] + plans
    times = _by_round(per_step, frame, blocks, usable & in_detail, names)[..., : len(counts)]
    step_ns = _by_round(per_step.sum(axis=1, keepdims=True), frame, blocks, usable & plain, names)[:, 0]
    times[:, -1] = step_ns[:, : len(counts)] - times[:, :-1].sum(axis=1)
    known = ~np.isnan(times).all(axis=(1, 2))
    pace = _pace(step_ns[known])
    times, step_ns = times[known] / pace[:, None, None], step_ns[known] / pace[:, None]
    switch, change = _costs(run, process, counts)
    return Exploration(
        process=process,
        counts=counts,
        current=current,
        sections=sections,
        times=times,
        step_ns=step_ns[:, : len(counts)],
        switch=switch,
        change=change,
        shapes=_shapes(run, process),
        openmp=torch.openmp if torch else "",
        blocks=len(blocks),
        disturbed=disturbed,
        kept=_kept_by_others(run, kept, blocks[usable], counts),
        drift=_drift(frame, blocks, current),
        trials=_trials(run, process, sections, plans, step_ns[:, len(counts) :]),
        problem=_problem(times, counts, len(steps.of(process))),
        set_by_program=_told_count(run, process, "set"),
    )


def condition_times(run: Run, steps: Steps) -> pd.DataFrame:
    """The mean step of every block of a switchback: `name` (of the condition), `round`, `step_ns`; without the first
    block of a condition. Where steps are of two kinds a median would tell of the one that is more frequent alone.
    """
    blocks = run.sql(
        "SELECT name, step AS round, depth AS transition, watched AS is_first, start_ns, "
        "start_ns + duration_ns AS end_ns FROM spans WHERE kind = 'block' AND process = ? ORDER BY start_ns",
        [steps.main],
    )
    frame = _steps_of(blocks, steps.of(steps.main))
    means = (frame["end_ns"] - frame["start_ns"]).groupby(frame["block"]).mean()
    found = blocks.loc[means.index, ["name", "round"]].assign(step_ns=means.to_numpy())
    return found[~blocks.loc[means.index, "is_first"].to_numpy(dtype=bool)].reset_index(drop=True)


def _steps_of(blocks: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """The steps of the blocks, less those of transition: `block` (its row), `start_ns`, `end_ns`."""
    if blocks.empty:
        steps = steps[:0]
    starts = steps["start_ns"].to_numpy()
    ends = starts + steps["duration_ns"].to_numpy()
    middle = starts + (ends - starts) // 2
    block = np.searchsorted(blocks["start_ns"].to_numpy(), middle, side="right") - 1
    inside = (block >= 0) & (middle < blocks["end_ns"].to_numpy()[block])
    frame = pd.DataFrame({"block": block[inside], "start_ns": starts[inside], "end_ns": ends[inside]})
    place = frame.groupby("block").cumcount()
    transition = blocks["transition"].to_numpy()[frame["block"]]
    return frame[place.to_numpy() >= transition].reset_index(drop=True)


def _sections(
    run: Run, process: int, frame: pd.DataFrame, in_detail: NDArray[np.bool_]
) -> tuple[list[Section], Matrix]:
    """The sections, and the time of each in each step [S, L], of which some are `in_detail` [S]."""
    whole = (frame["end_ns"] - frame["start_ns"]).to_numpy(dtype=np.float64)
    rows = run.sql(
        "SELECT thread, name, direction, start_ns, duration_ns FROM spans WHERE kind = 'layer' AND process = ? "
        "AND start_ns >= ? AND start_ns < ? ORDER BY thread, direction, start_ns, duration_ns DESC",
        [process, int(frame["start_ns"].min()) if len(frame) else 0, int(frame["end_ns"].max()) if len(frame) else 0],
    )
    rows["step"] = np.searchsorted(frame["start_ns"].to_numpy(), rows["start_ns"].to_numpy(), side="right") - 1
    middle = rows["start_ns"] + rows["duration_ns"] // 2
    known = rows["step"] >= 0
    ends = frame["end_ns"].to_numpy()
    known &= middle < np.where(known, ends[rows["step"]] if len(ends) else 0, 0)
    rows = rows[known & ~rows["name"].isin(_callers(rows))]
    if rows.empty:
        return [Section(REST, "", 1.0)], whole[:, None]
    offset = rows["start_ns"].to_numpy() - frame["start_ns"].to_numpy()[rows["step"]]
    keys = rows.assign(offset=offset).groupby(["name", "direction"], sort=False)
    order = keys["offset"].median().sort_values().index
    number = pd.Series(np.arange(len(order)), index=order)
    section = number.loc[list(zip(rows["name"], rows["direction"], strict=True))].to_numpy()
    shape = (len(frame), len(order))
    place = rows["step"].to_numpy() * shape[1] + section
    times = np.bincount(place, rows["duration_ns"], shape[0] * shape[1]).reshape(shape)
    calls = np.median(np.bincount(place, minlength=shape[0] * shape[1]).reshape(shape)[in_detail], axis=0)
    rest = np.maximum(whole - times.sum(axis=1), 0)
    sections = [Section(name, direction, float(calls[at])) for at, (name, direction) in enumerate(order)]
    return [*sections, Section(REST, "", 1.0)], np.column_stack([times, rest])


def _callers(rows: pd.DataFrame) -> list[str]:
    """The layers in whose calls others were recorded."""
    start, end = rows["start_ns"].to_numpy(), (rows["start_ns"] + rows["duration_ns"]).to_numpy()
    same = (rows["thread"].to_numpy()[1:] == rows["thread"].to_numpy()[:-1]) & (
        rows["direction"].to_numpy()[1:] == rows["direction"].to_numpy()[:-1]
    )
    holds = same & (start[1:] < end[:-1])
    return list(rows["name"].to_numpy()[:-1][holds])


def _kept(run: Run, process: int, blocks: pd.DataFrame) -> NDArray[np.float64]:
    """For how long the program's threads were kept from a CPU in each block, per ns of the block."""
    starts, ends = blocks["start_ns"].to_numpy(), blocks["end_ns"].to_numpy()
    increases = Increases(run, ["thread.run_delay_ns", "host.steal_ns"])
    kept: NDArray[np.float64] = sum(
        np.nan_to_num(increases.within(who, name, starts, ends))
        for who, name in ((process, "thread.run_delay_ns"), (MACHINE, "host.steal_ns"))
    ) / np.maximum(ends - starts, 1)
    return kept


def _usable(kept: NDArray[np.float64], blocks: pd.DataFrame) -> tuple[NDArray[np.bool_], int]:
    """Which blocks count: not the first of a count, nor those that were kept from the CPU far more than others of the
    same count: many threads are in each other's way."""
    disturbed = np.zeros(len(blocks), dtype=bool)
    for _, places in blocks.groupby("name", sort=False).indices.items():
        low, high = np.percentile(kept[places], [25, 75])
        if high > low:
            disturbed[places] = kept[places] > high + _FENCE * (high - low)
    usable = ~blocks["is_first"].to_numpy(dtype=bool) & ~disturbed
    return usable, int(np.count_nonzero(disturbed & ~blocks["is_first"].to_numpy(dtype=bool)))


def _kept_by_others(
    run: Run, kept: NDArray[np.float64], usable: pd.DataFrame, counts: tuple[int, ...]
) -> NDArray[np.float64]:
    """The same for each count, no more than others used the CPUs: a program's own processes may crowd it too."""
    if usable.empty:
        return np.full(len(counts), np.nan)
    start, end = usable["start_ns"].min(), usable["end_ns"].max()
    processes = [int(process) for process in run.sql("SELECT DISTINCT process FROM processes")["process"]]
    increases = Increases(run, ["host.cpu_busy_ns", "host.steal_ns", "process.cpu_ns"])

    def used(process: int, counter: str) -> float:
        rate = increases.rate(process, counter, (start, end))
        return 0.0 if np.isnan(rate) else rate

    others = used(MACHINE, "host.cpu_busy_ns") - sum(used(process, "process.cpu_ns") for process in processes)
    by_count = pd.Series(kept[usable.index], index=usable.index).groupby(usable["count"]).mean()
    by_count = by_count.reindex(list(counts)).clip(upper=max(others, 0.0) + used(MACHINE, "host.steal_ns"))
    return by_count.to_numpy(dtype=np.float64)


def _by_round(
    per_step: Matrix, frame: pd.DataFrame, blocks: pd.DataFrame, usable: NDArray[np.bool_], names: list[str]
) -> Matrix:
    """Medians over the steps of each block, [R, L, N] for N conditions."""
    medians = pd.DataFrame(per_step).groupby(frame["block"].to_numpy()).median()
    medians = medians[usable[medians.index]]
    result = np.full((blocks["round"].max() + 1, per_step.shape[1], len(names)), np.nan)
    for block, row in zip(medians.index, medians.to_numpy(), strict=True):
        if blocks["name"][block] in names:
            result[blocks["round"][block], :, names.index(blocks["name"][block])] = row
    return result


def _pace(step_ns: Matrix) -> NDArray[np.float64]:
    """How many times longer each round's steps took than the usual round's [R], conditions [R, N] set against those of
    other rounds by what they take (median polish of the logarithms; J. Tukey, Exploratory Data Analysis, 1977)."""
    left = np.log(step_ns, where=step_ns > 0, out=np.full_like(step_ns, np.nan))
    pace = np.zeros(len(left))
    for _ in range(_POLISHES):
        left = left - np.nan_to_num(_median(left, axis=0))
        more = np.nan_to_num(_median(left, axis=1))
        pace, left = pace + more, left - more[:, None]
    return np.asarray(np.exp(pace - (np.median(pace) if len(pace) else 0.0)))


def _median(values: Matrix, axis: int) -> Matrix:
    """Of the values that are known; NaN of none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmedian(values, axis=axis))


def _trials(run: Run, process: int, sections: list[Section], plans: list[str], step_ns: Matrix) -> list[Trial]:
    """The plans that were tried, [R, number of plans] times given."""
    rows = run.sql(
        "SELECT name, direction, step AS threads, depth AS plan FROM spans WHERE kind = 'planned' AND process = ?",
        [process],
    )
    found: dict[tuple[int, ...], NDArray[np.float64]] = {}
    for at, name in enumerate(plans):
        plan = rows[rows["plan"] == int(name.partition(" ")[2])]
        counts = {(row.name, row.direction): int(row.threads) for row in plan.itertuples(index=False)}
        common = counts.get(("", ""))
        if common is not None:
            choice = tuple(counts.get((section.name, section.direction), common) for section in sections)
            before = found.get(choice, np.full(len(step_ns), np.nan))  # one plan may come up twice
            found[choice] = np.where(np.isnan(step_ns[:, at]), before, step_ns[:, at])
    return [Trial(*each) for each in found.items()]


def median_interval(values: Matrix, level: float = 0.95) -> tuple[float, float, float]:
    """Low, median and high: the median of some times and its interval by order statistics (distribution-free, from
    the binomial distribution); of too few for the level Student's, of their logarithms. Of one there is no interval, it
    is all three. NaN are left out; of none, NaN.
    """
    known = np.sort(values[~np.isnan(values)])
    if not len(known):
        return np.nan, np.nan, np.nan
    median = float(np.median(known))
    certain = np.flatnonzero(bdtr(np.arange(len(known) // 2), len(known), 0.5) <= (1 - level) / 2)
    if len(certain):
        return float(known[certain[-1]]), median, float(known[-1 - certain[-1]])
    if len(known) == 1 or known[0] <= 0:
        return float(known[0]), median, float(known[-1])
    low, high = np.exp(student(np.log(known), level))
    return min(float(low), median), median, max(float(high), median)


def _costs(run: Run, process: int, counts: tuple[int, ...]) -> tuple[Matrix, float]:
    rows = run.sql("SELECT name, duration_ns FROM spans WHERE kind = 'probe' AND process = ?", [process])
    switch, change = np.zeros((len(counts), len(counts))), 0.0
    for name, cost in zip(rows["name"], rows["duration_ns"], strict=True):
        found = _PROBE.fullmatch(name)
        if found and int(found[1]) in counts and int(found[2]) in counts:
            switch[counts.index(int(found[1])), counts.index(int(found[2]))] = cost
        elif name == "change":
            change = float(cost)
    return switch, change


def _told_count(run: Run, process: int, which: str) -> int | None:
    """The count that the program had when exploring began (`current`), or had set itself by then (`set`); None where
    that was not told."""
    rows = run.sql(
        "SELECT name FROM spans WHERE kind = 'probe' AND process = ? AND starts_with(name, ?) "
        "ORDER BY start_ns DESC LIMIT 1",
        [process, f"{which} "],
    )
    return int(rows["name"].iloc[0].partition(" ")[2]) if len(rows) else None


def _shapes(run: Run, process: int) -> dict[str, list[str]]:
    rows = run.sql("SELECT DISTINCT name FROM spans WHERE kind = 'shape' AND process = ? ORDER BY name", [process])
    shapes: dict[str, list[str]] = {}
    for text in rows["name"]:
        layer, _, shape = text.rpartition(" = ")
        shapes.setdefault(layer, []).append(shape)
    return shapes


def _drift(frame: pd.DataFrame, blocks: pd.DataFrame, current: int) -> float | None:
    at_current = frame["block"].isin(blocks.index[blocks["count"] == current])
    durations = (frame["end_ns"] - frame["start_ns"])[at_current].to_numpy()
    third = len(durations) // 3
    if third < 3:
        return None
    return float(np.median(durations[-third:]) / np.median(durations[:third]) - 1)


def _problem(times: Matrix, counts: tuple[int, ...], steps: int) -> str | None:
    if len(counts) < 2:
        return "only one thread count was tried: the run was too short, or each of its ranks has but one CPU"
    measured = int((~np.isnan(times).any(axis=1)).sum(axis=0).min()) if len(times) else 0
    if measured < _FEWEST_ROUNDS:
        return (
            f"the run was too short: {measured} rounds of blocks in {steps} steps, at least {_FEWEST_ROUNDS} are"
            " needed; let it run some times as many steps"
        )
    return None
