"""Loading: how many workers, how many batches ahead, for each loader of the program."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Literal

import numpy as np

from tracekit.advice.late_loaders import late_loaders
from tracekit.advice.loader_choice import AS_GOOD, is_now, may_gain, missed_by, promising, smallest_as_good
from tracekit.advice.loader_effects import beside_results, effect_of, why_no_workers
from tracekit.advice.loader_findings import (
    how_long_it_waits,
    memory_of,
    pageable_copies,
    predictability,
    teams_in_workers,
    uneven_samples,
    why_it_waits,
    workers_that_import,
)
from tracekit.advice.loader_summary import loop_s, summary_of
from tracekit.analysis.loading import LoaderCosts, loader_costs
from tracekit.analysis.probes import Probe, probes
from tracekit.analysis.report_schema import Advice, Gain, LoaderForecast, LoaderSummary, Report, Setting
from tracekit.analysis.steps import steps_of
from tracekit.analysis.words import in_words, shell_line
from tracekit.errors import RunError
from tracekit.models.loader_epochs import as_crowded, measured_time
from tracekit.models.loader_memory import has_files, has_memory, left_by, needed, what_is_not_known
from tracekit.models.loading import (
    forecasts,
    saved_by_persisting,
    saved_in_any_order,
    storage_apart,
)
from tracekit.run.manifest import Loader
from tracekit.run.reader import Run
from tracekit.settings.inside import WHICH

# Where the CPUs are busy for this share of the time, no number of workers finds more of them.
_FULL = 0.9
# Half of the forecasts of `benchmarks/loading.py` miss by less.
_TYPICAL_ERROR = 0.03
_MS = 1e3
_OPEN_FILES = "a file that its data set holds open is one for all forked workers: open it in each"
_COPIES = (
    "each worker has a copy of the data set: random numbers of a generator of its own repeat in each, and what the"
    " program changes in it later is not seen there"
)
_ONE_THREAD = "torch has one thread in a worker, which may change the last bits of what it computes there"
_MISS_CHANGES = "those that persist do not see what the program changes in its data set later"
_SHARED_OUT = "reads an iterable data set, which other workers would share out differently"


def loader_settings(run: Run, report: Report) -> Advice:
    """Recommend workers, batches ahead and persistence for each loader; say why the program waits for it.

    The smallest setting is recommended that is within 1 % of the one that loses least whichever storage it is, where
    even the least that is predicted for it is a gain. Fills `report.loaders`, adds the findings of `loader_findings`.
    """
    steps = steps_of(run, report.steps.process)
    whole, run = run, run if steps.main is None else run.near(steps.main)
    settings: list[Setting] = []
    whys: list[str] = []
    probed, why_none = _probes(run)
    found = sorted(loader_costs(run, steps), key=lambda each: -each.wait.sum())
    cells = {each.loader: (each.settings.num_workers, each.settings.prefetch_factor or 0) for each in found}
    for costs in found:
        if costs.known == 0:
            whys.append(f"How the batches of {costs.loader} are made was not seen, so nothing is told of it.")
            continue
        if costs.settings.varied:
            whys.append(
                f"{costs.loader} was made with other settings or samplers in turn: record a run that keeps to some."
            )
            continue
        if costs.at_once:
            whys.append(f"Several iterators of {costs.loader} were in use at once, so nothing is told of it.")
            continue
        if costs.is_aside:
            whys.append(f"A thread of its own reads {costs.loader}: for how long it waits tells nothing of the steps.")
            continue
        others = [(each, *cells[each.loader]) for each in found if each.loader != costs.loader]
        costs = replace(costs, memory=left_by(others, costs.memory))  # all may have their workers at the same time
        costs = as_crowded(costs)
        probe, loop = probed.get(costs.loader), loop_s(steps, costs.process)
        predicted = forecasts(costs, [costs.settings.num_workers] if costs.settings.iterable else None, probe)
        summary = summary_of(costs, predicted, loop, probe)
        report.loaders.append(summary)
        if summary.split:
            report.findings.append(why_it_waits(summary, costs))
        if summary.worker_bytes:
            report.findings.append(memory_of(summary))
        further = teams_in_workers(costs), workers_that_import(summary, costs)
        report.findings += [each for each in further if each]
        made, why = _advise(run, report, costs, summary, loop)
        why += _what_was_seen(summary)
        if probe is not None and (apart := storage_apart(costs, probe)):
            why += (
                f" Its probe tells little: for what it waited for, a batch took {np.exp(apart):.2g} times as long to"
                " make as in the run, as where a cache has been filled or emptied since."
            )
        settings += [*made, *_further(run, report, costs, summary, made, loop)]
        whys.append(why)
        cells[costs.loader] = _recommended(made, summary)
    report.loaders.sort(key=lambda each: each.loader)
    report.findings += late_loaders(whole, report)
    report.findings += [
        predictability(name, each) for name, each in run.manifest.loaders.items() if each.predictability
    ]
    if why_none:
        whys.append(f"The probe was left out: {why_none}; {_how_to_probe(report)} makes another.")
    further = uneven_samples(run), pageable_copies(run, found)
    report.findings += [each for each in further if each]
    return Advice(settings, " ".join(whys), holds_for(run.manifest.loaders, [each.name for each in settings]))


def _probes(run: Run) -> tuple[dict[str, Probe], str]:
    """What a probe has seen of each loader; or why it cannot be read: the run itself can be explained."""
    try:
        return probes(run), ""
    except RunError as error:
        return {}, str(error)


def _advise(
    run: Run, report: Report, costs: LoaderCosts, summary: LoaderSummary, loop: float
) -> tuple[list[Setting], str]:
    """The settings of one loader, and why there are these or none."""
    name = costs.loader
    if costs.settings.iterable and not summary.num_workers:
        return [], f"{name} {_SHARED_OUT}, so none is advised."
    if not costs.settings.made:
        return [], f"{name} was not seen as it was made, so no setting can be given to it."
    if why_none := why_no_workers(costs.settings):
        return [], f"{name} is to have no workers: {why_none}."
    if costs.in_turn_with:
        return [], (
            f"{name} and {costs.in_turn_with} are asked for batches in turn, so what settings of one gain hangs on the"
            f" other; {_how_to_study(report)} tells for the one that is waited for."
        )
    if not costs.in_loop:
        return [], f"{name} is read outside of the steps, so its settings make none of them shorter."
    chosen, share = promising(summary), _share_of_loop(costs, loop)
    least = min((each.expected_ms for each in summary.forecasts), default=summary.batch_ms)
    is_as_good = summary.batch_ms <= least * (1 + AS_GOOD)
    # A gain that was seen is worth more than a model's.
    seen = [each for each in summary.forecasts if each.seen and not is_as_good]
    if certain := [each for each in seen if _gain(summary, each, share).low > 0]:
        chosen = smallest_as_good(certain, attrgetter("expected_ms"))
    elif chosen is None or is_as_good or is_now(summary, chosen):
        chosen = None if chosen is None or costs.busy > _FULL else may_gain(summary)
    if chosen is None or _gain(summary, chosen, share).high <= AS_GOOD:
        return [], _why_nothing_helps(costs, summary)
    gain = _gain(summary, chosen, share)
    what = in_words(chosen.num_workers, chosen.prefetch_factor)
    if gain.low <= 0:
        now = in_words(summary.num_workers, summary.prefetch_factor)
        knows = _how_to_study(report) if summary.probed or costs.settings.iterable else _how_to_probe(report)
        return [], (
            f"{name}: with {what} a step may take {gain.high:.0%} less, or {abs(gain.low):.0%} more: a run with {now}"
            f" does not tell{_of_one_thread(costs)}; {knows} tells."
        )
    by = costs.settings.start_method
    if not summary.num_workers and chosen.num_workers and not chosen.seen and by not in ("", "fork"):
        return [], (
            f"{name}: {what} may gain {gain.expected:.0%}, if all that they are given can be pickled, as {by} starts"
            f" them; {_how_to_probe(report)} tells."
        )
    place = summary.place or "place not seen"
    why = f"{what} for {name} ({place}); the program waits for it {how_long_it_waits(summary)}"
    if costs.settings.iterable:
        why += f"; it {_SHARED_OUT}, so their number stays"
    elif _hangs_on_the_unseen(summary):
        why += (
            f"; the run has not seen more than {costs.readers} being made at once, and how much it saves depends on how"
            f" storage and CPUs serve more{_of_one_thread(costs)}; {_how_to_probe(report)} tells"
        )
    if chosen.num_workers and not summary.num_workers:
        why += f"; {_OPEN_FILES}" if by in ("", "fork") else ""
        why += f"; {_COPIES}"
        why += f"; {_ONE_THREAD}" if costs.alone >= 1 + AS_GOOD else ""
    if chosen.num_workers > costs.cpus:
        why += "; torch may warn of more workers than CPUs, and runs them"
    values = {f"loader.{name}.num_workers": chosen.num_workers}
    if chosen.num_workers:
        values[f"loader.{name}.prefetch_factor"] = chosen.prefetch_factor
    basis: Literal["probe", "model"] = "probe" if summary.probed else "model"
    settings = settings_of(summary, run.manifest.loaders, values, gain, basis, why, _apply(report))
    return settings, f"{name} is to have {what}."


def _further(
    run: Run, report: Report, costs: LoaderCosts, summary: LoaderSummary, made: list[Setting], loop: float
) -> list[Setting]:
    """With as many workers as `made` gives it: to keep them from epoch to epoch, to take batches as they get ready."""
    if costs.settings.iterable or not costs.settings.made or costs.in_turn_with:
        return []
    share = _share_of_loop(costs, loop)
    name = f"loader.{costs.loader}."
    workers, prefetch = _recommended(made, summary)
    tried = (
        (
            "persistent_workers",
            True,
            saved_by_persisting(costs, workers, prefetch),
            f"{summary.epochs} epochs, and the workers are started anew for each; {_MISS_CHANGES}",
        ),
        (
            "in_order",
            False,
            saved_in_any_order(costs, workers, prefetch),
            "batches that are ready wait for one that takes long; their order is then another one in each run",
        ),
    )
    found = []
    for setting, value, of_loader, why in tried:
        if setting == "persistent_workers" and not has_memory(costs, workers, prefetch):
            continue  # those of other loaders would live at the same time
        # Two replays of the same batches miss what this one missed of the run, and not more than that of each other;
        # that it missed little may be luck.
        missed = share * max(summary.error, _TYPICAL_ERROR) * (1 - of_loader)
        gain = Gain(share * of_loader - missed, share * of_loader, min(share * of_loader + missed, 1.0))
        if gain.low > AS_GOOD:
            values_of_it = {name + setting: value}
            found += settings_of(summary, run.manifest.loaders, values_of_it, gain, "model", why, _apply(report))
    return found


def _what_was_seen(summary: LoaderSummary) -> str:
    """How long batches take with the settings of a probe, in words."""
    seen = [each for each in summary.forecasts if each.seen and not is_now(summary, each)]
    ratios = [
        f"{each.expected_ms / summary.batch_ms:.2f} times as long as now ({each.low_ms / summary.batch_ms:.2f}"
        f" to {each.high_ms / summary.batch_ms:.2f}) with {in_words(each.num_workers, each.prefetch_factor)}"
        for each in sorted(seen, key=attrgetter("expected_ms"))
    ]
    return f" By its probe and the replay, a batch takes {', '.join(ratios)}." if ratios else ""


def _recommended(made: list[Setting], summary: LoaderSummary) -> tuple[int, int]:
    """The workers that a loader is to have, and the batches ahead of each."""
    values = {each.name.rpartition(".")[2]: each.recommended for each in made if isinstance(each.recommended, int)}
    workers = values.get("num_workers", summary.num_workers)
    return workers, values.get("prefetch_factor") or summary.prefetch_factor or 2


def _share_of_loop(costs: LoaderCosts, loop: float) -> float:
    """The share of the main loop that goes by between this loader's batches, and as its workers start and end."""
    return min(measured_time(costs) * len(costs) * costs.in_loop / loop, 1.0) if loop else 1.0


def _apply(report: Report) -> list[str]:
    return [f"{report.path}/settings.toml", "--", *report.command]


def settings_of(
    loader: LoaderSummary,
    facts: Mapping[str, Loader],
    values: Mapping[str, int | bool],
    gain: Gain,
    basis: Literal["measured", "model", "probe"],
    why: str,
    apply: list[str],
) -> list[Setting]:
    """Those of the values that differ from what the loader has; they have one gain together. `facts` of all loaders of
    the process, by name; `apply`: the command."""
    now = {
        "num_workers": loader.num_workers,
        "prefetch_factor": loader.prefetch_factor or None,
        "persistent_workers": loader.persistent_workers,
        "in_order": loader.in_order,
    }
    itself = facts.get(loader.loader, Loader(num_workers=loader.num_workers))
    others = [each for name, each in facts.items() if name != loader.loader]
    line = shell_line(["tracekit", "apply", *apply])
    found = []
    for name, value in values.items():
        key = name.rpartition(".")[2]
        if value != now[key]:
            effect, beside = effect_of(itself, others, key, value), beside_results(itself, key)
            told = f"{why}; {beside}" if beside else why
            found.append(Setting(name, now[key], value, gain, basis, effect, told, line))
    return found


def holds_for(facts: Mapping[str, Loader], names: Iterable[str]) -> dict[str, int | str]:
    """Which loaders settings of these names are for: they hold for them alone."""
    advised = {name.split(".", 1)[1].rpartition(".")[0] for name in names}
    which = {f"loader.{name}.{key}": getattr(facts[name], key) for name in advised & facts.keys() for key in WHICH}
    return {name: value for name, value in sorted(which.items()) if value}


def _gain(loader: LoaderSummary, chosen: LoaderForecast, share: float) -> Gain:
    """The share of the step that is saved."""
    times = (chosen.high_ms, chosen.expected_ms, chosen.low_ms)
    return Gain(*(share * (1 - time / loader.batch_ms) for time in times))


def _hangs_on_the_unseen(loader: LoaderSummary) -> bool:
    """Whether what is promising has a range wider than what the model may miss, for want of a look at more readers."""
    chosen, missed = promising(loader), (1 + missed_by(loader)) ** 2
    return not loader.probed and chosen is not None and chosen.high_ms > chosen.low_ms * missed * (1 + AS_GOOD)


def _of_one_thread(costs: LoaderCosts) -> str:
    """What else is not known, in words, of a run whose batches were made by several threads."""
    one_thread = max(costs.alone, costs.maker_cpus)
    if costs.settings.num_workers or one_thread < 1 + AS_GOOD:
        return ""
    return f"; a worker may have one thread, which takes up to {one_thread:.2g} times as long where several computed"


def _how_to_probe(report: Report) -> str:
    return f"`{shell_line(['tracekit', 'analyze', '--probe', report.path])}`"


def _how_to_study(report: Report) -> str:
    return f"`{shell_line(['tracekit', 'study', 'loading', '--', *report.command])}`"


def _why_nothing_helps(costs: LoaderCosts, summary: LoaderSummary) -> str:
    if costs.busy > _FULL and summary.wait > AS_GOOD:
        return (
            f"{costs.loader}: no number of workers helps, the CPUs are full ({costs.busy:.0%}): decode once and keep"
            " the result, or use cheaper transforms."
        )
    now = in_words(summary.num_workers, summary.prefetch_factor)
    if costs.settings.iterable:
        return f"{costs.loader}: more batches ahead gain nothing; it {_SHARED_OUT}, so their number stays."
    if unknown := what_is_not_known(costs):
        return f"{costs.loader}: more than {now} is not advised, as nobody has seen {unknown}."
    why = f"{costs.loader}: {now} are as good as any, as far as {len(costs):,} batches tell"
    workers, prefetch = summary.num_workers + 1, max(summary.prefetch_factor, 1)
    if not has_files(costs, workers, prefetch):
        why += ", and more may need more open files than there may be (`ulimit -n`)"
        return f"{why}; the program waits {how_long_it_waits(summary)}."
    if not has_memory(costs, workers, prefetch):
        sizes = zip(needed(costs, workers, prefetch), (costs.memory.shared, costs.memory.free), strict=True)
        both = [each for each in zip(sizes, ("shared memory", "memory"), strict=True) if each[0][1] is not None]
        of_mib = [
            f"{size / (1 << 20):,.0f} of {(free or 0) / (1 << 20):,.0f} MiB of {what}" for (size, free), what in both
        ]
        why += f" that are sure to fit: {in_words(workers, prefetch)} may take {' and '.join(of_mib)}"
        if not costs.seen_working:
            why += ", if each takes what the program does, whose memory they share as far as they only read it"
        elif costs.settings.start_method in ("", "fork"):
            why += ", or less: forked ones share with the program what both only read"
    return f"{why}; the program waits {how_long_it_waits(summary)}."
