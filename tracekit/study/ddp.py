"""The study of gradient buckets: nothing set, the caps that may be best, gradients that live in their buckets, and no
look for unused parameters where the look has found none. Which caps may be best, a run tells that tries all in turn."""

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from tracekit.advice import analyze
from tracekit.advice.buckets import effect_on
from tracekit.advice.entries import entries_of
from tracekit.advice.unused_parameters import SETTING as LOOK
from tracekit.advice.unused_parameters import needless_look
from tracekit.analysis.people import ranks_of, world_of
from tracekit.analysis.report_schema import Advice, BucketSummary, Setting
from tracekit.analysis.words import shell_line
from tracekit.models.ddp_replay import MIB
from tracekit.run.manifest import Wrapped
from tracekit.settings.exploration import BUCKET_CAP
from tracekit.study.result import Study
from tracekit.study.rounds import Pair, Rounds, fastest
from tracekit.study.runs import Condition, StudyRuns
from tracekit.study.statistics import Comparison
from tracekit.study.verify import BASELINE

VIEW = "ddp.gradient_as_bucket_view"
# Each takes a whole run in every round.
_MOST_CAPS = 3
_USUAL_CAPS_MB = (4.0, 25.0, 100.0)
# Beside the numbers: what a program has to know before it sets it for good.
_CAVEATS = {
    VIEW: "gradients are then a part of their bucket: a program that keeps them beyond zero_grad finds others there",
    LOOK: "a pass that does leave parameters unused, later on or with other data, ends the program with an error",
}


def study_ddp(command: list[str], folder: Path, budget_s: float, say: Callable[[str], None]) -> Study:
    """Record once as it is, and once with every cap in turn; then compare in fresh processes what may be the best
    gradient buckets.

    Raises StudyError when the program fails or has no steps; RunError when the folder is taken.
    """
    deadline = time.monotonic() + budget_s
    runs = StudyRuns.create(folder, command, say)
    say("recording one run")
    run = runs.explore(())
    report = analyze(run)
    buckets, advice_of_caps = report.buckets, report.advice
    is_compiled = any(each.compiled for each in run.manifest.ddp)
    if run.manifest.ddp and not run.manifest.may_use_gpu and not is_compiled:
        say("recording one run that tries every cap in turn")
        explored = analyze(runs.explore(("--explore", "buckets")))
        if explored.buckets is not None:
            buckets, advice_of_caps = explored.buckets, explored.advice
        else:
            say(explored.advice)
    tried = candidates(buckets) if buckets else usual_caps(run.manifest.ddp)
    if run.manifest.ddp and not run.manifest.ddp[0].gradient_as_bucket_view:
        tried |= {"gradients in buckets": {VIEW: True}}
    if needless_look(report):
        tried |= {"no look for unused parameters": {LOOK: False}}
    conditions = [Condition(BASELINE), *(Condition(name, values) for name, values in tried.items())]

    def pairs() -> list[Pair]:
        return [Pair(BASELINE, fastest(runs, list(tried), BASELINE), len(tried))] if tried else []

    rounds = Rounds(runs, conditions, pairs, secrets.randbits(32), list(tried))
    apply = [str(folder / "settings.toml"), "--", *command]
    own_cap = run.manifest.ddp[0].cap if run.manifest.ddp else 0.0
    ranks = world_of(ranks_of(run, report.steps.process))

    def save() -> Study:
        advice = _conclude(rounds.comparisons(), tried, own_cap, effect_on(ranks, run.manifest.ddp), apply)
        return rounds.save(
            "ddp", entries_of(advice), advice.why, settings=advice.settings, explored=str(run.path), advice=advice.why
        )

    if tried:
        rounds.measure(deadline, save)
    else:
        rounds.stopped = f"there is nothing to compare: {advice_of_caps}"
    return save()


def candidates(summary: BucketSummary) -> dict[str, dict[str, Any]]:
    """By name: the caps whose predicted steps may be the shortest, the most likely first."""
    others = summary.forecasts[1:]
    least = min(each.high_ms for each in summary.forecasts)
    possible = sorted((each for each in others if each.low_ms <= least), key=lambda each: each.expected_ms)
    return {f"{each.cap_mb:g} MiB": {BUCKET_CAP: each.cap_mb} for each in possible[:_MOST_CAPS]}


def usual_caps(models: list[Wrapped]) -> dict[str, dict[str, Any]]:
    """Of a model of whose buckets nothing is told, as on GPUs: small ones, larger ones than torch's, and large ones, as
    far as they differ from each other and from its own."""
    if not models:
        return {}
    own = models[0]
    is_one = own.bucket_cap_mb > 0 and len(own.caps_mb) == 1  # of a list none is known to make the same buckets
    made = {own.bucket_cap_mb: max(own.bytes / MIB / own.bucket_cap_mb, 1.0)} if is_one else {}
    for cap_mb in _USUAL_CAPS_MB:
        count = max(own.bytes / MIB / cap_mb, 1.0)  # of buckets, about
        if cap_mb not in made and count not in made.values():
            made[cap_mb] = count
    return {f"{cap_mb:g} MiB": {BUCKET_CAP: cap_mb} for cap_mb in made if [cap_mb] != own.caps_mb}


def _conclude(
    comparisons: list[Comparison],
    tried: dict[str, dict[str, Any]],
    own_cap: float | str,
    effect: Literal["identical", "numerics"],
    apply: list[str],
) -> Advice:
    """The fastest of what was tried, where it was faster than nothing set."""
    if not tried:
        return Advice([], "No setting is recommended: nothing was seen that other gradient buckets may make faster.")
    best = next((each for each in comparisons[:-1] if each.verdict == "faster"), None)
    if best is None:
        return Advice([], "No setting is recommended: nothing was certainly faster.")
    why = f"{best.pairs} pairs of runs in processes of their own, a noise floor of {best.margin:.1%}"
    settings = [
        Setting(
            name=name,
            current=own_cap if name == BUCKET_CAP else not value,
            recommended=value,
            gain=best.gain,
            basis="measured",
            effect="numerics" if name == VIEW else effect,
            why="; ".join([why, *([_CAVEATS[name]] if name in _CAVEATS else [])]),
            apply=shell_line(["tracekit", "apply", *apply]),
        )
        for name, value in tried[best.b].items()
    ]
    return Advice(settings, f"Recommended is {best.b}, as measured here.")
