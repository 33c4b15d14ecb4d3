"""The study of thread counts: nothing set, one count for everything, a count per layer, and the control."""

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tracekit.advice import analyze
from tracekit.advice.entries import entries_of
from tracekit.advice.thread_settings import AFFINITY, COMMON, thread_settings
from tracekit.analysis.report_schema import Advice, Report
from tracekit.errors import TracekitError
from tracekit.run.reader import Run
from tracekit.settings.exploration import fixed
from tracekit.study.result import Study
from tracekit.study.rounds import Pair, Rounds, fastest
from tracekit.study.runs import Condition, StudyRuns
from tracekit.study.statistics import Comparison
from tracekit.study.switchback import compare_within

BASELINE = "baseline"
DYNAMIC, CONTROL = "dynamic", "dynamic-null"
# Of the time of a study, for what the plan itself costs: on 2 shared CPUs 50 s of runs knew it to within 0.8 %.
_SHARE_OF_CONTROL = 1 / 6


def study_threads(
    command: list[str],
    folder: Path,
    counts: list[int],
    layouts: Callable[[int], list[str]],
    budget_s: float,
    say: Callable[[str], None],
) -> Study:
    """Explore, then compare the conditions in fresh processes, interleaved, until the budget is spent.

    `layouts` are the values of `threads.affinity` to try with a count. The plan that exploring found to be the best is
    tried here even if that run could not make sure of it. What is recommended in the end is what these runs have shown.
    Raises StudyError when the program fails or has no steps; RunError when the folder is taken.
    """
    deadline = time.monotonic() + budget_s
    runs = StudyRuns.create(folder, command, say)
    say("exploring thread counts, in one run")
    run = runs.explore()
    report = analyze(run)
    best = _best(report, counts)
    of_count = {count: Condition(f"fixed:{count}", fixed(count)["settings"]) for count in sorted({*counts, best})}
    conditions = [Condition(BASELINE), *of_count.values()]
    conditions += [Condition(f"fixed:{best} {layout}", {COMMON: best, AFFINITY: layout}) for layout in layouts(best)]
    plan = report.exploration.candidate if report.exploration else {}
    within: list[Comparison] = []
    if plan:
        null = Condition(CONTROL, control(plan, best))
        conditions += [Condition(DYNAMIC, plan), null]
        until = time.monotonic() + _SHARE_OF_CONTROL * (deadline - time.monotonic())
        within = _compare_within(runs, of_count[best], null, until)
    else:
        say(f"no plan by layer: {report.advice}")
    rounds = Rounds(runs, conditions, lambda: _pairs(conditions, runs), secrets.randbits(32))
    current = run.manifest.torch.intra_op if run.manifest.torch else max(counts)

    def save() -> Study:
        advice = conclude(rounds.comparisons(), conditions, current, folder, command)
        return rounds.save(
            "threads",
            entries_of(advice),
            advice.why,
            within,
            settings=advice.settings,
            guidelines=report.exploration.guidelines if report.exploration else [],
            explored=str(run.path),
            advice=advice.why,
        )

    rounds.measure(deadline, save)
    return save()


def control(plan: dict[str, Any], count: int) -> dict[str, Any]:
    """The plan with one count everywhere: the same interception, and no change of the count."""
    return {name: count if type(value) is int else value for name, value in plan.items()}


def conclude(
    comparisons: list[Comparison], conditions: list[Condition], current: int, folder: Path, command: list[str]
) -> Advice:
    """The plan, or the best count on fewer CPUs, where it was faster than nothing set and than the best one count; else
    that count where it was faster than nothing set; else nothing, and why."""
    found = {(each.a, each.b): each for each in comparisons}
    best = comparisons[0].b  # of the fixed counts
    values = {condition.name: condition.settings for condition in conditions}
    others = sorted(
        (name for name in values if (BASELINE, name) in found and name != best),
        key=lambda name: -found[BASELINE, name].gain.expected,
    )
    chosen = next(
        (
            name
            for name, older in [*((name, (BASELINE, best)) for name in others), (best, (BASELINE,))]
            if all((old, name) in found and found[old, name].verdict == "faster" for old in older)
        ),
        None,
    )
    if chosen is None:
        verdicts = ", ".join(f"{each.b} against {each.a}: {each.verdict}" for each in comparisons[:-1])
        return Advice([], f"No thread count is recommended: nothing was certainly faster ({verdicts}).")
    gain = found[BASELINE, chosen]
    why = f"{gain.pairs} pairs of runs in processes of their own, a noise floor of {gain.margin:.1%}"
    if chosen != best:
        over = found[best, chosen].gain
        why += f"; against {best} it saves {over.expected:.1%} ({over.low:.1%} to {over.high:.1%})"
    settings = thread_settings(
        values[chosen], current, gain.gain, "measured", why, [str(folder / "settings.toml"), "--", *command]
    )
    if not settings:
        return Advice([], f"No other thread count is recommended: {best} is what the program has.")
    return Advice(settings, f"Recommended is {chosen}, as measured here.", values[chosen])


def _compare_within(runs: StudyRuns, same: Condition, null: Condition, until: float) -> list[Comparison]:
    """The control against its count in one process after the other, as many as there is time for (`time.monotonic`)."""
    recorded: list[Run] = []
    try:
        while time.monotonic() + runs.usual_seconds() <= until:
            runs.say(f"{null.name} and {same.name} in turn, in one process")
            recorded.append(runs.in_one_process([same, null]))
        if recorded:
            return [compare_within(same.name, null.name, recorded)]
        why = "a run takes longer than the time for that"
    except (TracekitError, OSError) as error:
        why = str(error)
    runs.say(f"{null.name} is not compared in one process: {why}")
    return []


def _best(report: Report, counts: list[int]) -> int:
    """The best one count of the exploration; the largest where that was too short to measure any."""
    step = report.exploration.step if report.exploration else {}
    return int(min(step, key=lambda count: step[count].expected, default=max(counts)))


def _pairs(conditions: list[Condition], runs: StudyRuns) -> list[Pair]:
    """The comparisons: the best one count against nothing set, the plan and what is on fewer CPUs against both, of
    which the one that gains most is chosen, and the control against its count."""
    names = [condition.name for condition in conditions]
    fixed_names = [name for name in names if name.startswith("fixed:")]
    on_fewer_cpus = [condition.name for condition in conditions if AFFINITY in condition.settings]
    on_all_cpus = [name for name in fixed_names if name not in on_fewer_cpus]
    best = fastest(runs, on_all_cpus, BASELINE)
    others = [*on_fewer_cpus, *(name for name in names if name == DYNAMIC)]
    pairs = [Pair(BASELINE, best, len(on_all_cpus))]
    pairs += [Pair(old, name, len(others)) for name in others for old in (BASELINE, best)]
    if DYNAMIC in names:
        null = next(condition for condition in conditions if condition.name == CONTROL)
        pairs.append(Pair(f"fixed:{null.settings[COMMON]}", CONTROL))
    return pairs
