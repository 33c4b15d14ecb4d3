"""Whether what is told of gradient buckets is right: every cap, four models, three places.

    python benchmarks/ddp.py [--json] [--rounds 3] [--explore-blocks 75] [--only NAME] [--place PLACE] [--keep FOLDER]

Two ranks: on two emulated hosts, network namespaces with a link of limited bandwidth between them (`tc tbf`), a CPU for
each (root is needed); or on this one, whose CPUs they share with what sends their gradients (`shared`). Per model and
place the program is recorded as it is, with torch's own cap, and `tracekit analyze` predicts the time of a step with
every other one; and once more with `--explore buckets`, which tries them, and again in a run of twice the length as
long as that is undecided, at most twice. After each of the two all caps take turns in a process per rank, in blocks of
steps in random order, each with a model of its own: the truth, to which both count, as one process has taken 7 % longer
than the next here, and more of them, up to eight, until what it says of each cap has a standard error of 1 %; caps with
which torch has made the same buckets count as one. `predicted` tells of the first run, `explored` of the second.
`errors` are those of ratios to the run's own cap, and `errors_ms` those of times, which differ by as much as a process
from the next one and a recorded step from another; `covered`: whether the truth lies in the range, and `outside`
whether it certainly does not: by more than it is unsure of itself (95 %). Then the recommended cap, the best one and
the run's own take turns, twice too, as the best of many in the same rounds is the luckiest: `of_the_best` is how fast
the recommended one is there, as a share of the best, which is `unsure` by so much (95 %); where that leaves open
whether it is 98 %, they go on, up to six times, all of which count.
What no forecast can do better: `by_chance` are the errors that one would have that told nothing but the truth, by how
much what is measured here as the truth is unsure, and `swept` is the cap that the first half of the truth, a sweep of
all of them, would recommend. Three quarters of an hour on two CPUs, or more.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
from _side_by_side import TRACEKIT, Stolen, progress
from numpy.typing import NDArray

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))
from network_hosts import NetworkHost, network_hosts  # noqa: E402

Floats = NDArray[np.float64]

MODELS = ("linear", "convolutional", "recurrent", "small")
# The bandwidth between the hosts, Mbit/s; 0: both ranks are on one.
PLACES = {"2000": 2000.0, "500": 500.0, "shared": 0.0}
CAPS = ("default", "0.25", "0.5", "1", "2", "4", "8", "16", "50")
OWN = "default"
SETTING = "ddp.bucket_cap_mb"
FINAL, RESAMPLES = 2, 1000
# What is recommended shall be so fast, as a share of the best, or more; it is asked twice, and so often at most.
NEAR, MOST_FINALS = 0.98, 6
# There are as many rounds as a step with each cap, one after the other, fits into this time, s; and no more than these.
LEAST_S, MOST_ROUNDS = 4.0, 6
# An exploration that is undecided is made again, so many times as long.
EXPLORED_TIMES = (1, 2, 4)
# How unsure the truth may be, as a standard error, and in how many processes it is asked at most.
UNSURE, MOST_TRUTHS = 0.01, 8


def measure(
    hosts: list[NetworkHost], model: str, place: str, rounds: int, explore_blocks: int, keep: str | None
) -> dict[str, Any]:
    """What was told and recommended, and what is true."""

    def ranks(before: list[str], *arguments: str) -> str:
        if PLACES[place]:
            return _on_both(hosts, before, [model, *arguments])
        return _on_one(before, [model, *arguments])

    def in_turn(caps: Iterable[str], rounds: int) -> dict[str, list[float]]:
        found = json.loads(ranks([], "--caps", ",".join(caps), "--rounds", str(rounds)))
        made.update(found["buckets"])
        return found["step_ms"]

    def recorded(name: str, flags: list[str], blocks: int) -> dict[str, Any]:
        run = str(scratch / f"{model}-{place}-{name}-{blocks}")
        ranks([*TRACEKIT, "record", "-q", *flags, "--job", "one", "-o", run, "--"], "--rounds", str(blocks))
        report: dict[str, Any] = json.loads(_output([*TRACEKIT, "analyze", "--json", run]))
        if not report["buckets"]:
            raise SystemExit(f"{model}, {place}, {name}: no caps are told of; {report['advice']}")
        return report

    def predict() -> dict[str, Any]:
        return recorded("predicted", [], 20)

    def explore() -> dict[str, Any]:
        for times in EXPLORED_TIMES:
            report = recorded("explored", ["--explore", "buckets"], times * explore_blocks)
            if not _is_undecided(report):
                break
        return report

    for host in hosts if PLACES[place] else ():
        host.limited_to(PLACES[place])
    scratch, reports, truths = Path(keep or tempfile.mkdtemp()), [], []
    made: dict[str, str] = {}
    try:
        for tell in (predict, explore):
            reports.append(tell())
            fit = LEAST_S / (len(CAPS) * reports[0]["steps"]["median_ms"] / 1e3)
            rounds = max(rounds, min(MOST_ROUNDS, round(fit)))
            truths.append(in_turn(CAPS, rounds))
    finally:
        if keep is None:
            shutil.rmtree(scratch)
    alike = _alike(made)
    recommended = [*(_recommended(report) for report in reports), _fastest(truths[0])]
    true, noise = _true(_joined(truths), alike)
    while max(noise.values()) > UNSURE and len(truths) < MOST_TRUTHS:
        truths.append(in_turn(CAPS, rounds))
        true, noise = _true(_joined(truths), alike)
    best = min(true, key=lambda cap: true[cap])
    ours = [best if alike(cap) == alike(best) else cap for cap in recommended]
    finals = list(dict.fromkeys([OWN, best, *ours]))
    taken = [in_turn(finals, FINAL * rounds)]
    are_clear = False
    while not are_clear and len(taken) < MOST_FINALS:
        taken.append(in_turn(finals, FINAL * rounds))
        chosen = [_chosen(_joined(taken), cap, best) for cap in ours]
        are_clear = all(cap == best or _is_clear(each) for cap, each in zip(ours, chosen, strict=True))
    predicted, explored, swept = ({"recommended": cap} | each for cap, each in zip(recommended, chosen, strict=True))
    true_ms = {cap: float(np.median(each)) for cap, each in _joined(truths).items()}
    return {
        "model": model,
        "place": place,
        "best": best,
        "predicted": _against(reports[0], true, noise, true_ms) | predicted,
        "explored": _against(reports[1], true, noise, true_ms) | explored,
        "swept": swept,
        "true_ratios": true,
        "true_ms": true_ms,
        "recorded_ms": reports[0]["steps"]["median_ms"],
        "noise": noise,
    }


def _true(times: dict[str, Floats], alike: Callable[[str], str]) -> tuple[dict[str, float], dict[str, float]]:
    """By cap what a step takes as a share of one with the run's own, and the standard error of that."""

    def of_each_round(cap: str) -> Floats:
        return np.mean([times[other] for other in CAPS if alike(other) == alike(cap)], axis=0)

    ratios = {cap: of_each_round(cap) / of_each_round(OWN) for cap in CAPS}
    true = {cap: float(np.median(each)) for cap, each in ratios.items()}
    return true, {cap: float(np.std(each) / np.sqrt(len(each))) for cap, each in ratios.items()}


def _joined(times: list[dict[str, list[float]]]) -> dict[str, Floats]:
    return {cap: np.concatenate([each[cap] for each in times]) for cap in times[0]}


def _alike(buckets: dict[str, str]) -> Callable[[str], str]:
    """By the name of a cap, the first of those that make the same buckets."""
    return lambda cap: next(other for other in CAPS if buckets[other] == buckets[cap])


def _recommended(report: dict[str, Any]) -> str:
    return next((f"{each['recommended']:g}" for each in report["settings"] if each["name"] == SETTING), OWN)


def _is_undecided(report: dict[str, Any]) -> bool:
    """Whether another cap is expected to be faster, and none is certain to be."""
    own, *others = (each["expected_ms"] for each in report["buckets"]["forecasts"])
    return _recommended(report) == OWN and min(others, default=own) < own


def _fastest(times: dict[str, list[float]]) -> str:
    ratios = {cap: float(np.median(np.divide(each, times[OWN]))) for cap, each in times.items()}
    return min(ratios, key=lambda cap: ratios[cap])


def _chosen(final: dict[str, Floats], ours: str, best: str) -> dict[str, float]:
    """How fast a cap is, as a share of the best and times the run's own."""
    of_the_best = final[best] / final[ours]
    picks = np.random.default_rng(0).integers(len(of_the_best), size=(RESAMPLES, len(of_the_best)))
    return {
        "of_the_best": float(np.median(of_the_best)),
        "unsure": float(1.96 * np.median(of_the_best[picks], axis=1).std()),
        "of_the_current": float(np.median(final[OWN] / final[ours])),
    }


def _is_clear(chosen: dict[str, float]) -> bool:
    return abs(chosen["of_the_best"] - NEAR) > chosen["unsure"]


def _against(
    report: dict[str, Any], true: dict[str, float], noise: dict[str, float], true_ms: dict[str, float]
) -> dict[str, Any]:
    """What a report tells of the caps, and how that compares with what is true of them: ratios to the own cap, and
    times."""
    buckets = report["buckets"]
    told = {_name(each["cap_mb"], buckets["cap_mb"]): each for each in buckets["forecasts"]}
    own_ms = told[OWN]["expected_ms"]
    both = [cap for cap in true if cap != OWN and cap in told]
    ranges = {cap: (told[cap]["low_ms"] / own_ms, told[cap]["high_ms"] / own_ms) for cap in both}
    beyond = {cap: max(low - true[cap], true[cap] - high) for cap, (low, high) in ranges.items()}
    return {
        "errors": {cap: told[cap]["expected_ms"] / own_ms / true[cap] - 1 for cap in both},
        "errors_ms": {cap: told[cap]["expected_ms"] / true_ms[cap] - 1 for cap in [OWN, *both]},
        "covered": {cap: beyond[cap] <= 0 for cap in both},
        "outside": {cap: beyond[cap] > 1.96 * noise[cap] for cap in both},
        "told": buckets,
        "advice": report["advice"],
    }


def _name(cap_mb: float, own_mb: float) -> str:
    return OWN if cap_mb == own_mb else f"{cap_mb:g}"


def _on_one(before: list[str], arguments: list[str]) -> str:
    """Run both ranks on this host, as torchrun starts them; what rank 0 printed."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*before, *torchrun, str(HERE / "_ddp_models.py"), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    return _output(command, environment).splitlines()[-1]


def _on_both(hosts: list[NetworkHost], before: list[str], arguments: list[str]) -> str:
    """Run a rank on each host, each on a CPU of its own; what rank 0 printed."""
    with socket.socket() as anywhere:
        anywhere.bind(("", 0))
        port = anywhere.getsockname()[1]
    ranks = []
    for rank, host in enumerate(hosts):
        cpu = sorted(os.sched_getaffinity(0))[rank % len(os.sched_getaffinity(0))]
        words = [
            "taskset",
            "-c",
            str(cpu),
            *before,
            sys.executable,
            "-W",
            "ignore",
            str(HERE / "_ddp_models.py"),
            *arguments,
        ]
        environment = {
            **os.environ, "RANK": str(rank), "WORLD_SIZE": str(len(hosts)), "MASTER_ADDR": hosts[0].address,
            "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": host.interface, "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        ranks.append(subprocess.Popen(host.on_it(words), env=environment, stdout=subprocess.PIPE, text=True))
    printed = [each.communicate()[0] for each in ranks]
    # Torch aborts a rank at its end now and then, all work done.
    if any(each.returncode not in (0, -signal.SIGABRT) for each in ranks) or not printed[0]:
        raise SystemExit(f"a rank failed: {printed}")
    return printed[0].splitlines()[-1]


def _output(command: list[str], environment: dict[str, str] | None = None) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


def concluded(found: list[dict[str, Any]]) -> dict[str, Any]:
    total: dict[str, Any] = {"cases": len(found)}
    for how in ("predicted", "explored"):
        told = [each[how] for each in found]
        total[how] = _errors(told) | _all_chosen(told)
    total["by_chance"] = _by_chance(found)
    return total | {"swept": _all_chosen([each["swept"] for each in found])}


def _errors(found: list[dict[str, Any]]) -> dict[str, Any]:
    errors = np.abs([error for each in found for error in each["errors"].values()])
    errors_ms = np.abs([error for each in found for error in each["errors_ms"].values()])
    return {
        "points": len(errors),
        "error_median": float(np.median(errors)),
        "error_worst": float(errors.max()),
        "error_p95": float(np.percentile(errors, 95)),
        "error_ms_median": float(np.median(errors_ms)),
        "error_ms_worst": float(errors_ms.max()),
        "covered": float(np.mean([hit for each in found for hit in each["covered"].values()])),
        "certainly_outside": sum(hit for each in found for hit in each["outside"].values()),
    }


def _by_chance(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The errors that who tells the truth would have, as it is measured, in the middle and at most in 95 of 100."""
    noise = np.array([each["noise"][cap] for each in found for cap in each["predicted"]["errors"]])
    errors = np.abs(np.random.default_rng(0).normal(size=(RESAMPLES, len(noise)))) * noise
    of_each = {"error_median": np.median(errors, axis=1), "error_worst": errors.max(axis=1)}
    return {name: [float(end) for end in np.percentile(each, [50, 95])] for name, each in of_each.items()}


def _all_chosen(found: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "within_2_percent_of_the_best": sum(each["of_the_best"] >= NEAR for each in found),
        "certainly_not": sum(each["of_the_best"] + each["unsure"] < NEAR for each in found),
        "worse_than_the_current": sum(each["of_the_current"] < NEAR for each in found),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=3, help="at least: where steps are short there are more")
    parser.add_argument("--explore-blocks", type=int, default=75, help="of 0.3 s or more, in the run that explores")
    parser.add_argument("--only", choices=MODELS)
    parser.add_argument("--place", choices=list(PLACES))
    parser.add_argument("--keep", metavar="FOLDER", help="record there, and leave the runs")
    options = parser.parse_args()
    found: list[dict[str, Any]] = []
    stolen = Stolen()
    with suppress(KeyboardInterrupt), ExitStack() as stack:
        places = [options.place] if options.place else list(PLACES)
        hosts = []
        if any(PLACES[place] for place in places):
            try:
                hosts = stack.enter_context(network_hosts(2))
            except (OSError, subprocess.CalledProcessError) as error:
                raise SystemExit(
                    f"network namespaces cannot be made here ({error}): they need root and iproute2; --place shared"
                    " does without"
                ) from None
        for model in [options.only] if options.only else MODELS:
            for place in places:
                each = measure(hosts, model, place, options.rounds, options.explore_blocks, options.keep)
                found.append(each)
                for how in ("predicted", "explored"):
                    told = each[how]
                    errors = ", ".join(f"{cap}: {error:+.1%}" for cap, error in told["errors"].items())
                    best = f"{told['of_the_best']:.1%} +- {told['unsure']:.1%} of the best"
                    progress(f"{model}, {place}, {how}: {told['recommended']}, {best}; {errors}")
    total = {"stolen": stolen.share(), **(concluded(found) if found else {})}
    print(json.dumps({**total, "each": found}, indent=2) if options.json else total)


if __name__ == "__main__":
    main()
