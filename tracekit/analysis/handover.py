"""Handover: what it takes to get batches from the workers that made them to the program."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Seconds = NDArray[np.float64]

_NS = 1e9
# A worker that is through with a batch so long before it is asked for has sent it too.
_SENT_S = 0.005
# Fewer batches do not tell what is usual, or what the median of others is.
_FEWEST, _FEWEST_OTHERS = 3, 16
_STANDARD_ERRORS = 2.0  # that are no accident
# What it takes to get a batch that is made at once when the one before was taken, as a multiple of one before which
# workers had nothing to do at all: as `benchmarks/handover.py` found on 2 virtual CPUs.
_JUST_MADE = 1.09
# Fewer of the batches than this share are the unusual ones.
_SHOWS_SHARE = 0.1
# Of what it takes to take a batch of one tensor the program computes for so long at most. For a small one this is all
# of it, 0.45 to 0.6 ms on Linux x86-64: where it takes longer the program waits for the worker.
_COMPUTING_S = 0.0005


# Torch asks the worker for the memory of each tensor by itself, if it has its own. Batches of 2, 4, 16 and 39 small
# ones took 1.3, 1.9, 4.9 and 10 times as long to take as one.
_EACH_MORE = 0.27


def times_of(storages: int) -> float:
    """How many times as long it takes to take a batch whose tensors have so many pieces of memory as one with one."""
    return 1 + _EACH_MORE * max(storages - 1, 0)


@dataclass(frozen=True)
class Handover:
    """From when a batch was made it takes so long to `send` it, until its first bytes are there for the program, and
    the program so long to `receive` it, with a CPU for each that wants one. As it took its batches the program computed
    for so long in all (`computing`), and was `delayed` for so long by what else wanted its CPU. It finds that a batch
    is there while it waits for those that are not: to receive one would take `more_if_there` longer, if all
    were. To get one that is there takes it `rested` where workers have nothing to do but to make batches at once (None:
    not seen). All in seconds."""

    send: float = 0.0
    receive: float = 0.0
    computing: float = 0.0
    delayed: float = 0.0
    more_if_there: float = 0.0
    rested: float | None = None


def handover(
    batches: pd.DataFrame,
    late: Seconds,
    first: NDArray[np.bool_],
    cpus: float,
    share_delayed: float,
    storages: int = 1,
) -> Handover:
    """`late`: for how long each batch had been made when the program asked for it, s; nan where no worker made it, or
    that was not seen. `first`: those that an epoch began with. Of the time that the program's threads wanted a CPU they
    waited for one for `share_delayed`. Tensors of a batch have so many `storages`."""
    by_workers = int(np.count_nonzero(batches["worker"] >= 0))
    if not by_workers:
        return Handover()
    wait = (batches["received_ns"] - batches["asked_ns"]).to_numpy(dtype=np.float64) / _NS
    taking = np.where(batches["taking_ns"] >= 0, batches["taking_ns"].to_numpy(dtype=np.float64) / _NS, np.nan)
    # What it takes to turn a batch into bytes and to send them, on a thread of the worker that goes on meanwhile, shows
    # where the program waits for it; the first one takes more.
    shows = (late < 0) & ~first
    is_usual = shows.mean() >= _SHOWS_SHARE
    known = ~np.isnan(taking)
    alone = 1 - share_delayed
    computing = times_of(storages) * _COMPUTING_S
    rested = _rested(batches, wait, late, first)
    if np.count_nonzero(known) < _FEWEST:
        receive = _usual_receive(wait, np.where(_taken_early(batches, first), np.nan, late)) * alone
        send = max(float(np.median((wait + late)[shows])) * alone - receive, 0.0) if is_usual else 0.0
        delayed = by_workers * receive * (1 / alone - 1) if alone > 0 else 0.0
        return Handover(send, receive, by_workers * min(receive, computing), delayed, rested=rested)
    is_rested = _being_made(batches) < cpus
    taken = _usual(taking, known, is_rested, alone)
    sent = wait + late - taking
    send = max(_usual(sent, shows & known, is_rested, alone), 0.0) if is_usual and (shows & known).any() else 0.0
    delayed = max(float(taking[known].sum()) - taken * np.count_nonzero(known), 0.0)
    looking, share_there = _looking(wait - taking, late, known & ~first)
    receive = taken + looking * share_there
    more = looking * (1 - share_there) if share_there >= _SHOWS_SHARE else 0.0
    return Handover(send, receive, by_workers * min(receive, computing), delayed, more, rested)


def _rested(batches: pd.DataFrame, wait: Seconds, late: Seconds, first: NDArray[np.bool_]) -> float | None:
    """What the program takes to get batches that are there, where workers have nothing to do: from the last ones of
    epochs, those before which all that were left had been made when it had the one before. Where it leaves an epoch
    early, workers make more."""
    received = batches["received_ns"].to_numpy()
    before = np.append(received[:1], received[:-1])
    made = batches["made_ns"].where(batches["maker"] >= 0, np.iinfo(np.int64).max)
    epoch = np.cumsum(first)
    all_made = made[::-1].groupby(epoch[::-1]).cummax()[::-1].to_numpy()
    is_left = batches["is_left"].groupby(epoch).transform("any").to_numpy()
    is_rested = (all_made <= before) & ~is_left & (late > 0) & ~first & ~_taken_early(batches, first)
    if np.count_nonzero(is_rested) < _FEWEST:
        return None
    return float(np.median(wait[is_rested])) * _JUST_MADE


def _looking(before_taking: Seconds, late: Seconds, known: NDArray[np.bool_]) -> tuple[float, float]:
    """What it takes the program to find that a batch is there, and the share of those that are."""
    there = known & (late > before_taking) & (late > 0)
    early = there & (late > _SENT_S)
    found = early if np.count_nonzero(early) >= _FEWEST else there
    if np.count_nonzero(found) < _FEWEST:
        return 0.0, 0.0
    share_there = float(np.count_nonzero(there) / np.count_nonzero(known))
    return max(float(np.median(before_taking[found])), 0.0), share_there


def _usual(times: Seconds, which: NDArray[np.bool_], is_rested: NDArray[np.bool_], alone: float) -> float:
    """The median of which times; where there was a CPU for everybody, if that was not seldom."""
    rested = which & is_rested
    if np.count_nonzero(rested) >= max(_FEWEST, _SHOWS_SHARE * np.count_nonzero(which)):
        return float(np.median(times[rested]))
    return float(np.median(times[which])) * alone


def _being_made(batches: pd.DataFrame) -> Seconds:
    """How many other batches were being made when the bytes of each one were there: about, where the making of some was
    not seen."""
    arrived = (batches["received_ns"] - batches["taking_ns"]).to_numpy()
    is_made = batches["maker"] >= 0
    begun, done = (np.sort(batches[name][is_made].to_numpy()) for name in ("made_start_ns", "made_ns"))
    at_once = np.searchsorted(begun, arrived, "right") - np.searchsorted(done, arrived, "right")
    return np.asarray(at_once / max(float(is_made.mean()), 1 / len(batches)))


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


def beside_making(batches: pd.DataFrame, wait: Seconds, first: NDArray[np.bool_]) -> float:
    """For how long a program without workers is at a batch beside making it, s: it draws indices, for one. We are there
    when a batch is recorded: by how much others take longer than these are made for tells, too, if there are some."""
    made = ((batches["made_ns"] - batches["made_start_ns"]) / _NS).to_numpy()
    is_known = (batches["maker"] >= 0).to_numpy()
    usual, others = is_known & ~first & (batches["faults_ns"] < 0).to_numpy(), ~is_known & ~first
    if not usual.any():
        return 0.0
    longer = float(np.median(wait[usual] - made[usual]))
    if min(np.count_nonzero(usual), np.count_nonzero(others)) >= _FEWEST_OTHERS:
        less = float(np.median(wait[others]) - np.median(made[usual]))
        error = float(np.hypot(_error_of_median(wait[others]), _error_of_median(made[usual])))
        longer = less if longer - less > _STANDARD_ERRORS * error else longer
    return max(longer, 0.0)


def _error_of_median(values: Seconds) -> float:
    """Its standard error, as of values that are normal in the middle."""
    low, high = np.quantile(values, [0.25, 0.75])
    return float(0.93 * (high - low) / np.sqrt(len(values)))
