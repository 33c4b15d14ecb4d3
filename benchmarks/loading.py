"""Whether what is predicted of loaders from one run is right: against every number of workers and batches ahead.

    python benchmarks/loading.py [--json] [--rounds 3] [--only NAME...] [--parts forecasts split recording]

Per workload two processes take turns, so that both have met the same minutes of the machine: one runs it with the
settings that it has, under `tracekit record`, the other, without tracekit, at every point of a grid, in random order:
the truth. `tracekit analyze` of the recorded run, and `analyze --probe` of it, predict the time per batch over the grid
and recommend settings (`probe_said`: what it tried). Where a value was told, `errors` are those of it, and
`errors_of_gains` those of its ratio to the settings that the run had. Where only a range was told (no such number of
readers was seen), `covered` says whether the truth lies in it. Then the recommended settings, the best of the grid and
those of the run take turns in another process: the best of many in the same rounds is the luckiest. `of_the_best` is
how fast the recommended ones are there, which is `unsure` by so much (95 %); where that leaves open whether it is 97 %,
they take turns in more processes, up to four, all of which count. `of_the_current` compares them likewise with those of
the run; `slower_than_the_current` is what certainly is. `swept` is what a third of the rounds of the grid, a
sweep of 20 s and more, which has seen every setting, tells of the other two, and recommends: about as well as anybody
can know here who measures for no longer. Two more processes take turns: the workload recorded, and one that runs it as
it is, with instant storage, and with instant samples. `split_errors` compare the shares of storage and of computing in
the waiting that the recorded one tells with what the other one tells, which is `unsure` by so much (95 %), in points of
the waiting (`waits` is the share that this is of all time); where the errors are not clear the two go on, in fresh
processes, up to eight `times`, all of which count. `recording` is how much longer a batch takes in a process that is
recorded, with all that goes on beside it, than in one that is not, in turn, which is `unsure` by so much (95 %) within
these two; two processes of one kind differ, too, which only the figure over all workloads has in what it is unsure of.
`stolen` is the share of the CPU time that went to other virtual machines meanwhile; where that was much the workload is
measured again, at most twice (`tries`).

Recommended workers that persist and batches in any order are timed with the recommended numbers. `sample` is
`samples/image_loading.py`, which has no workers, from recording to `verify`: how many times as fast it was told to get,
and got. Storage is emulated: an HTTP server in a process of its own, with latency and bandwidth. Ctrl-C ends it early,
with what was measured until then.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from _loading_rounds import RESAMPLES, by_cell, in_turn, json_and_messages_of, json_of, output_of
from _loading_splits import split_of
from _loading_told import Swept, Told, cell_of, chosen_against
from _loading_workloads import WORKLOADS, Workload, compute
from _side_by_side import TRACEKIT, Stolen, progress
from scipy.special import stdtrit

HERE = Path(__file__).parent
PROGRAM = [sys.executable, str(HERE / "_loading_workloads.py")]
SAMPLE = [sys.executable, str(HERE.parent / "samples" / "image_loading.py")]
SAMPLE_LATENCY, SAMPLE_BANDWIDTH, SAMPLE_BUDGET = 0.005, 20e6, "150s"
STORE = [sys.executable, str(HERE.parent / "tests" / "slow_storage.py")]
GRID = {"0:0", *(f"{workers}:{prefetch}" for workers in (1, 2, 4, 8) for prefetch in (1, 2, 8))}
PARTS = ["forecasts", "split", "recording"]
TOLD_BY = ("one_run", "probed", "swept")
# A grid has more rounds where they are short. Batches of 2 ms took 1.8 to 3.0 ms here from one round to the next, and
# the median of three rounds, within 15 s, was off by 10 %.
LEAST_S = 60.0
# Nobody asks for the rounds of a probe, which ends the program before it has had so many.
PROBED = 1000
# The last ones, and the three that tell the split, take so many times as many rounds as the grid.
FINAL, SPLIT = 6, 4
# What is recommended shall be so fast, as a share of the best, or more; it is asked so many times at most.
NEAR, MOST_FINALS = 0.97, 4
# Recorded and not recorded take so many times as many turns as the grid has rounds.
PAIRS = 5
# Of the CPU time, stolen. Undisturbed workloads saw less than 1 % here; with 30 % the truth was none: the same settings
# took 15 % less or more than in the minute before.
MUCH_STOLEN, MOST_TRIES = 0.03, 3


def bytes_per_ms() -> int:
    """How much hashing takes 1 ms here: the median of several tries."""
    probe = 1 << 20
    times = []
    for _ in range(9):
        began = time.perf_counter()
        compute(1.0, probe)
        times.append(time.perf_counter() - began)
    return int(probe / (float(np.median(times)) * 1e3))


@contextmanager
def store_of(workload: Workload) -> Iterator[str]:
    """The URL of emulated storage with the workload's files."""
    samples = range(workload.batch * workload.batches)
    if not workload.size(0):
        yield ""
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for index in samples:
            (Path(folder) / str(index)).write_bytes(bytes(workload.size(index)))
        with store(folder, workload.latency, workload.bandwidth) as url:
            yield url


@contextmanager
def store(folder: str, latency: float, bandwidth: float) -> Iterator[str]:
    """The URL of emulated storage with the files of a folder."""
    words = [*STORE, folder, "--latency", str(latency), "--bandwidth", str(bandwidth)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


def measured_undisturbed(name: str, unit: int, rounds: int, parts: list[str]) -> dict[str, Any]:
    """What `measure` finds when little CPU time is stolen, or else at last."""
    for number in range(1, MOST_TRIES + 1):
        stolen = Stolen()
        found = measure(name, unit, rounds, parts) | {"tries": number}
        found["stolen"] = stolen.share()
        if found["stolen"] < MUCH_STOLEN:
            break
        progress(f"{name}: {found['stolen']:.0%} of the CPU time was stolen")
    return found


def measure(name: str, unit: int, rounds: int, parts: list[str]) -> dict[str, Any]:
    """What was told of a workload, in parts, and what is true."""
    workload = WORKLOADS[name]
    now = cell_of(workload.workers, workload.prefetch)
    found: dict[str, Any] = {"name": name, "now": now}
    with store_of(workload) as url, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        program = [*PROGRAM, name, "--unit", str(unit), "--store", url]
        if "forecasts" in parts:
            found |= forecasts_of(program, workload, now, rounds, f"{folder}/run")
        if "split" in parts:
            found |= split_of(program, now, SPLIT * rounds, folder)
        if "recording" in parts:
            found["recording"] = cost_of_recording(program, now, PAIRS * rounds // 2, f"{folder}/cost")
    return found


def forecasts_of(program: list[str], workload: Workload, now: str, rounds: int, run: str) -> dict[str, Any]:
    """What was predicted and recommended, by one run and by a probe too, and what is true."""
    words = sorted(GRID | {now})
    recording = [*TRACEKIT, "record", "-q", "-o", run, "--", *program, "--rounds", str(PROBED)]
    turns = [*program, "--grid", ",".join(words)]
    _, times = in_turn([recording, turns], [0, 1, 0], rounds, LEAST_S)
    told = Told.by(json_of([*TRACEKIT, "analyze", "--json", run]), workload)
    report, messages = json_and_messages_of([*TRACEKIT, "analyze", "--probe", "--json", run])
    probed = Told.by(report, workload)
    rounds_ms = {word: times[word][:, 0] * 1e3 for word in words}
    best = min(rounds_ms, key=lambda cell: float(np.mean(rounds_ms[cell])))
    swept = Swept.by(rounds_ms)
    chosen = {"one_run": told.chosen, "probed": probed.chosen, "swept": swept.chosen}
    against = {
        "one_run": told.against(rounds_ms, now),
        "probed": probed.against(rounds_ms, now),
        "swept": swept.against(now),
    }
    cells = ",".join(sorted({now, best, *chosen.values()}))
    finals = [*program, "--rounds", str(FINAL * rounds), "--grid", cells]
    lines: list[str] = []
    for _ in range(MOST_FINALS):
        lines += output_of(finals).splitlines()
        final = by_cell(lines)
        found = {by: chosen_against(final, cell, now, best) for by, cell in chosen.items()}
        if all(abs(each["of_the_best"] - NEAR) > each["unsure"] for each in found.values() if each["unsure"]):
            break
    return {
        "best": best,
        **{by: each | found[by] for by, each in against.items()},
        "probe_said": messages,
        "recorded_ms": told.loader["batch_ms"],
        "rounds_ms": {cell: list(each) for cell, each in rounds_ms.items()},
    }


def sample() -> dict[str, Any]:
    """How many times as fast the sample was told to get, by one run and by a probe too, and what was verified."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        images, run = f"{folder}/images", f"{folder}/run"
        output_of([*SAMPLE, "--folder", images, "--epochs", "0"])
        with store(images, SAMPLE_LATENCY, SAMPLE_BANDWIDTH) as url:
            program = [*SAMPLE, "--folder", images, "--store", url]
            output_of([*TRACEKIT, "record", "-q", "-o", run, "--", *program])
            told = [json_of([*TRACEKIT, "analyze", *flags, "--json", run]) for flags in ([], ["--probe"])]
            budget = ["--budget", SAMPLE_BUDGET, "--json", "-o", f"{folder}/verified"]
            if not any(each["name"].startswith("loader.") for each in told[1]["settings"]):
                return {"nothing_recommended": told[1]["advice"]}
            study = json_of([*TRACEKIT, "verify", *budget, run, "--", *program])
    one_run, probed = (
        next((1 / (1 - each["gain"]["expected"]) for each in report["settings"] if "num_workers" in each["name"]), 1.0)
        for report in told
    )
    verified = study["comparisons"][0]
    return {
        "one_run": one_run,
        "probed": probed,
        "verified": 1 / (1 - verified["gain"]["expected"]),
        "verified_interval": [1 / (1 - verified["gain"][end]) for end in ("low", "high")],
        "verdict": verified["verdict"],
        "settings": {each["name"]: each["recommended"] for each in told[1]["settings"]},
    }


def cost_of_recording(program: list[str], now: str, rounds: int, run: str) -> dict[str, float]:
    """By what share longer a batch takes while it is recorded, and how unsure that is (95 %); how long it takes, ms."""
    plainly = [*program, "--grid", now]
    recording = [*TRACEKIT, "record", "-q", "-o", run, "--", *plainly]
    recorded, plain = (times[now] for times in in_turn([recording, plainly], [0, 1, 1, 0], rounds))
    both = np.stack([recorded[2:, 0], plain[2:, 0]])  # the first ones warm up
    picks = np.random.default_rng(0).integers(both.shape[1], size=(RESAMPLES, both.shape[1]))
    costs = np.divide(*both[:, picks].sum(axis=2))  # of all time: what is done seldom counts
    cost = float(np.divide(*both.sum(axis=1))) - 1
    return {"cost": cost, "unsure": float(1.96 * costs.std()), "batch_ms": 1e3 * float(np.median(plain[:, 0]))}


def summary(found: list[dict[str, Any]], told: str) -> dict[str, Any]:
    """Over all workloads, of what was `told` by one run, by a probe too, or by a sweep."""
    results = [each[told] for each in found]
    errors, of_gains = (
        np.abs([error for each in results for error in each[name].values()]) for name in ("errors", "errors_of_gains")
    )
    covered = [hit for each in results for hit in each["covered"].values()]
    return {
        "points": len(errors),
        "error_median": float(np.median(errors)) if len(errors) else None,
        "error_p95": float(np.percentile(errors, 95)) if len(errors) else None,
        "error_of_gains_median": float(np.median(of_gains)) if len(of_gains) else None,
        "error_of_gains_p95": float(np.percentile(of_gains, 95)) if len(of_gains) else None,
        "ranges": len(covered),
        "covered": float(np.mean(covered)) if covered else None,
        "within_3_percent_of_the_best": sum(each["of_the_best"] >= NEAR for each in results),
        "certainly_not": [each["name"] for each in found if each[told]["of_the_best"] + each[told]["unsure"] < NEAR],
        "slower_than_the_current": [each["name"] for each in found if certainly_slower(each[told])],
    }


def certainly_slower(told: dict[str, Any]) -> bool:
    """Whether the program is slower with what is recommended than with what it has, by more than that is unsure."""
    return bool(told["of_the_current"] + told["of_the_current_unsure"] < 1)


def recording_of(found: list[dict[str, Any]]) -> dict[str, float]:
    """What recording costs in the mean of all workloads whose batches take 1 ms and more, and how unsure that is (95 %)
    by how much they differ."""
    costs = np.array([each["recording"]["cost"] for each in found if each["recording"]["batch_ms"] >= 1])
    error = stdtrit(len(costs) - 1, 0.975) * costs.std(ddof=1) / np.sqrt(len(costs)) if len(costs) > 1 else np.nan
    return {"workloads": len(costs), "mean": float(costs.mean()) if len(costs) else np.nan, "unsure": float(error)}


def measure_all(names: list[str], rounds: int, parts: list[str], found: list[dict[str, Any]]) -> None:
    """Measure one workload after the other, add each to what was `found`, and say how it went."""
    unit = bytes_per_ms()
    for name in names:
        each = measured_undisturbed(name, unit, rounds, parts)
        found.append(each)
        for told in TOLD_BY if "forecasts" in parts else ():
            one = each[told]
            errors = np.abs(list(one["errors"].values()) or [0.0])
            progress(
                f"{name}, {told}: {each['now']} -> {one['recommended']},"
                f" {one['of_the_best']:.1%} +- {one['unsure']:.1%} of the best,"
                f" {one['of_the_current']:.2f}x now; errors {np.median(errors):.0%} median, {errors.max():.0%} at most"
                f" of {len(one['errors'])}; {sum(one['covered'].values())} of {len(one['covered'])} ranges right"
            )
        if errors_of_split := each.get("split_errors"):
            shares = {what: value for what, value in errors_of_split.items() if what not in ("times", "each")}
            told_off = ", ".join(f"{what} {value:+.1%}" for what, value in shares.items())
            progress(
                f"{name}, split: {told_off}; {errors_of_split['times']} times, of one run"
                f" {', '.join(format(off, '.1%') for off in errors_of_split['each'])}"
            )


def concluded(found: list[dict[str, Any]], parts: list[str]) -> dict[str, Any]:
    """Over all workloads."""
    total: dict[str, Any] = {}
    if "forecasts" in parts:
        total |= {told: summary(found, told) for told in TOLD_BY}
    if "split" in parts:
        total |= splits_of(found)
    if "recording" in parts:
        total["recording"] = recording_of(found)
    total["stolen_most"] = max(each["stolen"] for each in found)
    total["measured_again"] = {each["name"]: each["tries"] for each in found if each["tries"] > 1}
    return total


def splits_of(found: list[dict[str, Any]]) -> dict[str, Any]:
    """How many splits are right, of those that three runs tell."""
    splits = {each["name"]: each["split_errors"] for each in found if each["split_errors"]}
    off = {name: max(abs(each["storage"]), abs(each["cpu"])) for name, each in splits.items()}
    of_one_run = [each for one in splits.values() for each in one["each"]]
    return {
        "split_of_one_run_within_5_points": float(np.mean(np.array(of_one_run) <= 0.05)) if of_one_run else None,
        "split_errors": splits,
        "split_within_5_points": sum(each <= 0.05 for each in off.values()),
        "split_within_5_points_of_the_time": sum(each * splits[name]["waits"] <= 0.05 for name, each in off.items()),
        "split_within_5_points_and_what_is_unsure": sum(
            each <= 0.05 + splits[name]["unsure"] for name, each in off.items()
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=list(WORKLOADS))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds: at least 2, as some of them are to tell of the others")
    found: list[dict[str, Any]] = []
    total: dict[str, Any] = {"sample": None}
    with suppress(KeyboardInterrupt):
        if not options.only and "forecasts" in options.parts:
            total["sample"] = sample()
        measure_all(options.only or list(WORKLOADS), options.rounds, options.parts, found)
    total["workloads"] = len(found)
    if found:
        total |= concluded(found, options.parts)
    print(json.dumps({**total, "each": found}, indent=2) if options.json else total)


if __name__ == "__main__":
    main()
