"""Counters over stretches of time: of a process or the machine, in the phases of its steps.

A counter is known per interval between two readings, not per phase: an interval's increase is divided among the phases
in proportion to the time that each had in it. Phases much shorter than the interval get their average, not their own.
What grew in steps whose phases are not known is divided as it is in the others.
"""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracekit.analysis.intervals import Intervals, Times, intersect, subtract, union
from tracekit.analysis.loop import without_phases
from tracekit.analysis.phases import PHASES, phase_times
from tracekit.analysis.steps import Steps
from tracekit.run.counter_names import describe
from tracekit.run.reader import Run

Values = NDArray[np.float64]
MACHINE = -1  # stands in `process` for the whole machine
_COLUMNS = ["process", "counter", "unit", "source", "phase", "value"]


class Increases:
    """The increases of some counters of each process, all its threads together; the machine's are of process -1."""

    def __init__(self, run: Run, names: list[str]) -> None:
        rows = run.sql(
            "SELECT process, counter, start_ns, duration_ns, sum(value)::BIGINT AS value FROM counters "
            "WHERE counter IN (SELECT unnest(?::VARCHAR[])) GROUP BY ALL ORDER BY ALL",
            [names],
        )
        by_counter = rows.groupby(["process", "counter"])
        self._growth = {(int(process), str(name)): Growth.of(part) for (process, name), part in by_counter}

    def within(self, process: int, counter: str, starts: Times, ends: Times) -> Values:
        """The increase in each window [start, end); NaN where the counter was not read in the window."""
        growth = self._growth.get((process, counter))
        return growth.within(starts, ends) if growth else np.full(len(starts), np.nan)

    def rate(self, process: int, counter: str, window: tuple[int, int]) -> float:
        """The increase per ns over the part of a window in which it was read; NaN where it was not."""
        return self.rate_in(process, counter, union(np.array([window[0]]), np.array([window[1]])))

    def rate_in(self, process: int, counter: str, when: Intervals) -> float:
        """The same over a set of time."""
        growth = self._growth.get((process, counter))
        if growth is None:
            return math.nan
        covered = int(growth.covered.overlap(when.starts, when.ends).sum())
        return float(np.nansum(growth.within(when.starts, when.ends))) / covered if covered else math.nan


@dataclass(frozen=True)
class Growth:
    """A counter's total as a function of time: it grows evenly within each interval between two readings."""

    times: Times
    totals: Values
    covered: Intervals

    @classmethod
    def of(cls, rows: pd.DataFrame) -> "Growth":
        """From rows with `start_ns`, `duration_ns`, `value`, in any order; those of threads may overlap."""
        begins = rows["start_ns"].to_numpy(dtype=np.int64)
        lengths = np.maximum(rows["duration_ns"].to_numpy(dtype=np.int64), 1)
        rate = rows["value"].to_numpy(dtype=np.float64) / lengths
        times, position = np.unique(np.concatenate((begins, begins + lengths)), return_inverse=True)
        slope = np.cumsum(np.bincount(position, np.concatenate((rate, -rate)), len(times)))
        totals = np.concatenate(([0.0], np.cumsum(slope[:-1] * np.diff(times))))
        return cls(times, totals, union(begins, begins + lengths))

    def within(self, starts: Times, ends: Times) -> Values:
        """The increase in each window; NaN where nothing was read."""
        origin = self.times[0]  # floats hold nanoseconds of a run exactly, not those since 1970
        axis = (self.times - origin).astype(np.float64)
        at_end, at_start = (np.interp((at - origin).astype(np.float64), axis, self.totals) for at in (ends, starts))
        return np.where(self.covered.overlap(starts, ends) > 0, at_end - at_start, np.nan)


def counters_by_phase(run: Run, steps: Steps) -> pd.DataFrame:
    """How much each counter grew in each phase of the steps: `process`, `counter`, `unit`, `source`, `phase`, `value`.

    All threads of a process together; the machine's counters (process -1) are divided by the phases of the process that
    stands for the run. Counters of single CPUs are left out: the machine's hold their sum.
    """
    rows = run.sql(
        "SELECT process, counter, any_value(source) AS source, start_ns, duration_ns, sum(value)::BIGINT AS value "
        "FROM counters WHERE counter NOT LIKE 'cpu.%' GROUP BY process, counter, start_ns, duration_ns ORDER BY ALL"
    )
    found = []
    for process, mine in rows.groupby("process"):
        loop = steps.main if process == MACHINE else int(process)
        window = steps.window(loop) if loop is not None else None
        if loop is None or window is None:
            continue
        times = _all_phases(steps, loop, window)
        for (counter, source), part in mine.groupby(["counter", "source"]):
            known = _describe(str(counter))
            if known is not None and not known[1]:
                for phase, value in _divide(part, times).items():
                    found.append((int(process), counter, known[0], source, phase, value))
    return pd.DataFrame(found, columns=_COLUMNS)


def counter_levels(run: Run, steps: Steps) -> pd.DataFrame:
    """Counters that are levels (memory in use, threads alive), over the run: `process`, `counter`, `unit`, `source`,
    `highest`.
    """
    rows = run.sql(
        "SELECT process, counter, any_value(source) AS source, max(value) AS highest FROM counters GROUP BY ALL "
        "ORDER BY process, counter"
    )
    known = [_describe(name) for name in rows["counter"]]
    levels = np.array([found is not None and found[1] for found in known], dtype=bool)
    rows = rows.assign(unit=[found[0] if found else "" for found in known])
    return rows[levels].reset_index(drop=True)[["process", "counter", "unit", "source", "highest"]]


def _describe(counter: str) -> tuple[str, bool] | None:
    """Unit of a counter and whether it is a level; None for one that this version does not know."""
    try:
        known = describe(counter)
    except KeyError:
        return None
    return known.unit, known.level


def _all_phases(steps: Steps, process: int, window: tuple[int, int]) -> dict[str, Intervals]:
    """When each phase was on, as far as that is known; "whole" is the time of all steps."""
    whole = union(np.array([window[0]]), np.array([window[1]]))
    loop = subtract(whole, without_phases(steps.evidence[process]))
    loop = loop if len(loop) else whole
    times = {phase: intersect(when, loop) for phase, when in phase_times(steps.loop_rows(process)).items()}
    rest = loop
    for when in times.values():
        rest = subtract(rest, when)
    return {**{phase: times.get(phase, rest) for phase in PHASES}, "whole": whole}


def _divide(rows: pd.DataFrame, times: dict[str, Intervals]) -> dict[str, float]:
    """The increase in each phase; together that in the whole."""
    begins = rows["start_ns"].to_numpy()
    lengths = np.maximum(rows["duration_ns"].to_numpy(), 1)
    rate = rows["value"].to_numpy(dtype=np.float64) / lengths
    grown = {phase: float((rate * when.overlap(begins, begins + lengths)).sum()) for phase, when in times.items()}
    whole, known = grown.pop("whole"), sum(grown.values())
    return {phase: value * whole / known if known else value for phase, value in grown.items()}
