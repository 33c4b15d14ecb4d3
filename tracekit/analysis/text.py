"""The report as plain text for a terminal, at most 100 columns wide but for a command to type."""

import textwrap
from collections.abc import Iterable, Sequence
from itertools import groupby

from tracekit.analysis.counters import MACHINE
from tracekit.analysis.phases import PHASES
from tracekit.analysis.ranks import why_nobody
from tracekit.analysis.report_schema import (
    LONG_STEP,
    CounterSummary,
    OperatorSummary,
    Report,
    Setting,
    StepSummary,
)
from tracekit.analysis.words import counted, numbers, shell_line, shortened, visible

WIDTH = 100
_ROWS = 12  # of a ranking; the JSON and the dashboard have more
_NAME = 46
# How the columns of the counter table call the phases.
_SHORT_PHASES = dict(zip(PHASES, ["loading", "forward", "backward", "optim.", "commun.", "other"], strict=True))
# The counters that tell why a phase takes its time; the JSON and the dashboard have all.
_TELLING = (
    "process.cpu_ns",
    "thread.run_delay_ns",
    "thread.involuntary_switches",
    "perf.instructions",
    "perf.cycles",
    "perf.cache_misses",
    "perf.page_faults",
    "process.read_bytes",
    "process.written_bytes",
    "host.steal_ns",
    "cgroup.throttled_ns",
    "psi.cpu.some_ns",
    "psi.memory.some_ns",
    "psi.io.some_ns",
)
# How what is said of ranks begins.
CAUSES = ("delay.", "distributed.never_ended", "ddp.unused_parameters")
_UNITS = {"ns": (1e9, "s"), "bytes": (1e6, "MB"), "count": (1.0, ""), "percent": (1.0, "%")}

Lines = list[str]


def text_report(report: Report) -> str:
    """The whole report; ends with the next command to type."""
    sections = [
        _head(report),
        _steps(report),
        _layers(report),
        _operators(report),
        _devices(report),
        _loaders(report),
        _ranks(report),
        _buckets(report),
        _noise(report),
        _threads(report),
        _counters(report),
        _missing(report),
        _advice(report),
    ]
    return "\n\n".join("\n".join(map(visible, lines)) for lines in sections if lines) + "\n"


def _head(report: Report) -> Lines:
    ended = f"exit code {report.exit_code}" if report.exit_code is not None else "no exit code recorded"
    if report.exit_signal is not None:
        ended = f"killed by signal {report.exit_signal}"
    overhead = report.overhead
    return [
        f"run        {shortened(report.run, WIDTH - 11)}",
        f"command    {shortened(report.command_line(), WIDTH - 11)}",
        f"condition  {shortened(report.condition, 40)}, {ended}",
        f"recording  {'complete' if report.complete else 'not complete, see MISSING'}; took an estimated"
        f" {overhead.program:.2%} of the program's time and",
        f"           {overhead.supervisor:.2%} of the machine's (budget {overhead.budget:.2%})",
    ]


def _noise(report: Report) -> Lines:
    """What noises did, a paragraph for each."""
    said = [finding.title for finding in report.findings if finding.id in ("noise.verdict", "noise.neighbours")]
    paragraphs = [textwrap.wrap(text, WIDTH - 2, initial_indent="  ", subsequent_indent="    ") for text in said]
    return ["NOISE", *(line for lines in paragraphs for line in lines)] if said else []


def _phases_known(steps: StepSummary) -> Lines:
    if steps.phase_steps == steps.count:
        return []
    if not steps.phase_steps:
        return ["  phases of no step are known: module calls, or what ranks communicate, were left out or lost"]
    left_out = "module calls or gradient buckets were left out, to cost less"
    return _wrapped(f"phases from {steps.phase_steps} of the steps: on the others {left_out}")


def _steps(report: Report) -> Lines:
    steps = report.steps
    if not steps.count:
        return ["STEPS  none found"]
    lines = [
        f"STEPS  {steps.count} by the rule '{steps.rule}', median {_ms(steps.median_ms)}, p90 {_ms(steps.p90_ms)},"
        f" longest {_ms(steps.longest_ms)}",
        *_long_steps(steps),
        *(f"  {phase.name:<14}{phase.share:>7.1%}  {'#' * round(phase.share * 50)}" for phase in steps.phases),
        *_phases_known(steps),
        *_garbage(report),
    ]
    if len(steps.processes) > 1:
        rows = [
            (shortened(each.role or f"process {each.process}", _NAME), str(each.count), each.rule, _ms(each.median_ms))
            for each in steps.processes[:_ROWS]
        ]
        lines += ["", *_table(["process", "steps", "rule", "median"], rows), *_more(len(steps.processes))]
    return lines


def _garbage(report: Report) -> Lines:
    """What takes more than recording may, or is done by workers again and again."""
    said = [each.title() for each in report.garbage if each.is_notable(report.overhead.budget)]
    wrapped = [textwrap.wrap(text, WIDTH - 2, initial_indent="  ", subsequent_indent="    ") for text in said]
    return [line for lines in wrapped for line in lines]


def _long_steps(steps: StepSummary) -> Lines:
    if not steps.long_steps:
        return []
    some = "1 step" if steps.long_steps == 1 else f"{steps.long_steps} steps"
    return _wrapped(
        f"{some} of more than {LONG_STEP} times the median: {steps.long_share:.0%} of the time of all steps; an"
        " evaluation, a checkpoint, an epoch's start or a stall (storage, other programs)"
    )


def _layers(report: Report) -> Lines:
    if not report.layers:
        return []
    rows = [
        (
            shortened(layer.name, _NAME - 8),
            "?" if layer.calls_per_step is None else f"{layer.calls_per_step:g}",
            _ms(layer.forward_ms),
            _ms(layer.backward_ms),
            _ms(layer.self_ms),
            _percent(layer.share),
            str(layer.steps),
        )
        for layer in report.layers[:_ROWS]
    ]
    head = ["layer", "calls", "forward", "backward", "self", "of step", "steps"]
    lines = ["LAYERS  per step, medians", *_table(head, rows), *_more(report.layer_count)]
    if len({layer.backward_ms is None for layer in report.layers[:_ROWS]}) == 2:
        lines.append("  '-' under backward: none of its own was seen; the layers inside one RNN share the RNN's")
    return lines


def _operators(report: Report) -> Lines:
    on_cpu = [each for each in report.operators if each.side == "cpu"]
    if not on_cpu:
        return []
    more = _more(report.operator_sides.get("cpu", 0))
    lines = ["OPERATORS  in the profiled steps", *_by_own_time("operator", on_cpu), *more]
    itself = sum(each.self_ms for each in report.operators if each.side == "profiler")
    if itself > 0:
        lines.append(f"  and {_ms(itself)} of the profiler itself")
    return lines


def _devices(report: Report) -> Lines:
    if not report.devices:
        return []
    work = [each for each in report.operators if each.side == "device"]
    more = _more(report.operator_sides.get("device", 0))
    busy = [
        f"  GPU {each.device} busy for the main process {_percent(each.busy)} of the time" for each in report.devices
    ]
    return ["ON THE GPU  in the profiled steps", *busy, *_by_own_time("kernel", work), *more]


def _by_own_time(what: str, operators: Sequence[OperatorSummary]) -> Lines:
    rows = [
        (shortened(each.name, _NAME), str(each.calls), _ms(each.total_ms), _ms(each.self_ms), _percent(each.share))
        for each in operators[:_ROWS]
    ]
    return _table([what, "calls", "total", "self", "share"], rows)


def _loaders(report: Report) -> Lines:
    if not report.loaders:
        return []
    rows = [
        (
            shortened(f"{each.loader} ({visible(each.place) or '?'})", _NAME - 8),
            f"{each.num_workers} x {each.prefetch_factor}" if each.num_workers else "none",
            str(each.batches),
            _ms(each.batch_ms),
            _percent(each.wait),
            _percent(each.busy),
            each.predictability or "-",
            ", ".join(f"{name} {share:.0%}" for name, share in _largest(each.split)),
        )
        for each in report.loaders[:_ROWS]
    ]
    head = ["loader", "workers", "batches", "each", "waited", "busy", "order", "usually for"]
    return ["LOADERS  over the whole loop, starts of epochs too", *_table(head, rows), *_more(len(report.loaders))]


def _ranks(report: Report) -> Lines:
    if not report.ranks and not report.never_ended:
        return []
    rows = [
        (
            shortened(each.group, 20),
            str(len(each.ranks)),
            str(each.meetings),
            _percent(each.waited),
            _percent(each.transfer),
            *(_percent(each.efficiency.get(name)) for name in ("parallel", "load balance", "serialization")),
            _percent(each.efficiency.get("transfer")),
        )
        for each in report.ranks[:_ROWS]
    ]
    head = ["group", "ranks", "meetings", "waited", "transfer", "efficiency", "balance", "serial.", "transf."]
    lines = ["RANKS  who waited for whom", *_table(head, rows), *_more(len(report.ranks))]
    causes = [finding.title for finding in report.findings if finding.id.startswith(CAUSES)]
    return lines + [line for cause in (causes[:_ROWS] + _doubts(report)) for line in _wrapped(cause)]


def _doubts(report: Report) -> list[str]:
    """Why nobody is named, what is no rank's doing, what was not looked at, and clocks that tell not who came last."""
    found, hung = [], {(each.group, each.attempt) for each in report.never_ended}
    for each in report.ranks[:_ROWS]:
        group = f"group {shortened(each.group, 20)}"
        if not each.delays and (each.group, each.attempt) not in hung:
            found.append(why_nobody(each))
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
            f"The clock of {', '.join(list(hosts)[:_ROWS])} jumped, or too few meetings tell how it runs: who waited"
            " for whom on other hosts is not certain"
        )
    return found


def _buckets(report: Report) -> Lines:
    found = report.buckets
    if found is None:
        return []
    rows = [
        (
            f"{each.cap_mb:g}" if number else f"{numbers(found.caps_mb or [found.cap_mb])} (now)",
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
    return [title, *_table(["cap MiB", "buckets", "ms a step", "at least to at most"], rows)]


def _largest(split: dict[str, float]) -> list[tuple[str, float]]:
    """The two largest shares of some size."""
    ranked = sorted(split.items(), key=lambda share: -share[1])
    return [(name, share) for name, share in ranked[:2] if share >= 0.01]


def _threads(report: Report) -> Lines:
    if not report.threads:
        return []
    rows = [
        (
            shortened(use.role, 20),
            "?" if use.intra_op is None else str(use.intra_op),
            "?" if use.cpus_used is None else f"{use.cpus_used:.2f}",
            _percent(use.efficiency),
            _percent(use.run_delay_share),
            _percent(use.run_delay_share_before),
        )
        for use in report.threads[:_ROWS]
    ]
    head = ["process", "threads", "CPUs used", "efficiency", "waits for CPU", "before the loop"]
    lines = ["THREADS", *_table(head, rows), *_more(len(report.threads))]
    for crowd in report.crowding:
        wanted = "an unknown number of threads" if crowd.threads is None else counted(crowd.threads, "thread")
        cores = "" if crowd.physical_cores is None else f" on {crowd.physical_cores} physical cores"
        quota = "" if crowd.quota is None else f", quota {crowd.quota:g}"
        lines += _wrapped(
            f"{shortened(crowd.host, 30)}: {wanted} may want to run, {crowd.cpus} CPUs allowed{cores}{quota}"
            + (f", loader workers keep {crowd.worker_cpus:.2f} CPUs busy" if crowd.worker_cpus else "")
        )
        measured = [("steal", crowd.steal), ("tasks waiting for CPU", crowd.psi_cpu), ("throttled", crowd.throttled)]
        known = [f"{name} {share:.1%}" for name, share in measured if share is not None]
        if known:
            lines.append(f"    of the time: {', '.join(known)}")
    return lines


def _counters(report: Report) -> Lines:
    shown = [
        counter
        for counter in report.counters
        if counter.process in (MACHINE, report.steps.process) and counter.value > 0
    ]
    grown = [counter for name in _TELLING for counter in shown if counter.name == name]
    if not grown:
        return []
    rows = [(counter.name, _amount(counter), *_phase_cells(counter)) for counter in grown]
    lines = [
        "COUNTERS  during the steps, divided among the phases in proportion to their time",
        *_table(["counter", "total", *_SHORT_PHASES.values()], rows),
    ]
    highest = [f"{shortened(counter.name, 30)} {_amount(counter)}" for counter in shown if not counter.phases]
    return lines + _wrapped(f"highest: {', '.join(highest)}") if highest else lines


def _amount(counter: CounterSummary) -> str:
    divisor, unit = _UNITS.get(counter.unit, (1.0, counter.unit))
    return f"{counter.value / divisor:.4g} {unit}".rstrip() if unit else f"{counter.value:,.0f}"


def _phase_cells(counter: CounterSummary) -> list[str]:
    return [f"{counter.phases.get(phase, 0.0) / counter.value:.0%}" for phase in _SHORT_PHASES]


def _missing(report: Report) -> Lines:
    if not report.missing:
        return ["MISSING  nothing"]
    notes = (f"{visible(note.what)}: {visible(note.why)}" for note in report.missing)
    return ["MISSING", *(line for note in notes for line in _wrapped(note))]


def _advice(report: Report) -> Lines:
    lines = ["ADVICE"]
    # What goes together has one gain, that of all of it.
    for (gain, basis, why), each_of_them in groupby(report.settings, lambda each: (each.gain, each.basis, each.why)):
        together = list(each_of_them)
        saves, effects = "together save" if len(together) > 1 else "saves", {each.effect for each in together}
        changes = "; ".join(f"{each.name}: {_change(each)}" for each in together)
        lines += _wrapped(f"{changes}, {saves} {gain.expected:.0%} of a step ({gain.low:.0%} to {gain.high:.0%})")
        of_each = ", ".join(f"{each.effect} ({each.name.rpartition('.')[2]})" for each in together)
        effect = of_each if len(effects) > 1 else effects.pop()
        lines += _wrapped(f"basis: {basis}; effect on results: {effect}. {visible(why)}")
    lines += _wrapped(visible(report.advice)) if report.advice else []
    following = report.settings[0].apply if report.settings else shell_line(["tracekit", "dashboard", report.path])
    return [*lines, "", f"next: {visible(following)}"]


def _change(setting: Setting) -> str:
    plan = setting.recommended
    if not isinstance(plan, dict):
        return f"{plan}, not set before" if setting.current is None else f"{plan} instead of {setting.current}"
    shown = [f"{shortened(layer, _NAME)} = {count}" for layer, count in list(plan.items())[:_ROWS]]
    return ", ".join(shown) + (f" and {len(plan) - _ROWS} more" if len(plan) > _ROWS else "")


def _wrapped(text: str) -> Lines:
    # Not at hyphens: commands and paths are there to be copied.
    return textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Lines:
    """Columns as wide as their widest cell, the first flush left and the others flush right."""
    table = [head, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    flush = [str.ljust, *[str.rjust] * (len(head) - 1)]
    cells = [[put(cell, width) for put, cell, width in zip(flush, row, widths, strict=True)] for row in table]
    return ["  " + "  ".join(row) for row in cells]


def _more(count: int) -> Lines:
    return [f"  … and {count - _ROWS} more"] if count > _ROWS else []


def _ms(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f} ms" if value < 10 else f"{value:,.1f} ms"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
