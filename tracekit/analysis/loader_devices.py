"""For how long a GPU works for the batches of each loader."""

import math

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracekit.analysis.devices import device_use
from tracekit.run.reader import Run

_NS = 1e9


def seconds_of_a_gpu(
    run: Run, process: int, profiled: pd.DataFrame, parts: dict[str, pd.DataFrame]
) -> dict[str, float]:
    """By loader, for how long a GPU works for a batch, s: 0 where none is used, nan where that was not seen.

    `profiled`: the profiler's windows; `parts`: the batches of each loader."""
    busy = _busy(run, process)
    received = {loader: np.sort(part["received_ns"].to_numpy()) for loader, part in parts.items()}
    return {
        loader: of_a_batch(busy, profiled, mine, [each for other, each in received.items() if other != loader])
        for loader, mine in received.items()
    }


def of_a_batch(
    busy: float, profiled: pd.DataFrame, received: NDArray[np.int64], others: list[NDArray[np.int64]]
) -> float:
    """Of the batches of a loader that were `received` at these times, as told by the windows in which the program had
    some of these and none of `others`: a window begins after the program has asked for a batch, and ends before it
    asks for another. A GPU worked for the share `busy` of the windows."""
    if not busy:
        return 0.0
    mine = _in_each(profiled, received)
    alone = (mine > 0) & (sum((_in_each(profiled, each) for each in others), np.zeros_like(mine)) == 0)
    lasted = float(profiled["duration_ns"].to_numpy()[alone].sum())
    return busy * lasted / _NS / float(mine[alone].sum()) if alone.any() else math.nan


def _busy(run: Run, process: int) -> float:
    """The share of the windows in which a GPU worked, the busiest one's; nan where that was not seen."""
    if not run.manifest.may_use_gpu:
        return 0.0
    return max((each.busy for each in device_use(run, process)), default=math.nan)


def _in_each(profiled: pd.DataFrame, times: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many of these times are in each window."""
    starts, ends = profiled["start_ns"].to_numpy(), (profiled["start_ns"] + profiled["duration_ns"]).to_numpy()
    return np.asarray(np.searchsorted(times, ends, "right") - np.searchsorted(times, starts))
