"""From an exploration to settings: one count, or a count per layer, and what that saves; and guidelines."""

from dataclasses import replace

import numpy as np

from tracekit.advice.thread_settings import BY_LAYER, COMMON, MUCH_WAITING, is_by_layer, thread_settings
from tracekit.analysis.exploration import REST, Exploration, explore, explored
from tracekit.analysis.report_schema import Advice, Gain, Report, ThreadExploration
from tracekit.analysis.steps import steps_of
from tracekit.analysis.words import counted
from tracekit.models.guidelines import guidelines
from tracekit.models.switching import Pool, SwitchCosts
from tracekit.models.thread_plan import ThreadPlan, in_other_processes, plan_threads, tried_gain
from tracekit.record.topology import format_cpu_list
from tracekit.record.wire import MOST_SHAPES
from tracekit.run.reader import Run

_STEP_NS_TO_MS = 1e6
# Applying a plan may itself take 1 % of a step (`benchmarks/threads.py`: the control), and fresh processes differ by as
# much: what saves less can neither be told from it nor be verified.
_LEAST_GAIN = 0.01
# Processes that run the same program differ in what a count gains, by where their data happens to lie: the standard
# deviation (`benchmarks/threads.py`: `between_processes`). What is told is for processes to come; whether a gain is
# certain is decided in the one that was seen, which knows no better.
BETWEEN_PROCESSES = 0.015
# Fewer tell no interval.
_FEWEST_TRIALS = 3
_CONFIRM = "Confirm it: tracekit verify, with the same run and command."
_LAST_WORD = "The program calls torch.set_num_threads({}) itself and has the last word: take that out first. "
_TO_THE_TEST = "let it run more steps, or put them to the test: tracekit study threads"


def measured_threads(run: Run, report: Report) -> Advice:
    """Recommend the thread counts that an exploration measured to be faster; nothing where none is."""
    found = report.exploration
    if found is None:
        return Advice([], "")
    if found.problem:
        return Advice([], f"No thread count is recommended: {found.problem}.")
    measured = explore(*explored(run, steps_of(run, report.steps.process)))
    assert measured is not None  # the report has it from the same run
    calls = np.array([max(section.calls, 1.0) for section in measured.sections])
    costs = SwitchCosts(measured.counts, Pool.of(measured.openmp), measured.switch, measured.change)
    plan = plan_threads(measured.times, calls, costs, measured.current)
    # One count for everything is judged by whole plain steps: sections are recorded, and each has an error of its own.
    whole = plan_threads(measured.step_ns[:, None], np.ones(1), costs, measured.current)
    plan = replace(plan, fixed=whole.fixed, gain_of_fixed=whole.gain_of_fixed)
    # The one that a plan by layer must beat, even where it is not certain to be better than the current one.
    best = measured.counts[int(np.nanargmin(np.nanmedian(measured.step_ns, axis=0)))]
    tried = _best_tried(replace(plan, fixed=best), measured)
    is_certain = tried is not None and tried.gain_over_fixed[0] > 0
    # Where no layer is certain by itself, what was tried may be as a whole.
    candidate = tried if tried is not None and (is_certain or not plan.is_by_layer()) else plan
    if candidate.is_by_layer():
        found.candidate = _values(run, measured, candidate.choice)
    unsure = "" if is_certain else _unsure(plan, tried)
    plan = tried if tried is not None and is_certain else plan.given_up()
    found.guidelines = guidelines(measured, costs)
    return _advice(run, report, found, measured, plan, unsure)


def _advice(
    run: Run,
    report: Report,
    found: ThreadExploration,
    measured: Exploration,
    plan: ThreadPlan,
    unsure: str,
) -> Advice:
    choice, doubt = _worthwhile(plan, measured)
    for layer, count in zip(found.layers, choice, strict=True):
        layer.planned = count
    values, basis = _values(run, measured, choice), _basis(measured)
    last_word = "" if measured.set_by_program is None else _LAST_WORD.format(measured.set_by_program)
    apply = [f"{report.path}/settings.toml", "--", *report.command]
    if is_by_layer(values):
        rounds = next(each.rounds for each in measured.trials if each.choice == choice)
        settings = thread_settings(
            values, measured.current, _gain(plan.gain), "measured",
            f"the whole plan saves {_percent(plan.gain)} against {counted(measured.current, 'thread')} for everything,"
            f" and {_percent(plan.gain_over_fixed)} against {plan.fixed}, the best one count; {basis}, and these counts"
            f" together in {rounds} of them", apply,
        )  # fmt: skip
        return Advice(settings, last_word + _CONFIRM, values)
    settings = thread_settings(
        values, measured.current, _gain(plan.gain_of_fixed), "measured", f"{_step(measured, plan)}; {basis}", apply
    )
    if settings:
        return Advice(settings, last_word + _CONFIRM)
    return Advice([], f"No other thread count is recommended: {doubt or unsure or _why_none(measured, plan)}; {basis}.")


def _best_tried(plan: ThreadPlan, measured: Exploration) -> ThreadPlan | None:
    """Of the counts by layer that were in force together often enough, those that most surely gain over the plan's
    fixed count, with their gains as they were seen."""
    now, fixed = (measured.step_ns[:, measured.counts.index(count)] for count in (measured.current, plan.fixed))
    often = [each for each in measured.trials if each.rounds >= _FEWEST_TRIALS and len(set(each.choice)) > 1]
    seen = (
        replace(
            plan,
            choice=trial.choice,
            gain=tried_gain(trial.step_ns, now, len(often)),
            gain_over_fixed=tried_gain(trial.step_ns, fixed, len(often)),
        )
        for trial in often
    )
    return max(seen, key=lambda each: each.gain_over_fixed[0], default=None)


def _unsure(plan: ThreadPlan, tried: ThreadPlan | None) -> str:
    """Why counts by layer that seem to be faster are not advised; "" where none seem to be."""
    if tried is None:
        untried = "counts by layer seemed to be faster, but were not tried together often enough"
        return f"{untried}; {_TO_THE_TEST}" if plan.is_by_layer() else ""
    if tried.gain_over_fixed[1] < _LEAST_GAIN:
        return ""
    saved = f"counts by layer that were tried together saved {_percent(tried.gain_over_fixed)} against {tried.fixed}"
    return f"{saved}, the best one count: no gain is certain; {_TO_THE_TEST}"


def _values(run: Run, measured: Exploration, choice: tuple[int, ...]) -> dict[str, int | str]:
    """The values of a plan as settings: the count of everything else, those of layers, and where they were measured."""
    manifest, common = run.manifest, choice[-1]  # of the rest of the step
    planned = [
        (section, count)
        for section, count in zip(measured.sections, choice, strict=True)
        if section.name != REST and count != common
    ]
    values: dict[str, int | str] = {COMMON: common}
    if not planned:
        return values
    values |= {f"{BY_LAYER[section.direction]}.{section.name}": count for section, count in planned}
    if manifest.torch:
        values["threads.measured_on.torch"] = manifest.torch.version
        values["threads.measured_on.openmp"] = manifest.torch.openmp
    values["threads.measured_on.cpu"] = manifest.cpu.model
    values["threads.measured_on.affinity"] = format_cpu_list(manifest.cpu.affinity)
    values["threads.measured_on.quota"] = "none" if manifest.cpu.quota is None else f"{manifest.cpu.quota:g}"
    for layer in {section.name for section, _ in planned}:
        owner = layer if layer in measured.shapes else layer.rpartition(".")[0]
        shapes = measured.shapes.get(owner, [])
        if shapes and "" not in shapes and len(shapes) < MOST_SHAPES:  # one with more was measured with any
            values[f"threads.shapes.{owner}"] = "; ".join(measured.shapes[owner])
    return values


def _basis(measured: Exploration) -> str:
    text = f"{measured.rounds} rounds of blocks with {', '.join(map(str, measured.counts))} threads in turn"
    tried = np.count_nonzero(~np.isnan(measured.step_ns), axis=0)
    fewer = tried < 0.75 * max(tried, default=0)
    dropped = [f"{count} after {tried[at]}" for at, count in enumerate(measured.counts) if fewer[at]]
    text += f" (best for no layer and dropped: {', '.join(dropped)})" if dropped else ""
    blocks = "1 disturbed block" if measured.disturbed == 1 else f"{measured.disturbed} disturbed blocks"
    return text + (f", {blocks} left out" if measured.disturbed else "")


def _step(measured: Exploration, plan: ThreadPlan) -> str:
    medians = np.nanmedian(measured.step_ns, axis=0) / _STEP_NS_TO_MS
    old, new = (medians[measured.counts.index(count)] for count in (measured.current, plan.fixed))
    return f"a step took {old:.3g} ms with {counted(measured.current, 'thread')} and {new:.3g} ms with {plan.fixed}"


def _worthwhile(plan: ThreadPlan, measured: Exploration) -> tuple[tuple[int, ...], str]:
    """The plan's counts, or one count for everything where the plan gains too little over it; and why there is no gain
    where one only seems to be."""
    now = (measured.current,) * len(plan.choice)
    kept = measured.kept[measured.counts.index(measured.current)]
    waited = f"other programs kept the threads from their CPUs for {kept:.1%} of the time"
    if plan.gain_over_fixed[1] >= _LEAST_GAIN and plan.gain[1] >= _LEAST_GAIN:
        choice, gain = plan.choice, plan.gain
    elif plan.gain_of_fixed[1] >= _LEAST_GAIN:
        choice, gain = (plan.fixed,) * len(plan.choice), plan.gain_of_fixed
    else:
        return now, f"{waited}; let it run undisturbed" if kept >= MUCH_WAITING else ""
    if kept >= min(gain[0], MUCH_WAITING):
        return (
            now,
            f"{waited}, and the {_percent(gain)} that another count saved may be their doing; let it run undisturbed",
        )
    return choice, ""


def _why_none(measured: Exploration, plan: ThreadPlan) -> str:
    medians = np.nanmedian(measured.step_ns, axis=0) / _STEP_NS_TO_MS
    each = ", ".join(f"{time:.3g} ms with {count}" for count, time in zip(measured.counts, medians, strict=True))
    if plan.gain[1] > 0:
        return (
            f"the best plan would save {_percent(plan.gain)}, and less than {_LEAST_GAIN:.0%} cannot be told from what"
            f" applying it costs (a step took {each})"
        )
    if medians.min() < (1 - _LEAST_GAIN) * medians[measured.counts.index(measured.current)]:
        return (
            f"no gain is certain, the rounds differ too much (a step took {each}); let it run more steps, undisturbed"
        )
    return f"with {measured.current} threads the program is as fast as it was seen to be (a step took {each})"


def _percent(gain: tuple[float, float, float]) -> str:
    low, expected, high = in_other_processes(gain, BETWEEN_PROCESSES)
    return f"{expected:.1%} ({low:.1%} to {high:.1%})"


def _gain(gain: tuple[float, float, float]) -> Gain:
    return Gain(*(float(value) for value in in_other_processes(gain, BETWEEN_PROCESSES)))
