"""Whether the recommended thread counts are right: against everything else that could have been set.

    python benchmarks/threads.py [--json] [--seconds 20] [--only NAME]

Per model: `tracekit record --explore threads` and `analyze` give a recommendation. Where it says to let the program run
undisturbed, it is explored again and longer, as its user would, at most twice (`explorations`). Taking turns with it,
second by second, two more processes run every fixed count in randomised blocks: the truth of the same minute, which
`fixed_loses` and, of a fixed count, the error of the prediction are about. Then two processes run, in turns and in
randomised blocks, nothing set (twice: the noise floor), every fixed count, the recommendation and plans drawn at
random: the truth of a later minute. Where it changes in that minute by more than what is to be judged, the machine has
changed, and it is measured for twice as long (`truths`). `stolen` is the share of the CPU time
that went to other virtual machines meanwhile. At last one process runs nothing but the control of a plan by layer (the
same plan with one count everywhere) and nothing set, for a minute and a half: what a plan costs is less than what the
others can tell apart.

There are two of each because processes that run the same program differ: `twins_differ` is by how much in what a count
gains, at most, and `between_processes` the standard deviation of that, less what is an error of measurement. What the
best of an exhaustive search in the one loses, or beats, in the other (`search_...`) is what no advice from one run can
be expected to do better than.

The truth may change: `by_quarter` is what the recommendation, or else the best fixed count, gained in each quarter of
the blocks, `by_quarter_meanwhile` what the fixed count gained in each quarter of the exploration's minute, and
`truth_moved` by how much its gain differs between the two minutes. Where these differ by more than the error of the
prediction, the machine has changed, not the program. `not_beaten` is the share of the configurations that the
recommendation is not slower than by more than the floor.
"""

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from _side_by_side import Ratio, Stolen, progress
from _thread_models import MODELS

from tracekit.advice import analyze
from tracekit.advice.entries import settings_entries
from tracekit.analysis.report_schema import Report
from tracekit.record.machine import counts_here
from tracekit.run.reader import Run
from tracekit.settings.exploration import fixed
from tracekit.study.recording import Recording
from tracekit.study.switchback import in_turn, times_of
from tracekit.study.threads import control
from tracekit.study.turns import take_turns

Twins = list[dict[str, np.ndarray]]  # the step times of each condition, ns, by round, in either process

TURN_S = 1.0
PROGRAM = [sys.executable, str(Path(__file__).parent / "_thread_models.py")]
RANDOM_PLANS = 6
CONTROL_S = 90.0
MOST_TRIES, MOST_MINUTES = 3, 2
# By so much may differ what is gained in the quarters of the later minute: the worst error of a prediction that is
# looked for. It was 29 points where a neighbour came for a quarter.
STEADY = 0.06
RESAMPLES = 1000


def explored(name: str, seconds: float, folder: Path) -> Recording:
    words = [sys.executable, "-m", "tracekit", "record", "-q", "--explore", "threads", "-o", str(folder / "explored")]
    command = [*PROGRAM, name, "--seconds", str(seconds)]
    return Recording("exploration", [*words, "--", *command], folder / "explored", folder / "explored.out")


def under(conditions: list[dict[str, Any]], name: str, seconds: float, run: Path) -> Recording:
    """One process that runs under these conditions in turn."""
    command = [*PROGRAM, name, "--seconds", str(seconds)]
    return in_turn(conditions, run, run.with_suffix(".out"), command)


def recommendation(name: str, seconds: float, folder: Path) -> tuple[Report, Twins, int]:
    """The report of the explored run that was not disturbed, or else the last, the step times of the fixed counts while
    it explored, and how many it took."""
    for number in range(1, MOST_TRIES + 1):
        report, meanwhile = explored_beside_truth(name, number * seconds, folder / str(number))
        if "undisturbed" not in report.advice:
            break
        progress(f"{name}: {report.advice}")
    return report, meanwhile, number


def explored_beside_truth(name: str, seconds: float, folder: Path) -> tuple[Report, Twins]:
    folder.mkdir()
    fixed_counts = [fixed(count) for count in counts_here()]
    each = [explored(name, 3 * seconds, folder)]
    each += [under(fixed_counts, name, 3 * seconds, folder / f"meanwhile{twin}") for twin in range(2)]
    run, *meanwhile = run_in_turns(each)
    return analyze(run), [times_of(twin) for twin in meanwhile]


def later_truth(conditions: list[dict[str, Any]], name: str, seconds: float, folder: Path) -> tuple[Twins, int]:
    """The step times of all minutes until they were steady, and how many it took."""
    minutes: list[Twins] = []
    while len(minutes) < MOST_MINUTES:
        runs = [folder / f"later{len(minutes)}{twin}" for twin in range(2)]
        each = [under(conditions, name, seconds * len(conditions) / 3, run) for run in runs]
        minutes.append([times_of(run) for run in run_in_turns(each)])
        twins = [pooled([minute[twin] for minute in minutes]) for twin in range(2)]
        quarters = by_quarter([twin[judged(twins)] / twin["baseline"] for twin in twins])
        if max(quarters) - min(quarters) <= STEADY:
            break
        progress(f"{name}: gains of {', '.join(f'{gain:.0%}' for gain in quarters)} in the quarters of the later time")
    return twins, len(minutes)


def judged(twins: Twins) -> str:
    """The condition whose gain is looked at: what is recommended, or else the best fixed count."""
    if "recommended" in twins[0]:
        return "recommended"
    return fastest(pooled(twins), [fixed(count)["name"] for count in counts_here()])


def cost_of(plan: dict[str, Any], name: str, folder: Path) -> Ratio:
    """How long a step takes with a plan, of one with nothing set."""
    conditions = [{"name": "baseline", "settings": {}}, {"name": "control", "settings": plan}]
    (run,) = run_in_turns([under(conditions, name, CONTROL_S, folder / "control")])
    times = times_of(run)
    return Ratio.of(list(times["control"]), list(times["baseline"]))


def run_in_turns(each: list[Recording]) -> list[Run]:
    return [
        recording.opened(turns.process.returncode)
        for recording, turns in zip(each, take_turns(each, [TURN_S] * len(each)), strict=True)
    ]


def random_plans(report: Report, counts: list[int]) -> list[dict[str, Any]]:
    """Plans that give every layer, and everything else, some count."""
    assert report.exploration is not None
    draw = random.Random(0)
    plans = []
    for number in range(RANDOM_PLANS):
        settings = {"threads.intra_op": draw.choice(counts)}
        for layer in report.exploration.layers:
            table = {"forward": "threads.layers", "backward": "threads.backward"}.get(layer.direction)
            if table:
                settings[f"{table}.{layer.layer}"] = draw.choice(counts)
        plans.append({"name": f"random {number}", "settings": settings})
    return plans


def judge(name: str, seconds: float) -> dict[str, Any]:
    """The recommendation for one model against the truth."""
    counts = counts_here()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        stolen = Stolen()
        report, meanwhile, explorations = recommendation(name, seconds, folder)
        settings: dict[str, Any] = {entry.name: entry.value for entry in settings_entries(report)}
        conditions = [{"name": "baseline", "settings": {}}, {"name": "again", "settings": {}}]
        conditions += [fixed(count) for count in counts] + random_plans(report, counts)
        assert report.exploration is not None
        if settings:
            conditions.append({"name": "recommended", "settings": settings})
        twins, truths = later_truth(conditions, name, seconds, folder)
        by_layer = any(each.startswith(("threads.layers", "threads.backward")) for each in settings)
        cost = cost_of(control(settings, report.exploration.current), name, folder) if by_layer else None
        stolen_share = stolen.share()
    times = pooled(twins)
    base = times["baseline"]
    saved = {each: Ratio.of(list(values), list(base)) for each, values in times.items()}
    ours = "recommended" if settings else "baseline"
    names = [fixed(count)["name"] for count in counts]
    best = fastest(times, names)
    advised = settings.get("threads.intra_op", report.exploration.current)
    advised_name, current = fixed(advised)["name"], fixed(report.exploration.current)["name"]
    same = {ours, "again"} | (set() if by_layer else {advised_name})
    others = [each for each in saved if each not in same]
    floor = max(abs(saved["again"].low - 1), abs(saved["again"].high - 1))
    most = max(1 - ratio.median for each, ratio in saved.items() if each not in ("again", "recommended"))
    predicted = next((each.gain for each in report.settings), None)
    counted = advised_name if settings else best
    now = [twin[counted] / twin[current] for twin in meanwhile]
    gained = 1 - float(np.median(np.concatenate(now)))
    differences = [
        difference(one[each] / one[current], other[each] / other[current])
        for one, other in (meanwhile, twins)
        for each in names
        if each != current
    ]
    searched = [name for name in times if name not in ("again", "recommended")]
    return {
        "step_ms": float(np.median(base)) / 1e6,
        "rounds": len(base),
        "explorations": explorations,
        "truths": truths,
        "stolen": stolen_share,
        "settings": settings_in_short(settings),
        "predicted": predicted.expected if predicted else 0.0,
        "predicted_interval": [predicted.low, predicted.high] if predicted else [0.0, 0.0],
        "verified": 1 - saved[ours].median,
        "verified_meanwhile": None if by_layer else gained,
        "verified_interval": [1 - saved[ours].high, 1 - saved[ours].low],
        "by_quarter": by_quarter([twin[judged(twins)] / twin["baseline"] for twin in twins]),
        "by_quarter_meanwhile": by_quarter(now),
        "truth_moved": abs(1 - gained - float(np.median(times[counted] / times[current]))),
        "twins_differ": max(abs(apart) for apart, _ in differences),
        "between_processes_squared": float(np.mean([apart**2 - error**2 for apart, error in differences]) / 2),
        "over_best_fixed": 1 - float(np.median(times[ours] / times[best])),
        "fixed_loses": loses(pooled(meanwhile), advised_name, names, by_layer),
        "fixed_loses_later": loses(times, ours, names, by_layer),
        "search_fixed_loses": float(
            np.mean([loses(other, fastest(one, names), names) for one, other in in_both_orders(meanwhile)])
        ),
        "advised_count": advised,
        "control": cost and cost.median - 1,
        "control_interval": cost and [cost.low - 1, cost.high - 1],
        "beats": [bool(saved[ours].median < saved[each].median) for each in others],
        "not_beaten": [bool(saved[ours].median - saved[each].median <= floor) for each in others],
        "search_beats": [
            bool(np.median(other[chosen] / other[each]) < 1)
            for one, other in in_both_orders(twins)
            if (chosen := fastest(one, searched))
            for each in searched
            if not is_the_same(each, chosen, {"baseline", current})
        ],
        "floor": floor,
        "truth_gains": {each: 1 - ratio.median for each, ratio in saved.items()},
        "false_advice": bool(settings) and most <= floor and 1 - saved[ours].median <= floor,
        "problem": report.exploration.problem,
        "advice": report.advice,
    }


def pooled(twins: Twins) -> dict[str, np.ndarray]:
    return {name: np.concatenate([twin[name] for twin in twins]) for name in twins[0]}


def difference(ratios: np.ndarray, others: np.ndarray) -> tuple[float, float]:
    """Of their medians, and its standard error."""
    rng = np.random.default_rng(0)
    errors = [np.median(rng.choice(each, (RESAMPLES, len(each))), axis=1).std() for each in (ratios, others)]
    return float(np.median(ratios) - np.median(others)), float(np.hypot(*errors))


def in_both_orders(twins: Twins) -> list[Twins]:
    return [twins, twins[::-1]]


def is_the_same(configuration: str, other: str, alike: set[str]) -> bool:
    """Whether two configurations are one under two names."""
    return configuration == other or {configuration, other} == alike


def fastest(times: dict[str, np.ndarray], names: list[str]) -> str:
    return min(names, key=lambda each: float(np.median(times[each] / times[names[0]])))


def loses(times: dict[str, np.ndarray], ours: str, names: list[str], by_layer: bool = False) -> float:
    """By how much a fixed count is slower than the best of them; a plan by layer is none."""
    return 0.0 if by_layer else float(np.median(times[ours] / times[fastest(times, names)])) - 1


def by_quarter(ratios: list[np.ndarray]) -> list[float]:
    """The gain in each quarter of the rounds of all processes."""
    quarters = zip(*(np.array_split(each, 4) for each in ratios), strict=True)
    return [1 - float(np.median(np.concatenate(parts))) for parts in quarters]


def settings_in_short(settings: dict[str, Any]) -> str:
    counted = [name for name in settings if name.startswith(("threads.layers", "threads.backward"))]
    return f"intra_op {settings.get('threads.intra_op')}, {len(counted)} layers" if settings else "none"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=float, default=20.0, help="of the exploration of each model")
    parser.add_argument("--only", choices=list(MODELS), action="append")
    options = parser.parse_args()
    models = {}
    for name in options.only or MODELS:
        models[name] = judge(name, options.seconds)
        found = models[name]
        progress(
            f"{name}: {found['step_ms']:.3g} ms, {found['settings']}: predicted {found['predicted']:.1%}, verified"
            f" {found['verified']:.1%}, over the best fixed {found['over_best_fixed']:.1%}, floor {found['floor']:.1%},"
            f" loses {found['fixed_loses']:.1%} (later {found['fixed_loses_later']:.1%}, a search"
            f" {found['search_fixed_loses']:.1%}), twins differ by {found['twins_differ']:.1%},"
            f" by quarter {', '.join(f'{gain:.0%}' for gain in found['by_quarter'])}, {found['stolen']:.1%} stolen"
        )
    advice = [each for each in models.values() if each["settings"] != "none"]
    later = [abs(each["predicted"] - each["verified"]) for each in advice]
    then = [each["verified"] if each["verified_meanwhile"] is None else each["verified_meanwhile"] for each in advice]
    errors = [abs(each["predicted"] - verified) for each, verified in zip(advice, then, strict=True)]
    beats, not_beaten, search = (
        [won for each in models.values() for won in each[key]] for key in ("beats", "not_beaten", "search_beats")
    )
    summary = {
        "models": len(models),
        "explored_again": {name: each["explorations"] for name, each in models.items() if each["explorations"] > 1},
        "truth_again": {name: each["truths"] for name, each in models.items() if each["truths"] > 1},
        "stolen_most": max(each["stolen"] for each in models.values()),
        "fixed_loses_most": max(each["fixed_loses"] for each in models.values()),
        "fixed_loses_most_later": max(each["fixed_loses_later"] for each in models.values()),
        "search_fixed_loses_most": max(each["search_fixed_loses"] for each in models.values()),
        "twins_differ_median": float(np.median([each["twins_differ"] for each in models.values()])),
        "twins_differ_most": max(each["twins_differ"] for each in models.values()),
        "between_processes": float(
            np.sqrt(max(np.mean([each["between_processes_squared"] for each in models.values()]), 0.0))
        ),
        "beats": float(np.mean(beats)),
        "search_beats": float(np.mean(search)),
        "not_beaten": float(np.mean(not_beaten)),
        "configurations": len(beats),
        "prediction_error_median": float(np.median(errors)) if errors else None,
        "prediction_error_worst": max(errors, default=None),
        "intervals_that_hold": float(
            np.mean(
                [
                    each["predicted_interval"][0] <= verified <= each["predicted_interval"][1]
                    for each, verified in zip(advice, then, strict=True)
                ]
            )
        )
        if advice
        else None,
        "truth_moved_median": float(np.median([each["truth_moved"] for each in models.values()])),
        "truth_moved_most": max(each["truth_moved"] for each in models.values()),
        "control_most": max((abs(each["control"]) for each in advice if each["control"] is not None), default=None),
        "prediction_error_median_later": float(np.median(later)) if later else None,
        "prediction_error_worst_later": max(later, default=None),
        "false_advice": [name for name, each in models.items() if each["false_advice"]],
    }
    print(json.dumps({"summary": summary, "models": models}, indent=2) if options.json else summary)


if __name__ == "__main__":
    main()
