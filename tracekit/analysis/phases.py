"""Phases: what the main loop's thread was doing at each moment of a step.

A moment belongs to the first of these that is open: communication, loading wait, backward, forward, optimizer; else to
"other". So a forward recomputed inside a backward pass is backward, and a closure's forward inside an optimizer step is
forward. A communication call that returns at once (async) is not communication: waiting for it happens elsewhere.

Where recording left out the module calls, forward cannot be told from "other", and where it left out the gradient
buckets of a rank, communication not from backward: the phases of those steps are not known. Nor are any where rows that
tell them cannot be read.
"""

import numpy as np
import pandas as pd

from tracekit.analysis.intervals import Intervals, join, subtract, union
from tracekit.analysis.loop import EVIDENCE_TABLES, Rows, What, without_phases
from tracekit.analysis.steps import Steps
from tracekit.run.reader import Run
from tracekit.settings.inside import LEFT_OUT_COLLECTIVES

# In order of precedence; "other" is what remains.
_OPEN = {
    "communication": What.COLLECTIVE,
    "loading wait": What.BATCH,
    "backward": What.BACKWARD,
    "forward": What.CALL,
    "optimizer": What.OPTIMIZER,
}
PHASES = ["loading wait", "forward", "backward", "optimizer", "communication", "other"]


def phase_times(rows: Rows) -> dict[str, Intervals]:
    """When each phase but "other" was on, given the evidence of one thread; the sets do not overlap."""
    times: dict[str, Intervals] = {}
    taken = union(rows.starts[:0], rows.ends[:0])
    for phase, what in _OPEN.items():
        found = rows.of(what)
        everything = union(found.starts, found.ends)
        times[phase] = subtract(everything, taken)
        taken = join(taken, everything)
    return times


def step_phases(run: Run, steps: Steps) -> pd.DataFrame:
    """The time of each phase in each step: `process`, `step`, `phase`, `duration_ns`.

    Six rows a step, in the order of `PHASES`; they add up exactly to the step's duration. None of a step whose phases
    are not known.
    """
    frames = []
    for process, mine in steps.frame.groupby("process") if not _lacks_communication(run) else ():
        if run.lacks_rows(int(process), *EVIDENCE_TABLES):
            continue
        mine = known_phases(mine, steps.evidence[int(process)])
        times = phase_times(steps.loop_rows(int(process)))
        starts, durations = mine["start_ns"].to_numpy(), mine["duration_ns"].to_numpy()
        parts = {phase: when.overlap(starts, starts + durations) for phase, when in times.items()}
        parts["other"] = durations - sum(parts.values())
        frames.append(
            pd.DataFrame(
                {
                    "process": process,
                    "step": np.repeat(mine["step"].to_numpy(), len(PHASES)),
                    "phase": pd.Categorical(np.tile(PHASES, len(mine)), categories=PHASES),
                    "duration_ns": np.column_stack([parts[phase] for phase in PHASES]).ravel(),
                }
            )
        )
    if not frames:
        return pd.DataFrame({"process": [], "step": [], "phase": pd.Categorical([], PHASES), "duration_ns": []})
    return pd.concat(frames, ignore_index=True)


def _lacks_communication(run: Run) -> bool:
    """Whether ranks were recorded without what they communicate."""
    if not any(note.what == LEFT_OUT_COLLECTIVES for note in run.missing):
        return False
    return bool(run.sql("SELECT count(DISTINCT rank) > 1 AS are_several FROM processes")["are_several"].iloc[0])


def known_phases(mine: pd.DataFrame, evidence: Rows) -> pd.DataFrame:
    """Those of a process's steps during all of which everything that tells phases was recorded."""
    starts, durations = mine["start_ns"].to_numpy(), mine["duration_ns"].to_numpy()
    return mine[without_phases(evidence).overlap(starts, starts + durations) == 0]


def phase_shares(phases: pd.DataFrame, process: int | None) -> dict[str, float]:
    """The share of each phase in a step of one process: the mean over its steps, so that one long step (the first, one
    with a validation pass) weighs no more than another. {} without steps.
    """
    mine = phases[phases["process"] == process]
    table = mine["duration_ns"].to_numpy(dtype=np.float64).reshape(-1, len(PHASES))
    whole = table.sum(axis=1)
    table, whole = table[whole > 0], whole[whole > 0]
    if not len(table):
        return {}
    return dict(zip(PHASES, (table / whole[:, None]).mean(axis=0).tolist(), strict=True))
