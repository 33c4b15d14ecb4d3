"""Findings: facts with an id that advice, the dashboard and other tools build on, made from a report's figures."""

from collections.abc import Callable

import msgspec

from tracekit.analysis.delays import NOISE, THROUGHOUT
from tracekit.analysis.noise_findings import noise_findings
from tracekit.analysis.report_schema import Finding, Report
from tracekit.analysis.unfinished import NeverEnded
from tracekit.analysis.words import counted

# A finding names so many layers and operators: those that a reader looks at first.
_TOP = 20
_ALL_RANKS = "world"  # the group of all of them
# Of a delay.
_HOW = {
    "blocked": "blocked longer than theirs",
    "computing": "at work longer than theirs",
    "throughout": "at work longer than they were in every phase alike, as on a slower CPU or with more to do in each,",
    "kept": "kept from its CPU for longer than they were",
}
_OFTEN = {
    "always": "on average over all steps",
    "turns": "in its turn",
    "stretches": "in stretches of steps",
    "random": "now and then",
}
_UNDECIDED = (
    "; undecided: a process may compute so much longer for where its memory lies, another place at each start, or for a"
    " while: whether it is this rank again tells another recording"
)


def find_all(report: Report) -> list[Finding]:
    """All findings of a report, in the order in which a reader asks."""
    return [finding for find in _FINDERS for finding in find(report)]


def _steps(report: Report) -> list[Finding]:
    steps = report.steps
    if not steps.count:
        return []
    evidence = msgspec.to_builtins(steps)
    return [Finding("steps.summary", f"{steps.count} steps of {steps.median_ms:.3g} ms (median)", evidence)]


def _layers(report: Report) -> list[Finding]:
    timed = [layer for layer in report.layers if layer.share is not None]
    if not timed:
        return []
    # The outermost module is the program's model: that it takes the model's time says nothing.
    inside = [layer for layer in timed if layer.depth > 0] or timed
    title = f"{inside[0].name} takes the most time of all layers, {inside[0].share:.0%} of a step"
    return [Finding("layers.ranked", title, {"layers": msgspec.to_builtins(timed[:_TOP])})]


def _operators(report: Report) -> list[Finding]:
    if not report.operators:
        return []
    first = report.operators[0]
    title = f"{first.name} takes the most time of all operators, {first.share:.0%} of what was profiled on its side"
    return [Finding("operators.ranked", title, {"operators": msgspec.to_builtins(report.operators[:_TOP])})]


def _efficiency(report: Report) -> list[Finding]:
    return [
        Finding(
            "threads.efficiency",
            f"{use.role} keeps {use.cpus_used:.2f} CPUs busy with {counted(use.intra_op, 'thread')}",
            {
                "process": use.process,
                "role": use.role,
                "intra_op": use.intra_op,
                "cpus_used": use.cpus_used,
                "efficiency": use.efficiency,
            },
        )
        for use in report.threads
        if use.cpus_used is not None and use.efficiency is not None and use.intra_op is not None
    ]


def _run_delay(report: Report) -> list[Finding]:
    return [
        Finding(
            "threads.run_delay",
            f"the threads of {use.role} wait for a CPU {use.run_delay_share:.1%} of the time they want one",
            {
                "process": use.process,
                "role": use.role,
                "share": use.run_delay_share,
                "share_before": use.run_delay_share_before,
            },
        )
        for use in report.threads
        if use.run_delay_share is not None
    ]


def _crowding(report: Report) -> list[Finding]:
    found = []
    for crowd in report.crowding:
        if crowd.threads is None:
            continue
        fits = "more than" if crowd.is_oversubscribed() else "within"
        found.append(
            Finding(
                "threads.oversubscription",
                f"{counted(crowd.threads, 'thread')} on {crowd.host}, {fits} the {crowd.cpus} CPUs they may use",
                msgspec.to_builtins(crowd)
                | {
                    "oversubscribed": crowd.is_oversubscribed(),
                    "lost": crowd.lost(),
                    "beyond_physical_cores": (
                        None if crowd.physical_cores is None else crowd.threads > crowd.physical_cores
                    ),
                },
            )
        )
    return found


def _layer_times(report: Report) -> list[Finding]:
    if report.exploration is None:
        return []
    found = []
    for layer in report.exploration.layers:
        times = {count: interval.expected for count, interval in layer.times.items()}
        if not times:
            continue
        best = min(times, key=lambda count: times[count])
        where = f" {layer.direction}" if layer.direction else ""
        found.append(
            Finding(
                "threads.layer_times",
                f"{layer.layer}{where} takes {times[best]:.3g} ms in a step on {best} threads, the best of those tried",
                {"layer": layer.layer, "direction": layer.direction, "calls": layer.calls, "times": times}
                | {"intervals": {count: [each.low, each.high] for count, each in layer.times.items()}},
            )
        )
    return found


def _root_causes(report: Report) -> list[Finding]:
    found = []
    for group in report.ranks:
        for delay in group.delays:
            whose, those = f"rank {delay.rank}'s {delay.phase}", "that of all ranks"
            if delay.phase == THROUGHOUT:
                whose, those = f"rank {delay.rank}", "all ranks"
            alike = f", as {those} of {delay.host}," if delay.of_host else ""
            where = f" in group {group.group}" * (len(report.ranks) > 1) + _of_attempt(group.attempt)
            is_of_cpu = delay.phase in (NOISE, THROUGHOUT)
            host = f" on {delay.host}" * (is_of_cpu and not delay.of_host)
            unsure = _UNDECIDED * delay.undecided
            slower = "delay.slower_rank" if delay.phase == THROUGHOUT else "delay.root_cause"
            found.append(
                Finding(
                    "delay.undecided" if delay.undecided else slower,
                    f"{whose}{host}{alike} caused {delay.share_of_waiting:.0%} of the others'"
                    f" waiting{where}: it was {_HOW[delay.by]} {_OFTEN[delay.persistence]}"
                    f" ({delay.step.expected:.1%} of a step, {delay.step.low:.1%} to {delay.step.high:.1%}){unsure}",
                    msgspec.to_builtins(delay) | {"group": group.group, "attempt": group.attempt},
                )
            )
    return found


def _communication(report: Report) -> list[Finding]:
    found = []
    for group in report.ranks:
        if group.communication:
            first = group.communication[0]
            where, less = _of_attempt(group.attempt), f", or {first.unsure_ms:.3g} less" * (first.unsure_ms > 0)
            title = (
                f"{first.name} takes group {group.group}{where} the longest: each time a rank waits"
                f" {first.wait_ms:.3g} ms for the last one, and for the transfer {first.transfer_ms:.3g} ms{less}"
            )
            kinds = msgspec.to_builtins(group.communication[:_TOP])
            evidence = {"group": group.group, "attempt": group.attempt, "overlap": group.overlap, "kinds": kinds}
            found.append(Finding("distributed.communication", title, evidence))
    return found


def _never_ended(report: Report) -> list[Finding]:
    return [
        Finding("distributed.never_ended", title_of_never_ended(each), msgspec.to_builtins(each))
        for each in report.never_ended
    ]


def title_of_never_ended(each: NeverEnded) -> str:
    """Who was in it, or is, and who never came."""
    goes_on, is_one = each.for_s is not None, len(each.ranks) == 1
    verb = ("has been" if is_one else "have been") if goes_on else "was" if is_one else "were"
    missing = _listed([rank for rank, _ in each.missing])
    came = ("has not come" if len(each.missing) == 1 else "have not come") if goes_on else "never came"
    rest = (
        f"rank {missing} {came} to it (to number {each.missing[0][1]} last)"
        if len(each.missing) == 1
        else f"ranks {missing} {came} to it"
        if each.missing
        else "these are not the same"
        if each.unlike
        else "all ranks that were seen had come to it"
        if each.group == _ALL_RANKS
        else "all ranks that are known to be of that group had come to it"
    )
    if each.unseen:
        who = f"{'rank' if len(each.unseen) == 1 else 'ranks'} {_listed(each.unseen)}"
        is_or_was = (
            ("is" if len(each.unseen) == 1 else "are") if goes_on else "was" if len(each.unseen) == 1 else "were"
        )
        rest = f"{rest}; " * bool(each.missing or each.unlike) + f"{who} {is_or_was} not seen to wait in it"
    for op, ranks in each.unlike.items():
        rest += f", {'rank' if len(ranks) == 1 else 'ranks'} {_listed(ranks)} in {op}"
    when = f"for {each.for_s:.0f} s" if each.for_s is not None else "at the end"
    return (
        f"{'rank' if is_one else 'ranks'} {_listed(each.ranks)} {verb} in {each.op} number {each.sequence} of group"
        f" {each.group} {when}{_of_attempt(each.attempt)}; {rest}"
    )


def _of_attempt(attempt: int) -> str:
    return f" of attempt {attempt}" if attempt else ""


def _listed(ranks: list[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:_TOP])
    return f"{shown} and {len(ranks) - _TOP} more" if len(ranks) > _TOP else shown


def _parallel(report: Report) -> list[Finding]:
    return [
        Finding(
            "ranks.efficiency",
            f"{len(group.ranks)} ranks work together at {group.efficiency['parallel']:.0%} efficiency: load balance"
            f" {group.efficiency['load balance']:.0%}, serialization {group.efficiency['serialization']:.0%}, transfer"
            f" {group.efficiency['transfer']:.0%}",
            {"group": group.group, "attempt": group.attempt, "ranks": group.ranks, **group.efficiency},
        )
        for group in report.ranks
        if group.efficiency
    ]


def _noise(report: Report) -> list[Finding]:
    return noise_findings(report.noise)


def _neighbours(report: Report) -> list[Finding]:
    found = []
    for each in report.neighbours:
        slow = each.slowdown
        title = (
            f"steps were {slow.expected:.1%} longer ({slow.low:.1%} to {slow.high:.1%}) in the third of the time with"
            f" the most {each.signal} than in that with the least: no accident (p {each.probability:.2g})"
        )
        found.append(Finding("noise.neighbours", title, msgspec.to_builtins(each)))
    return found


def _garbage(report: Report) -> list[Finding]:
    notable = [each for each in report.garbage if each.is_notable(report.overhead.budget)]
    return [Finding("python.garbage", each.title(), msgspec.to_builtins(each)) for each in notable]


def _missing(report: Report) -> list[Finding]:
    return [
        Finding("recording.missing", f"not known: {note.what}", {"what": note.what, "why": note.why})
        for note in report.missing
    ]


_FINDERS: list[Callable[[Report], list[Finding]]] = [
    _steps, _layers, _operators, _efficiency, _crowding, _run_delay, _layer_times,
    _root_causes, _communication, _never_ended, _parallel, _noise, _neighbours, _garbage, _missing,
]  # fmt: skip
