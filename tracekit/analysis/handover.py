"""Handover: what it takes to get batches from the workers that made them to the program."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Seconds = NDArray[np.float64]

_NS = 1e9
# A worker that is through with a batch so long before it is asked for has sent it too.
_SENT_S = 0.005
# Fewer batches do not tell what is usual.
_FEWEST = 3
# Where the program waits for fewer of its batches than this share, these are the unusual ones.
_SHOWS_SHARE = 0.1


@dataclass(frozen=True)
class Handover:
    """To `send` a batch takes a worker so long beyond making it, and to `receive` it takes the program, with a CPU for
    each that wants one; the program was `taking` batches for so long in all, of which it was `delayed` for so long by
    what else wanted its CPU. All in seconds."""

    send: float = 0.0
    receive: float = 0.0
    taking: float = 0.0
    delayed: float = 0.0


def handover(
    batches: pd.DataFrame, late: Seconds, first: NDArray[np.bool_], cpus: float, share_delayed: float
) -> Handover:
    """`late`: for how long each batch had been made when the program asked for it, s; nan where no worker made it, or
    that was not seen. `first`: those that an epoch began with. Of the time that the program's threads wanted a CPU they
    waited for one for `share_delayed`: counts where it is not known when the bytes of each batch were there."""
    wait = (batches["received_ns"] - batches["asked_ns"]).to_numpy(dtype=np.float64) / _NS
    taking = np.where(batches["taking_ns"] >= 0, batches["taking_ns"].to_numpy(dtype=np.float64) / _NS, np.nan)
    # What a worker does for a batch beyond making it (turning it into bytes, sending them) shows where the program
    # waits for it; with the first one that it sends it does more.
    shows = (late < 0) & ~first
    is_usual = shows.mean() >= _SHOWS_SHARE
    known = ~np.isnan(taking)
    if np.count_nonzero(known) < _FEWEST:
        receive = _usual_receive(wait, np.where(_taken_early(batches, first), np.nan, late))
        send = max(float(np.median((wait + late - receive)[shows])), 0.0) if is_usual else 0.0
        by_workers = np.count_nonzero(~np.isnan(late))
        alone = 1 - share_delayed
        return Handover(send * alone, receive * alone, receive * by_workers, receive * by_workers * share_delayed)
    rested = taking[known & (_being_made(batches) < cpus)]
    receive = float(np.median(rested if len(rested) >= _FEWEST else taking[known]))
    sent = (wait + late - taking)[shows & known]
    send = max(float(np.median(sent)), 0.0) if is_usual and len(sent) else 0.0
    early = np.count_nonzero(~known & (batches["worker"] >= 0))  # taken while another one was waited for
    delayed = float(np.maximum(taking[known] - receive, 0.0).sum())
    return Handover(send, receive, float(taking[known].sum()) + early * receive, delayed)


def _being_made(batches: pd.DataFrame) -> NDArray[np.int64]:
    """How many other batches were being made when the bytes of each one were there."""
    arrived = (batches["received_ns"] - batches["taking_ns"]).to_numpy()
    made = batches[batches["maker"] >= 0]
    begun, done = np.sort(made["made_start_ns"].to_numpy()), np.sort(made["made_ns"].to_numpy())
    return np.asarray(np.searchsorted(begun, arrived, "right") - np.searchsorted(done, arrived, "right"))


def _usual_receive(wait: Seconds, late: Seconds) -> float:
    """What taking a batch takes, from those that had been ready for a while; else half of what the others took once
    they were made."""
    ready = wait[late > _SENT_S]
    if len(ready) >= _FEWEST:
        return float(np.median(ready))
    after = (wait + late)[late < 0]
    return float(np.median(after)) / 2 if len(after) else 0.0


def _taken_early(batches: pd.DataFrame, first: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which batches the program has taken from the workers while it waited for an earlier one, which was made later:
    when their turn came, it had them."""
    epoch = np.cumsum(first)
    latest = batches["made_ns"].groupby(epoch).cummax().groupby(epoch).shift(fill_value=0)
    return np.asarray(batches["made_ns"] < latest)
