"""What a program waits for its loader for, as one recorded run tells it and as a process does that takes turns with it
and runs the program as it is, with instant storage, and with instant samples. Who has slept while the other had its
turn starts its workers slower, and took 30 ms longer for its first batch: so each turn begins with epochs that do not
count."""

from typing import Any

import numpy as np
from _loading_rounds import Times, in_turn, json_of, unsure
from _side_by_side import TRACEKIT, progress
from scipy.optimize import isotonic_regression

# A program that waits less than this share of its time has no wait worth splitting: three runs would not tell it.
STALLED = 0.1
# Processes differ: others take turns again until three runs tell the split to within so much (95 %) and the error is
# clear of the greatest that shall be, and so often at most. All of them count.
KNOWN, GREATEST, MOST_TIMES = 0.025, 0.05, 8
# Of both, forth and back: two rounds of each.
ORDER = [0, 1, 1, 0]


def split_of(program: list[str], now: str, rounds: int, folder: str) -> dict[str, Any]:
    """The `split` of the settings `now` that recorded runs tell, and its `split_errors`, of their mean and (`each`) the
    larger one of each run by itself; empty where the program hardly waits. A run that tells nothing is off by all. The
    recorded runs are in the folder."""
    cells = [now, f"{now}:cached", f"{now}:synthetic"]
    three, told = [np.empty((0, 2))] * len(cells), []
    for number in range(MOST_TIMES):
        run = f"{folder}/split{number}"
        warmed = [*program, "--warmed"]
        recording = [*TRACEKIT, "record", "-q", "-o", run, "--", *warmed]
        _, times = in_turn([recording, [*warmed, "--grid", ",".join(cells)]], ORDER, rounds // 2)
        three = [np.concatenate([before, times[cell]]) for before, cell in zip(three, cells, strict=True)]
        loaders = json_of([*TRACEKIT, "analyze", "--json", run])["loaders"]
        told.append(max(loaders, key=lambda each: each["batches"]))
        if not _is_stalled(three[0]):
            return {"split": {}, "split_errors": {}}
        splits = [{"storage": 0.0, "cpu": 0.0, **each["split"]} for each in told]
        split = {name: float(np.mean([each.get(name, 0.0) for each in splits])) for name in splits[0]}
        errors = _errors(split, float(np.mean([each["slowed"] for each in told])), three)
        largest = max(abs(errors["storage"]), abs(errors["cpu"]))
        shown = ", ".join(f"{what} {value:+.1%}" for what, value in errors.items())
        progress(f"  after {number + 1}: {shown}")
        if errors["unsure"] <= KNOWN and abs(largest - GREATEST) >= errors["unsure"]:
            break
    of_one = [_errors(one, each["slowed"], three) for one, each in zip(splits, told, strict=True)]
    off = [max(abs(each["storage"]), abs(each["cpu"])) for each in of_one]
    return {"split": split, "split_errors": errors | {"times": len(told), "each": off}}


def _is_stalled(rounds: Times) -> bool:
    """Whether the program waits for so much of its time that three runs can tell for what."""
    whole, wait = np.median(rounds, axis=0)
    return bool(wait >= STALLED * whole)


def _shares(three: list[Times]) -> Times:
    """Which share of the waiting is for storage, and for computing, by round: (2, rounds). Nothing is waited for longer
    because less is to be done: where the medians say so that is an accident, and those runs count as alike."""
    waits = np.stack([each[:, 1] for each in three])
    medians = np.median(waits, axis=1)
    alike = isotonic_regression(medians, increasing=False).x - medians
    waits = waits + alike[:, None]
    return np.asarray((waits[:-1] - waits[1:]) / np.median(waits[0]))


def _errors(split: dict[str, float], slowed: float, three: list[Times]) -> dict[str, float]:
    """By how much the shares of storage and computing differ from what the waiting of three runs tells, and how unsure
    the latter are. `outside`: by how much the share of computing is outside of the range that is told; `waits`: which
    share of its time the program waits."""
    by_round = _shares(three)
    true = np.maximum(np.median(by_round, axis=1), 0)  # as the medians of all rounds, so those of their differences
    storage, computing = np.array([split["storage"], split["cpu"]]) - true
    outside = max(-computing - slowed, computing, 0.0)
    found = {"storage": float(storage), "cpu": float(computing), "outside": float(outside)}
    whole, wait = np.median(three[0], axis=0)
    return found | {"unsure": max(unsure(each) for each in by_round), "waits": float(wait / whole)}
