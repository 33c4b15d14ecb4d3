"""Whether the recommended thread counts are right: against everything else that could have been set.

    python benchmarks/threads.py [--json] [--seconds 20] [--only NAME]

Per model: `tracekit record --explore threads` and `analyze` give a recommendation. Then one process runs, in turn and
in randomised blocks, nothing set (twice: the noise floor), every fixed count, the recommendation, its control (the same
plan with one count everywhere) and plans drawn at random: the truth, on other blocks than those that it was found on.
The truth may change: `by_quarter` is what the recommendation, or else the best fixed count, gained in each quarter of
the blocks. Where these differ by more than the error of the prediction, the machine has changed, not the program.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from _side_by_side import Ratio, progress
from _thread_models import MODELS

from tracekit.advice import analyze
from tracekit.advice.entries import settings_entries
from tracekit.analysis.exploration import condition_times
from tracekit.analysis.report_schema import Report
from tracekit.analysis.steps import find_steps
from tracekit.record.machine import counts_here
from tracekit.run.reader import open_run
from tracekit.settings.exploration import fixed, switchback
from tracekit.study.threads import control

PROGRAM = [sys.executable, str(Path(__file__).parent / "_thread_models.py")]
RANDOM_PLANS = 6
# Records a command under a switchback, which no command line offers: conditions are read from the first argument.
RECORDER = """
import json, sys
from pathlib import Path
from tracekit.record.supervisor import Options, record
explore, output, *command = sys.argv[1:]
outcome = record(Options(command, Path(output), condition="switchback", explore=json.loads(explore), profile="off",
                         overhead=1.0, collectors=["steps", "layers", "counters"]))
sys.exit(outcome.exit_code)
"""


def recommendation(name: str, seconds: float, folder: Path) -> tuple[Report, dict[str, Any]]:
    """The report of an explored run, and the settings that it recommends."""
    command = [*PROGRAM, name, "--seconds", str(seconds)]
    record = [sys.executable, "-m", "tracekit", "record", "-q", "--explore", "threads", "-o", str(folder / "explored")]
    subprocess.run([*record, "--", *command], check=True, stdout=subprocess.DEVNULL)
    report = analyze(open_run(folder / "explored"))
    return report, {entry.name: entry.value for entry in settings_entries(report)}


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


def measured(name: str, conditions: list[dict[str, Any]], seconds: float, folder: Path) -> dict[str, np.ndarray]:
    """The step times of each condition, ns, by round."""
    command = [*PROGRAM, name, "--seconds", str(seconds)]
    explore = json.dumps(switchback(conditions))
    subprocess.run(
        [sys.executable, "-c", RECORDER, explore, str(folder / "truth"), *command],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    run = open_run(folder / "truth")
    table = condition_times(run, find_steps(run)).pivot(index="round", columns="name", values="step_ns").dropna()
    return {str(column): table[column].to_numpy() for column in table}


def judge(name: str, seconds: float) -> dict[str, Any]:
    """The recommendation for one model against the truth."""
    counts = counts_here()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        report, settings = recommendation(name, seconds, folder)
        conditions = [{"name": "baseline", "settings": {}}, {"name": "again", "settings": {}}]
        conditions += [fixed(count) for count in counts] + random_plans(report, counts)
        assert report.exploration is not None
        if settings:
            conditions.append({"name": "recommended", "settings": settings})
            conditions.append({"name": "control", "settings": control(settings, report.exploration.current)})
        times = measured(name, conditions, seconds * len(conditions) / 3, folder)
    base = times["baseline"]
    saved = {each: Ratio.of(list(values), list(base)) for each, values in times.items()}
    ours = "recommended" if settings else "baseline"
    names = [fixed(count)["name"] for count in counts]
    best = min(names, key=lambda each: saved[each].median)
    others = [each for each in saved if each not in (ours, "again", "control", *(["baseline"] if not settings else []))]
    others = [each for each in others if settings or each != fixed(report.exploration.current)["name"]]
    floor = max(abs(saved["again"].low - 1), abs(saved["again"].high - 1))
    most = max(1 - ratio.median for each, ratio in saved.items() if each not in ("again", "recommended", "control"))
    advised = settings.get("threads.intra_op", report.exploration.current)
    by_layer = any(each.startswith(("threads.layers", "threads.backward")) for each in settings)
    predicted = next((each.gain.expected for each in report.settings), 0.0)
    return {
        "step_ms": float(np.median(base)) / 1e6,
        "rounds": len(base),
        "settings": settings_in_short(settings),
        "predicted": predicted,
        "verified": 1 - saved[ours].median,
        "verified_interval": [1 - saved[ours].high, 1 - saved[ours].low],
        "by_quarter": by_quarter(times["recommended" if settings else best] / base),
        "over_best_fixed": 1 - float(np.median(times[ours] / times[best])),
        "fixed_loses": 0.0 if by_layer else float(np.median(times[ours] / times[best])) - 1,
        "advised_count": advised,
        "control": saved["control"].median - 1 if "control" in saved else None,
        "beats": [bool(saved[ours].median < saved[each].median) for each in others],
        "floor": floor,
        "truth_gains": {each: 1 - ratio.median for each, ratio in saved.items()},
        "false_advice": bool(settings) and most <= floor and 1 - saved[ours].median <= floor,
        "problem": report.exploration.problem,
    }


def by_quarter(ratios: np.ndarray) -> list[float]:
    """The gain in each quarter of the rounds."""
    return [1 - float(np.median(part)) for part in np.array_split(ratios, 4)]


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
            f" by quarter {', '.join(f'{gain:.0%}' for gain in found['by_quarter'])}"
        )
    errors = [abs(each["predicted"] - each["verified"]) for each in models.values() if each["settings"] != "none"]
    beats = [won for each in models.values() for won in each["beats"]]
    summary = {
        "models": len(models),
        "fixed_loses_most": max(each["fixed_loses"] for each in models.values()),
        "beats": float(np.mean(beats)),
        "configurations": len(beats),
        "prediction_error_median": float(np.median(errors)) if errors else None,
        "prediction_error_worst": max(errors, default=None),
        "false_advice": [name for name, each in models.items() if each["false_advice"]],
    }
    print(json.dumps({"summary": summary, "models": models}, indent=2) if options.json else summary)


if __name__ == "__main__":
    main()
