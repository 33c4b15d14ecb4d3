"""From an exploration to settings: one count, or a count per layer, and what that saves; and guidelines."""

from dataclasses import replace

import numpy as np

from tracekit.analysis.exploration import REST, Exploration, explore
from tracekit.analysis.report_schema import Advice, Gain, LayerThreadTimes, Report, Setting
from tracekit.analysis.steps import find_steps
from tracekit.analysis.words import shell_line
from tracekit.models.guidelines import guidelines
from tracekit.models.switching import Pool, SwitchCosts
from tracekit.models.thread_plan import ThreadPlan, plan_threads
from tracekit.record.topology import format_cpu_list
from tracekit.run.reader import Run

_STEP_NS_TO_MS = 1e6
# Applying a plan may itself take 1 % of a step (`benchmarks/threads.py`: the control), and fresh processes differ by as
# much: what saves less can neither be told from it nor be verified.
_LEAST_GAIN = 0.01


def measured_threads(run: Run, report: Report) -> Advice:
    """Recommend the thread counts that an exploration measured to be faster; nothing where none is."""
    found = report.exploration
    if found is None:
        return Advice([], "")
    if found.problem:
        return Advice([], f"No thread count is recommended: {found.problem}.")
    measured = explore(run, find_steps(run))
    assert measured is not None  # the report has it from the same run
    calls = np.array([max(section.calls, 1.0) for section in measured.sections])
    costs = SwitchCosts(measured.counts, Pool.of(measured.openmp), measured.switch, measured.change)
    plan = _with_splitting(plan_threads(measured.times, calls, costs, measured.current), measured)
    found.guidelines = guidelines(measured, costs)
    return _advice(run, report, found.layers, measured, plan)


def _advice(
    run: Run, report: Report, report_layers: list[LayerThreadTimes], measured: Exploration, plan: ThreadPlan
) -> Advice:
    choice, doubt = _worthwhile(plan, measured)
    common = choice[-1]  # of the rest of the step
    by_layer: dict[str, dict[str, int]] = {"forward": {}, "backward": {}}
    for layer, section, count in zip(report_layers, measured.sections, choice, strict=True):
        layer.planned = count
        if section.name != REST and count != common:
            by_layer[section.direction][section.name] = count
    apply = shell_line(["tracekit", "apply", f"{report.path}/settings.toml", "--", *report.command])
    basis = _basis(measured)
    settings = []
    if common != measured.current:
        one_count = not any(by_layer.values())
        gain = plan.gain_of_fixed if one_count else plan.gain
        what = f"{_threads(common)} for everything" + ("" if one_count else " but the layers below, together with them")
        settings.append(
            Setting("threads.intra_op", measured.current, common, _gain(gain), "measured" if one_count else "model",
                    "numerics", f"{what}: {_step(measured, plan)}; {basis}", apply)
        )  # fmt: skip
    for name, direction in (("threads.layers", "forward"), ("threads.backward", "backward")):
        if by_layer[direction]:
            settings.append(
                Setting(name, measured.current, by_layer[direction], _gain(plan.gain), "model", "numerics",
                        f"the whole plan saves {_percent(plan.gain)} against {_threads(measured.current)} for"
                        f" everything, and {_percent(plan.gain_over_fixed)} against {plan.fixed}, the best one count;"
                        f" {basis}", apply)
            )  # fmt: skip
    if not settings:
        return Advice([], f"No other thread count is recommended: {doubt or _why_none(measured, plan)}; {basis}.")
    holds_for = _holds_for(run, measured, by_layer, common) if any(by_layer.values()) else {}
    return Advice(settings, "Confirm it: tracekit verify, with the same run and command.", holds_for)


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def _holds_for(
    run: Run, measured: Exploration, by_layer: dict[str, dict[str, int]], common: int
) -> dict[str, int | str]:
    """What goes with a plan by layer: the count of everything else, and where it was measured."""
    manifest = run.manifest
    holds: dict[str, int | str] = {"threads.intra_op": common}
    if manifest.torch:
        holds["threads.measured_on.torch"] = manifest.torch.version
        holds["threads.measured_on.openmp"] = manifest.torch.openmp
    holds["threads.measured_on.cpu"] = manifest.cpu.model
    holds["threads.measured_on.affinity"] = format_cpu_list(manifest.cpu.affinity)
    holds["threads.measured_on.quota"] = "none" if manifest.cpu.quota is None else f"{manifest.cpu.quota:g}"
    for layer in {name for layers in by_layer.values() for name in layers}:
        owner = layer if layer in measured.shapes else layer.rpartition(".")[0]
        if owner in measured.shapes and "" not in measured.shapes[owner]:
            holds[f"threads.shapes.{owner}"] = "; ".join(measured.shapes[owner])
    return holds


def _basis(measured: Exploration) -> str:
    text = f"{measured.rounds} rounds of blocks with {', '.join(map(str, measured.counts))} threads in turn"
    tried = np.count_nonzero(~np.isnan(measured.step_ns), axis=0)
    fewer = tried < 0.75 * max(tried, default=0)
    dropped = [f"{count} after {tried[at]}" for at, count in enumerate(measured.counts) if fewer[at]]
    text += f" (best for no layer and dropped: {', '.join(dropped)})" if dropped else ""
    return text + (f", {measured.disturbed} disturbed blocks left out" if measured.disturbed else "")


def _step(measured: Exploration, plan: ThreadPlan) -> str:
    medians = np.nanmedian(measured.step_ns, axis=0) / _STEP_NS_TO_MS
    old, new = (medians[measured.counts.index(count)] for count in (measured.current, plan.fixed))
    return f"a step took {old:.3g} ms with {_threads(measured.current)} and {new:.3g} ms with {plan.fixed}"


def _worthwhile(plan: ThreadPlan, measured: Exploration) -> tuple[tuple[int, ...], str]:
    """The plan's counts, or one count for everything where the plan gains too little over it; and why there is no gain
    where one only seems to be."""
    now = (measured.current,) * len(plan.choice)
    if plan.gain_over_fixed[1] >= _LEAST_GAIN and plan.gain[1] >= _LEAST_GAIN:
        choice, gain = plan.choice, plan.gain
    elif plan.gain_of_fixed[1] >= _LEAST_GAIN:
        choice, gain = (plan.fixed,) * len(plan.choice), plan.gain_of_fixed
    else:
        return now, ""
    kept = measured.kept[measured.counts.index(measured.current)]
    if gain[0] > kept:
        return choice, ""
    return now, (
        f"other programs kept the threads from their CPUs for {kept:.1%} of the time, and the {_percent(gain)} that"
        " another count saved may be no more than that; let it run undisturbed"
    )


def _with_splitting(plan: ThreadPlan, measured: Exploration) -> ThreadPlan:
    """The plan with gains less what splitting costs: layers inside an RNN have counts of their own only if they are run
    one by one, which the times do not show, as all counts were tried that way."""
    step = float(np.nanmedian(measured.step_ns[:, measured.counts.index(plan.fixed)]))
    lost = _splitting_ns(plan, measured) / step
    if not lost:
        return plan
    low, expected, high = plan.gain
    low_over, expected_over, high_over = plan.gain_over_fixed
    return replace(
        plan,
        gain=(low - lost, expected - lost, high - lost),
        gain_over_fixed=(low_over - lost, expected_over - lost, high_over - lost),
    )


def _splitting_ns(plan: ThreadPlan, measured: Exploration) -> float:
    """What a step loses to the splitting of the RNNs whose layers have counts of their own."""
    common = plan.choice[-1]
    owners = {
        section.name.rpartition(".")[0]
        for section, count in zip(measured.sections, plan.choice, strict=True)
        if count != common and section.name not in measured.shapes and section.name != REST
    }
    split = [section for section in measured.sections if section.name.rpartition(".")[0] in owners]
    return measured.split * sum(section.calls for section in split if section.name not in measured.shapes)


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
    low, expected, high = gain
    return f"{expected:.1%} ({low:.1%} to {high:.1%})"


def _gain(gain: tuple[float, float, float]) -> Gain:
    return Gain(*(float(value) for value in gain))
