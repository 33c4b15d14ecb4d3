"""The report: everything known about a run in one object, of which the text, the JSON and the dashboard are views."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from tracekit.analysis.accounts import Account, Each, account_of, counters_of, in_turn, people_of, with_steps
from tracekit.analysis.completeness import all_missing
from tracekit.analysis.counters import MACHINE
from tracekit.analysis.devices import device_use
from tracekit.analysis.exploration import Exploration, Matrix, explore, explored, median_interval
from tracekit.analysis.findings import find_all
from tracekit.analysis.json_objects import json_of
from tracekit.analysis.layers import layer_times
from tracekit.analysis.neighbours import neighbours
from tracekit.analysis.noise_effects import noise_effects
from tracekit.analysis.operators import operator_times
from tracekit.analysis.people import find_people, ranks_beside
from tracekit.analysis.phases import PHASES, phase_shares, step_phases
from tracekit.analysis.ranks import rank_groups, unfinished
from tracekit.analysis.report_schema import (
    LONG_STEP,
    REPORT_VERSION,
    Advisor,
    Gain,
    LayerSummary,
    LayerThreadTimes,
    OperatorSummary,
    Phase,
    ProcessSteps,
    Report,
    StepSummary,
    ThreadExploration,
)
from tracekit.analysis.steps import Steps, steps_of
from tracekit.analysis.teams import crowded_team
from tracekit.analysis.threads import Crowding, crowding
from tracekit.run.reader import Run
from tracekit.settings.inside import is_refusal

# The report names so many layers, and operators of each side; the tables have the rest.
_MOST = 200
_MS = 1e6


def analyze(run: Run, advisors: Sequence[Advisor] = (), each: Each = in_turn) -> Report:
    """Establish all that is known about a run, and ask the advisors (`tracekit.advice.ADVISORS`) for settings. `each`
    gives the processes' accounts to whoever makes them; what it is changes nothing in the report."""
    people = people_of(run)
    accounts = list(each(account_of, (run.of(who.process) for who in people), people))
    looping = with_steps(accounts)
    main = looping[0].person.process if looping else None
    here = run if main is None else run.near(main)
    steps = steps_of(run, main)
    layers = _layers(layer_times(here, steps))
    operators = operator_times(here, steps.main)
    in_order = sorted(looping, key=lambda account: account.person.process)
    manifest = run.manifest
    ways = [way for account in accounts for way in account.ways]
    team = 0 if main is None or not ways else crowded_team(here.manifest, ranks_beside(run, main))
    communication = [each for account in accounts for each in account.communication]
    ranks, untold = rank_groups(ways, people, steps, communication, team)
    unfinished_of = [note for account in in_order for note in account.unfinished]
    missing = list(dict.fromkeys([*all_missing(run, main is not None, unfinished_of), *untold]))
    report = Report(
        schema=REPORT_VERSION,
        run=run.name,
        complete=run.complete,
        missing=missing,
        steps=_summary(here, steps, [account.summary for account in in_order if account.summary]),
        findings=[],
        settings=[],
        advice="",
        path=str(run.path),
        command=manifest.command,
        condition=manifest.condition,
        exit_code=manifest.exit_code,
        exit_signal=manifest.exit_signal,
        overhead=manifest.overhead,
        layers=layers[:_MOST],
        layer_count=len(layers),
        operators=_operators(operators.groupby("side").head(_MOST)),
        operator_count=len(operators),
        threads=[account.use for account in in_order if account.use],
        crowding=_crowding(run, in_order, each),
        counters=[
            *counters_of(here.of(MACHINE), MACHINE, steps),
            *(counter for account in in_order for counter in account.counters),
        ],
        exploration=_exploration(explore(*explored(run, steps))),
        ranks=ranks,
        never_ended=unfinished(run),
        noise=noise_effects(here, steps),
        neighbours=neighbours(here, steps),
        garbage=[account.garbage for account in in_order if account.garbage],
        operator_sides={str(side): int(count) for side, count in operators["side"].value_counts(sort=False).items()},
        devices=[] if steps.main is None else device_use(here, steps.main),
    )
    report.findings = find_all(report)
    advice = [advisor(run, report) for advisor in advisors]
    report.settings = [setting for each in advice for setting in each.settings]
    report.advice = " ".join(each.why for each in advice if each.why)
    # They were found with what the run was recorded under, which is to hold beside them.
    refused = any(is_refusal(note.what) for note in run.manifest.missing)
    in_force = dict(run.manifest.settings) if report.settings and not refused else {}
    report.holds_for = in_force | {name: value for each in advice for name, value in each.holds_for.items()}
    return report


def _crowding(run: Run, looping: Sequence[Account], each: Each) -> list[Crowding]:
    """Host by host, in the order in which their supervisors began."""
    on: dict[str, list[Account]] = {}
    for account in looping:
        on.setdefault(account.person.host, []).append(account)
    hosts = [host for host in (manifest.host for manifest in run.manifests) if host in on]
    runs = (run.near(on[host][0].person.process) for host in hosts)
    return list(each(crowding, runs, [[account.loop for account in on[host]] for host in hosts]))


def report_json(report: Report) -> bytes:
    """The report as one JSON object (schema 1)."""
    return json_of(report)


def summarize_steps(run: Run, steps: Steps) -> StepSummary:
    """Count, median and 90th percentile of the steps, and the phases of a step."""
    roles = {who.process: who.role or "" for who in find_people(run)}
    counted = {int(process): part["duration_ns"] / _MS for process, part in steps.frame.groupby("process")}
    processes = [
        ProcessSteps(process, roles.get(process, ""), len(times), steps.rule[process], float(times.median()))
        for process, times in counted.items()
    ]
    return _summary(run, steps, processes)


def _summary(run: Run, steps: Steps, processes: list[ProcessSteps]) -> StepSummary:
    if steps.main is None:
        return StepSummary(0, None, None, [], processes=processes)
    times = (steps.of(steps.main)["duration_ns"] / _MS).to_numpy()
    is_long = times > LONG_STEP * np.median(times)
    phases = step_phases(run, steps)
    shares = phase_shares(phases, steps.main)
    return StepSummary(
        count=len(times),
        median_ms=float(np.median(times)),
        p90_ms=float(np.percentile(times, 90)),
        phases=[Phase(name, share) for name, share in shares.items()],
        longest_ms=float(times.max()),
        long_steps=int(is_long.sum()),
        long_share=float(times[is_long].sum() / times.sum()),
        phase_steps=int((phases["process"] == steps.main).sum()) // len(PHASES),
        rule=steps.rule[steps.main],
        process=steps.main,
        processes=processes,
    )


def _layers(table: pd.DataFrame) -> list[LayerSummary]:
    summaries = []
    for name, rows in table.groupby("layer", sort=False):
        by = rows.set_index("direction")
        forward = by.loc["forward"] if "forward" in by.index else by.iloc[0]
        summaries.append(
            LayerSummary(
                name=str(name),
                depth=int(rows["depth"].min()),
                calls=int(forward["calls"]),
                steps=int(forward["steps"]),
                calls_per_step=_number(forward["calls_per_step"]),
                mean_ms=_number(forward["mean_ns"], _MS),
                forward_ms=_number(by["ns_per_step"].get("forward"), _MS),
                backward_ms=_number(by["ns_per_step"].get("backward"), _MS),
                self_ms=_number(rows["self_ns"].sum(min_count=1), _MS),
                share=_number(rows["share"].sum(min_count=1)),
            )
        )
    return summaries


def _operators(table: pd.DataFrame) -> list[OperatorSummary]:
    return [
        OperatorSummary(row.category, row.name, row.calls, row.total_ns / _MS, row.self_ns / _MS, row.share, row.side)
        for row in table.itertuples(index=False)
    ]


def _exploration(found: Exploration | None) -> ThreadExploration | None:
    if found is None:
        return None
    names = [str(count) for count in found.counts]

    def over_rounds(times: Matrix) -> dict[str, Gain]:
        """By count; one that no round has measured is left out."""
        measured = [at for at in range(len(names)) if not np.isnan(times[:, at]).all()]
        return {names[at]: Gain(*median_interval(times[:, at] / _MS)) for at in measured}

    return ThreadExploration(
        counts=list(found.counts),
        current=found.current,
        rounds=found.rounds,
        blocks=found.blocks,
        disturbed=found.disturbed,
        drift=found.drift,
        step=over_rounds(found.step_ns),
        layers=[
            LayerThreadTimes(each.name, each.direction, each.calls, over_rounds(np.maximum(found.times[:, at, :], 0)))
            for at, each in enumerate(found.sections)
        ],
        problem=found.problem,
    )


def _number(value: float | None, unit: float = 1.0) -> float | None:
    return None if value is None or pd.isna(value) else float(value) / unit
