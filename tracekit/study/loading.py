"""The study of loaders: nothing set, what one run recommends, and what it would recommend if storage were otherwise."""

import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tracekit.advice import analyze
from tracekit.advice.entries import entries_of
from tracekit.advice.loader_choice import by_storage, smallest_as_good
from tracekit.advice.loader_effects import why_no_workers
from tracekit.advice.loading import holds_for, settings_of
from tracekit.analysis.report_schema import Advice, LoaderForecast, LoaderSummary
from tracekit.run.manifest import Loader
from tracekit.settings.inside import WHICH
from tracekit.study.result import Study
from tracekit.study.rounds import Pair, Rounds, fastest
from tracekit.study.runs import Condition, StudyRuns
from tracekit.study.statistics import Comparison
from tracekit.study.verify import BASELINE


def study_loading(command: list[str], folder: Path, budget_s: float, say: Callable[[str], None]) -> Study:
    """Record once, then compare in fresh processes what may be the best settings of the loader that is waited for most.

    Raises StudyError when the program fails, has no steps or no loader; RunError when the folder is taken.
    """
    deadline = time.monotonic() + budget_s
    runs = StudyRuns.create(folder, command, say)
    say("recording one run")
    run = runs.explore(())
    runs.compare_loops()
    report = analyze(run)
    loader = max(report.loaders, key=lambda each: each.wait, default=None)
    facts = run.manifest.loaders
    has_none_why = why_no_workers(facts[loader.loader]) if loader is not None and loader.loader in facts else ""
    is_made = loader is not None and facts.get(loader.loader, Loader()).made > 0
    tried = candidates(loader) if loader is not None and is_made and not has_none_why else []
    conditions = [Condition(BASELINE), *(_condition(loader, facts, each) for each in tried if loader is not None)]
    names = [condition.name for condition in conditions[1:]]

    def pairs() -> list[Pair]:
        return [Pair(BASELINE, fastest(runs, names, BASELINE), len(names))] if names else []

    rounds = Rounds(runs, conditions, pairs, secrets.randbits(32), names)

    def save() -> Study:
        advice = _conclude(rounds.comparisons(), conditions, loader, facts, command, folder)
        return rounds.save(
            "loading",
            entries_of(advice),
            advice.why,
            settings=advice.settings,
            explored=str(run.path),
            advice=advice.why,
        )

    if names:
        rounds.measure(deadline, save)
    else:
        rounds.stopped = f"there is nothing to compare: {report.advice}"
    return save()


def candidates(loader: LoaderSummary) -> list[LoaderForecast]:
    """The settings that are best if many readers are as fast as few, and those that are best if they are no faster
    together: the smallest that are within 1 % of it. Those that the run had are none."""
    found: list[LoaderForecast] = []
    for time_of in by_storage(loader):
        chosen = smallest_as_good(loader.forecasts, time_of)
        now = loader.num_workers, loader.prefetch_factor
        if chosen is not None and (chosen.num_workers, chosen.prefetch_factor) != now and chosen not in found:
            found.append(chosen)
    return found


def _condition(loader: LoaderSummary, facts: Mapping[str, Loader], forecast: LoaderForecast) -> Condition:
    name = f"{forecast.num_workers} workers x {forecast.prefetch_factor}" if forecast.num_workers else "no workers"
    settings: dict[str, Any] = {f"loader.{loader.loader}.num_workers": forecast.num_workers}
    if forecast.num_workers:
        settings[f"loader.{loader.loader}.prefetch_factor"] = forecast.prefetch_factor
    settings |= holds_for(facts, settings)
    return Condition(name, settings)


def _conclude(
    comparisons: list[Comparison],
    conditions: list[Condition],
    loader: LoaderSummary | None,
    facts: Mapping[str, Loader],
    command: list[str],
    folder: Path,
) -> Advice:
    """The fastest of what was tried, where it was faster than nothing set."""
    if loader is None:
        return Advice([], "No setting is recommended: no DataLoader was seen of which anything can be told.")
    best = next((each for each in comparisons[:-1] if each.verdict == "faster"), None)
    if best is None:
        return Advice([], "No setting is recommended: nothing was certainly faster.")
    values = next(each.settings for each in conditions if each.name == best.b)
    why = f"{best.pairs} pairs of runs in processes of their own, a noise floor of {best.margin:.1%}"
    apply = [str(folder / "settings.toml"), "--", *command]
    tried = {name: value for name, value in values.items() if not name.endswith(WHICH)}
    settings = settings_of(loader, facts, tried, best.gain, "measured", why, apply)
    why = f"Recommended is {best.b} for {loader.loader}, as measured here."
    return Advice(settings, why, holds_for(facts, [each.name for each in settings]))
