"""What the text report says of ranks: who waited for whom, what their communication took, other gradient buckets."""

from tracekit.analysis.layout import ROWS, Lines, more, percent, table, wrapped
from tracekit.analysis.ranks import why_nobody
from tracekit.analysis.report_schema import Report
from tracekit.analysis.words import numbers, shortened

# How what is said of who waited for whom begins, and what is said of buckets.
CAUSES, OF_BUCKETS = ("delay.", "distributed.never_ended"), "ddp."

_SMALL = 0.01  # a share that is left out


def ranks(report: Report) -> Lines:
    """Who waited for whom."""
    if not report.ranks and not report.never_ended:
        return []
    rows = [
        (
            shortened(each.group, 20),
            str(len(each.ranks)),
            str(each.meetings),
            percent(each.waited),
            percent(each.transfer),
            *(percent(each.efficiency.get(name)) for name in ("parallel", "load balance", "serialization")),
            percent(each.efficiency.get("transfer")),
        )
        for each in report.ranks[:ROWS]
    ]
    head = ["group", "ranks", "meetings", "waited", "transfer", "efficiency", "balance", "serial.", "transf."]
    lines = ["RANKS  who waited for whom", *table(head, rows), *more(len(report.ranks))]
    causes = [finding.title for finding in report.findings if finding.id.startswith((*CAUSES, OF_BUCKETS))]
    said = [*causes[:ROWS], *why_none_is_named(report, ROWS), *_doubts(report), *_paths(report)]
    return lines + [line for each in said for line in wrapped(each)]


def why_none_is_named(report: Report, most: int) -> list[str]:
    """Of groups that have waited for nobody in particular, of so many at most."""
    hung = {(each.group, each.attempt) for each in report.never_ended}
    return [
        why_nobody(each) for each in report.ranks[:most] if not each.delays and (each.group, each.attempt) not in hung
    ]


def _paths(report: Report) -> list[str]:
    """What the path through all ranks consists of that decides how long it takes, the most of it first."""
    found = []
    for each in report.ranks[:ROWS]:
        parts = sorted(each.path.items(), key=lambda part: -part[1])
        whole = sum(each.path.values())
        if whole > 0:
            shares = ", ".join(f"{name} {seconds / whole:.0%}" for name, seconds in parts if seconds / whole >= _SMALL)
            found.append(f"the critical path through group {shortened(each.group, 20)} takes {whole:.4g} s: {shares}")
    return found


def _doubts(report: Report) -> list[str]:
    """What is no rank's doing, what was not looked at, and clocks that tell not who came last."""
    found = []
    for each in report.ranks[:ROWS]:
        group = f"group {shortened(each.group, 20)}"
        if round(each.kept, 2) > 0:
            what = f"{each.kept:.0%} of the waiting of {group} was for ranks that were kept from their CPUs"
            found.append(f"{what} by what else wanted these")
        if each.looked_at < 1:
            found.append(
                f"{each.looked_at:.1%} of the meetings of {group} were looked at, in stretches over the whole run"
            )
    hosts = dict.fromkeys(clock.host for each in report.ranks for clock in each.clocks if clock.unsure_ms < 0)
    if hosts:
        found.append(
            f"The clock of {', '.join(list(hosts)[:ROWS])} jumped, or too few meetings tell how it runs: who waited"
            " for whom on other hosts is not certain"
        )
    return found


def communication(report: Report) -> Lines:
    """What each collective and bucket took."""
    rows = [
        (
            shortened(part.name, 30),
            shortened(group.group, 20),
            f"{part.times:,}",
            f"{part.bytes / 1e6:.3g}",
            f"{part.wait_ms:.3g}",
            f"{part.transfer_ms:.3g}",
            f"{part.unsure_ms:.3g}",
        )
        for group in report.ranks[:ROWS]
        for part in group.communication[:ROWS]
    ]
    if not rows:
        return []
    lines = ["COMMUNICATION  of a rank on average, each time: until the last one had come, and from then on"]
    lines += [
        *table(["what", "group", "times", "MB", "waits ms", "transfer ms", "or less by"], rows[:ROWS]),
        *more(sum(len(group.communication) for group in report.ranks)),
    ]
    beside = [
        f"of the time for which group {shortened(group.group, 20)} has something under way, its ranks go on beside it"
        f" for {_range(*group.overlap)}"
        for group in report.ranks[:ROWS]
        if group.overlap is not None
    ]
    return lines + [line for text in beside for line in wrapped(text)]


def _range(low: float, high: float) -> str:
    return f"{low:.0%}" if f"{low:.0%}" == f"{high:.0%}" else f"{low:.0%} to {high:.0%}"


def buckets(report: Report) -> Lines:
    """Steps with other gradient buckets."""
    found = report.buckets
    if found is None:
        return []
    rows = [
        (
            f"{each.cap_mb:g}" if number else f"{shortened(numbers(found.caps_mb or [found.cap_mb]), 40)} (now)",
            str(each.buckets or "?"),
            f"{each.expected_ms:.4g}",
            f"{each.low_ms:.4g} to {each.high_ms:.4g}" if each.low_ms < each.high_ms else "measured",
        )
        for number, each in enumerate(found.forecasts)
    ]
    how = f"measured in up to {found.rounds} rounds"
    if found.rounds is None:
        how = f"predicted; {found.ideal_ms:.4g} ms a step without communication"
    title = f"BUCKETS  of {found.bytes / 1e6:.1f} MB of gradients, {how}"
    lines = [title, *table(["cap MiB", "buckets", "ms a step", "at least to at most"], rows)]
    for differs, title in ((False, f"what if, with {found.cap_mb:g} MiB"), (True, "what if, and results differ")):
        others = [
            (each.what, f"{each.expected_ms:.4g}", f"{each.low_ms:.4g} to {each.high_ms:.4g}")
            for each in found.what_if
            if (each.effect == "numerics") == differs
        ]
        lines += ["", *table([title, "ms a step", "at least to at most"], others)] if others else []
    return lines
