"""The study of thread counts: nothing set, one count for everything, a count per layer, and the control."""

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tracekit.advice import analyze
from tracekit.advice.entries import settings_entries
from tracekit.analysis.report_schema import Report
from tracekit.settings.exploration import fixed
from tracekit.study.result import Study
from tracekit.study.rounds import Rounds, fastest
from tracekit.study.runs import Condition, StudyRuns

BASELINE = "baseline"
DYNAMIC, CONTROL = "dynamic", "dynamic-null"


def study_threads(
    command: list[str], folder: Path, counts: list[int], budget_s: float, say: Callable[[str], None]
) -> Study:
    """Explore, then compare the conditions in fresh processes, interleaved, until the budget is spent.

    Raises StudyError when the program fails or has no steps; RunError when the folder is taken.
    """
    deadline = time.monotonic() + budget_s
    runs = StudyRuns.create(folder, command, say)
    say("exploring thread counts, in one run")
    run = runs.explore()
    report = analyze(run)
    entries = settings_entries(report)
    conditions = [Condition(BASELINE)]
    conditions += [Condition(f"fixed:{count}", fixed(count)["settings"]) for count in counts]
    plan = {entry.name: entry.value for entry in entries}
    if _is_by_layer(plan):
        conditions += [Condition(DYNAMIC, plan), Condition(CONTROL, control(plan, _best(report)))]
    else:
        say(f"no plan by layer: {report.advice}")
    rounds = Rounds(runs, conditions, lambda: _pairs(conditions, runs), secrets.randbits(32))
    return rounds.conduct(
        "threads",
        deadline,
        entries,
        report.advice,
        settings=report.settings,
        guidelines=report.exploration.guidelines if report.exploration else [],
        explored=str(run.path),
        advice=report.advice,
    )


def control(plan: dict[str, Any], count: int) -> dict[str, Any]:
    """The plan with one count everywhere: the same interception, and no change of the count."""
    return {name: count if type(value) is int else value for name, value in plan.items()}


def _is_by_layer(plan: dict[str, Any]) -> bool:
    return any(name.startswith(("threads.layers.", "threads.backward.")) for name in plan)


def _best(report: Report) -> int:
    """The best one count of the exploration."""
    assert report.exploration is not None
    step = report.exploration.step
    return int(min(step, key=lambda count: step[count].expected))


def _pairs(conditions: list[Condition], runs: StudyRuns) -> list[tuple[str, str]]:
    """The comparisons: the best one count against nothing set, the plan against both, the control against its count."""
    names = [condition.name for condition in conditions]
    fixed_names = [name for name in names if name.startswith("fixed:")]
    best = fastest(runs, fixed_names)
    pairs = [(BASELINE, best)]
    if DYNAMIC in names:
        null = next(condition for condition in conditions if condition.name == CONTROL)
        same = f"fixed:{null.settings['threads.intra_op']}"
        pairs += [(BASELINE, DYNAMIC), (best, DYNAMIC), (same, CONTROL)]
    return pairs
