"""Noise beside a run: which was on when, and what the steps took meanwhile, against the silence before and after.

A switchback: noise goes on and off in blocks of one run, so what a machine does slowly meets both alike. Steps at a
change are left out. A block's median step is set against that of the silence around it, in proportion to the distance
in time, as a log-ratio: drift cancels, and processes that differ by some percent for good make no difference.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracekit.analysis.intervals import Times
from tracekit.analysis.steps import Steps
from tracekit.run.reader import Run

SILENCE = ""
TOGETHER = " + "
# What was begun before a change is done with by then: noise works in pieces of 5 ms and a TCP socket holds some ms.
SETTLED_NS = 20_000_000
FEWEST_STEPS = 3  # in a block: fewer have no median to speak of


@dataclass(frozen=True)
class Block:
    """A stretch of a run with the same noises, named by `condition` (`SILENCE`: none), and the steps wholly in it.

    `first` is the number of its first step among those of the process; ns, `start_ns` Unix time. `run`: which one of
    several.
    """

    condition: str
    start_ns: int
    end_ns: int
    first: int
    durations_ns: Times
    run: int = 0

    @property
    def middle_ns(self) -> int:
        return (self.start_ns + self.end_ns) // 2

    @property
    def log_median(self) -> float:
        return float(np.log(np.median(self.durations_ns)))

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


@dataclass(frozen=True)
class Paired:
    """A block with noise, and the silent ones around it with the share that each has in what it is compared with."""

    block: Block
    silence: tuple[tuple[Block, float], ...]

    @property
    def baseline(self) -> float:
        """The logarithm of the step that silence would have had, ns."""
        return sum(share * block.log_median for block, share in self.silence)

    @property
    def log_ratio(self) -> float:
        """Positive: steps are longer than in silence."""
        return self.block.log_median - self.baseline


@dataclass(frozen=True)
class Dose:
    """What a noise was asked for and did on average while it was on: CPUs, bytes/s, operations/s, or bytes held."""

    asked: float
    done: float
    unit: str

    @property
    def share(self) -> float:
        """Of what was asked for."""
        return self.done / self.asked if self.asked else 0.0


def noise_log(run: Run) -> pd.DataFrame:
    """What noises were asked for and did: `noise` (its label), `unit`, `start_ns`, `end_ns`, `asked`, `done` in that
    time; of memory what was wanted and held (`unit` held)."""
    rows = run.sql(
        "SELECT counter, start_ns, start_ns + duration_ns AS end_ns, value FROM counters "
        "WHERE counter LIKE 'noise.%' ORDER BY start_ns"
    )
    parts = rows["counter"].str.extract(r"^noise\.(?P<noise>.*)\.(?P<what>asked|done|wanted|held)_(?P<unit>\w+)$")
    is_held = parts["what"].isin(["wanted", "held"])
    rows = rows.assign(
        noise=parts["noise"],
        unit=parts["unit"].mask(is_held, "held"),
        what=parts["what"].replace({"wanted": "asked", "held": "done"}),
    ).dropna(subset=["what"])
    keys = ["noise", "unit", "start_ns", "end_ns"]
    table = rows.pivot_table(index=keys, columns="what", values="value", aggfunc="sum")
    return table.reindex(columns=["asked", "done"]).fillna(0).reset_index().sort_values("start_ns")


def doses(log: pd.DataFrame) -> dict[str, Dose]:
    """The dose of each noise, by its label."""
    found = {}
    for (noise, unit), rows in log[log["asked"] > 0].groupby(["noise", "unit"]):
        lasted = float((rows["end_ns"] - rows["start_ns"]).sum())
        asked, done = (float(rows[column].sum()) / lasted for column in ("asked", "done"))
        if unit == "held":  # a level, which each row has on its own
            found[str(noise)] = Dose(float(rows["asked"].mean()), float(rows["done"].mean()), "bytes")
        elif unit == "ns":  # of CPU time, in a ns
            found[str(noise)] = Dose(asked, done, "CPUs")
        else:
            found[str(noise)] = Dose(1e9 * asked, 1e9 * done, f"{unit}/s")
    return found


def noise_blocks(log: pd.DataFrame, steps: Steps, number: int = 0) -> list[Block]:
    """The blocks of a run, in order, within the loop of the process that stands for it."""
    mine = steps.of(steps.main)
    window = None if steps.main is None else steps.window(steps.main)
    on = log[log["asked"] > 0]
    if window is None or on.empty:
        return []
    starts = mine["start_ns"].to_numpy(dtype=np.int64)
    durations = mine["duration_ns"].to_numpy(dtype=np.int64)
    ends = starts + durations
    blocks = []
    for begin, end, condition in _stretches(on, window):
        first = int(np.searchsorted(starts, begin + SETTLED_NS))
        last = int(np.searchsorted(ends, end, side="right"))
        if last - first >= FEWEST_STEPS:
            blocks.append(Block(condition, begin, end, first, durations[first:last], number))
    return blocks


def _stretches(on: pd.DataFrame, window: tuple[int, int]) -> list[tuple[int, int, str]]:
    """From where to where which noises were on, without a gap, within the window."""
    spans: dict[str, NDArray[np.int64]] = {}
    for noise, rows in on.groupby("noise"):
        begins, ends = rows["start_ns"].to_numpy(dtype=np.int64), rows["end_ns"].to_numpy(dtype=np.int64)
        new = np.append(True, begins[1:] > ends[:-1])
        spans[str(noise)] = np.column_stack((begins[new], np.append(ends[:-1][new[1:]], ends[-1])))
    cuts = np.unique(np.concatenate([*(each.ravel() for each in spans.values()), np.array(window)]))
    cuts = cuts[(cuts >= window[0]) & (cuts <= window[1])]
    found: list[tuple[int, int, str]] = []
    for begin, end in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        names = [noise for noise, each in sorted(spans.items()) if ((each[:, 0] <= begin) & (each[:, 1] >= end)).any()]
        condition = TOGETHER.join(names)
        if found and found[-1][2] == condition:
            found[-1] = (found[-1][0], end, condition)
        else:
            found.append((begin, end, condition))
    return found


def pair_with_silence(blocks: Sequence[Block]) -> list[Paired]:
    """Each block with noise and the silence before and after it, in its run; those without any on a side have that of
    the other, and those of a run without silence are left out."""
    return [each for run in _by_run(blocks) for each in _paired(run, [b for b in run if b.condition != SILENCE])]


def less_sure(paired: Sequence[Paired]) -> float:
    """How many times as unsure the mean of their log-ratios is as that of independent ones: neighbours share the
    silence between them. All blocks are taken to vary alike."""
    taken: dict[int, float] = {}
    for block, share in (of for each in paired for of in each.silence):
        taken[id(block)] = taken.get(id(block), 0.0) + share
    alone = len(paired) + sum(share**2 for each in paired for _, share in each.silence)
    return math.sqrt((len(paired) + sum(share**2 for share in taken.values())) / alone) if paired else 1.0


def silence_with_silence(blocks: Sequence[Block]) -> list[Paired]:
    """The same of every second silent block, against those around it: what silence seems to do to silence."""
    found = []
    for run in _by_run(blocks):
        silent = [block for block in run if block.condition == SILENCE]
        found += _paired([block for at, block in enumerate(silent) if not at % 2], silent[1::2])
    return found


def _by_run(blocks: Sequence[Block]) -> list[list[Block]]:
    runs: dict[int, list[Block]] = {}
    for block in blocks:
        runs.setdefault(block.run, []).append(block)
    return list(runs.values())


def _paired(among: Sequence[Block], blocks: Sequence[Block]) -> list[Paired]:
    silent = [block for block in among if block.condition == SILENCE]
    middles = [block.middle_ns for block in silent]
    found = []
    for block in blocks:
        at = int(np.searchsorted(middles, block.middle_ns))
        around = silent[max(at - 1, 0) : at + 1]
        if len(around) == 2:
            to_first = (block.middle_ns - middles[at - 1]) / (middles[at] - middles[at - 1])
            found.append(Paired(block, ((around[0], 1 - to_first), (around[1], to_first))))
        elif around:
            found.append(Paired(block, ((around[0], 1.0),)))
    return found
