"""The report as plain text for a terminal."""

import textwrap
from collections.abc import Sequence

from tracekit.analysis.counters import MACHINE
from tracekit.analysis.layout import ROWS, WIDTH, Lines, more, ms, percent, table, wrapped
from tracekit.analysis.phases import PHASES
from tracekit.analysis.report_schema import (
    LONG_STEP,
    CounterSummary,
    Finding,
    OperatorSummary,
    Report,
    StepSummary,
)
from tracekit.analysis.text_ranks import buckets, communication, ranks
from tracekit.analysis.text_settings import settings_lines
from tracekit.analysis.words import counted, shell_line, shortened, visible

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
_IN_TABLES = ("loading.predictability",)
_UNITS = {"ns": (1e9, "s"), "bytes": (1e6, "MB"), "count": (1.0, ""), "percent": (1.0, "%")}


def text_report(report: Report) -> str:
    """The whole report; ends with the next command to type."""
    sections = [
        _head(report),
        _steps(report),
        _layers(report),
        _operators(report),
        _devices(report),
        _loaders(report),
        ranks(report),
        communication(report),
        buckets(report),
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
    return wrapped(f"phases from {steps.phase_steps} of the steps: on the others {left_out}")


def _steps(report: Report) -> Lines:
    steps = report.steps
    if not steps.count:
        return ["STEPS  none found"]
    lines = [
        f"STEPS  {steps.count} by the rule '{steps.rule}', median {ms(steps.median_ms)}, p90 {ms(steps.p90_ms)},"
        f" longest {ms(steps.longest_ms)}",
        *_long_steps(steps),
        *(f"  {phase.name:<14}{phase.share:>7.1%}  {'#' * round(phase.share * 50)}" for phase in steps.phases),
        *_phases_known(steps),
        *_garbage(report),
    ]
    if len(steps.processes) > 1:
        rows = [
            (shortened(each.role or f"process {each.process}", _NAME), str(each.count), each.rule, ms(each.median_ms))
            for each in steps.processes[:ROWS]
        ]
        lines += ["", *table(["process", "steps", "rule", "median"], rows), *more(len(steps.processes))]
    return lines


def _garbage(report: Report) -> Lines:
    """What takes more than recording may, or is done by workers again and again."""
    said = [each.title() for each in report.garbage if each.is_notable(report.overhead.budget)]
    paragraphs = [textwrap.wrap(text, WIDTH - 2, initial_indent="  ", subsequent_indent="    ") for text in said]
    return [line for lines in paragraphs for line in lines]


def _long_steps(steps: StepSummary) -> Lines:
    if not steps.long_steps:
        return []
    some = "1 step" if steps.long_steps == 1 else f"{steps.long_steps} steps"
    return wrapped(
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
            ms(layer.forward_ms),
            ms(layer.backward_ms),
            ms(layer.self_ms),
            percent(layer.share),
            str(layer.steps),
        )
        for layer in report.layers[:ROWS]
    ]
    head = ["layer", "calls", "forward", "backward", "self", "of step", "steps"]
    lines = ["LAYERS  per step, medians", *table(head, rows), *more(report.layer_count)]
    if len({layer.backward_ms is None for layer in report.layers[:ROWS]}) == 2:
        lines.append("  '-' under backward: none of its own was seen; the layers inside one RNN share the RNN's")
    return lines


def _operators(report: Report) -> Lines:
    on_cpu = [each for each in report.operators if each.side == "cpu"]
    if not on_cpu:
        return []
    others = more(report.operator_sides.get("cpu", 0))
    lines = ["OPERATORS  in the profiled steps", *_by_own_time("operator", on_cpu), *others]
    itself = sum(each.self_ms for each in report.operators if each.side == "profiler")
    if itself > 0:
        lines.append(f"  and {ms(itself)} of the profiler itself")
    return lines


def _devices(report: Report) -> Lines:
    if not report.devices:
        return []
    work = [each for each in report.operators if each.side == "device"]
    others = more(report.operator_sides.get("device", 0))
    busy = [
        f"  GPU {each.device} busy for the main process {percent(each.busy)} of the time" for each in report.devices
    ]
    return ["ON THE GPU  in the profiled steps", *busy, *_by_own_time("kernel", work), *others]


def _by_own_time(what: str, operators: Sequence[OperatorSummary]) -> Lines:
    rows = [
        (shortened(each.name, _NAME), str(each.calls), ms(each.total_ms), ms(each.self_ms), percent(each.share))
        for each in operators[:ROWS]
    ]
    return table([what, "calls", "total", "self", "share"], rows)


def _loaders(report: Report) -> Lines:
    said = [line for each in said_of_loaders(report) for line in wrapped(each.title)]
    rows = [
        (
            shortened(f"{each.loader} ({visible(each.place) or '?'})", _NAME - 8),
            f"{each.num_workers} x {each.prefetch_factor}" if each.num_workers else "none",
            str(each.batches),
            ms(each.batch_ms),
            percent(each.wait),
            percent(each.busy),
            each.predictability or "-",
            ", ".join(f"{name} {share:.0%}" for name, share in _largest(each.split)),
        )
        for each in report.loaders[:ROWS]
    ]
    head = ["loader", "workers", "batches", "each", "waited", "busy", "order", "usually for"]
    told = [*table(head, rows), *more(len(report.loaders))] if rows else []
    return ["LOADERS  over the whole loop, starts of epochs too", *told, *said] if told or said else []


def said_of_loaders(report: Report) -> list[Finding]:
    """What is found of loaders that no table has."""
    return [each for each in report.findings if each.id.startswith("loading.") and each.id not in _IN_TABLES]


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
            percent(use.efficiency),
            percent(use.run_delay_share),
            percent(use.run_delay_share_before),
        )
        for use in report.threads[:ROWS]
    ]
    head = ["process", "threads", "CPUs used", "efficiency", "waits for CPU", "before the loop"]
    lines = ["THREADS", *table(head, rows), *more(len(report.threads))]
    for crowd in report.crowding:
        wanted = "an unknown number of threads" if crowd.threads is None else counted(crowd.threads, "thread")
        cores = "" if crowd.physical_cores is None else f" on {crowd.physical_cores} physical cores"
        quota = "" if crowd.quota is None else f", quota {crowd.quota:g}"
        lines += wrapped(
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
        *table(["counter", "total", *_SHORT_PHASES.values()], rows),
    ]
    highest = [f"{shortened(counter.name, 30)} {_amount(counter)}" for counter in shown if not counter.phases]
    return lines + wrapped(f"highest: {', '.join(highest)}") if highest else lines


def _amount(counter: CounterSummary) -> str:
    divisor, unit = _UNITS.get(counter.unit, (1.0, counter.unit))
    return f"{counter.value / divisor:.4g} {unit}".rstrip() if unit else f"{counter.value:,.0f}"


def _phase_cells(counter: CounterSummary) -> list[str]:
    return [f"{counter.phases.get(phase, 0.0) / counter.value:.0%}" for phase in _SHORT_PHASES]


def _missing(report: Report) -> Lines:
    if not report.missing:
        return ["MISSING  nothing"]
    notes = (f"{visible(note.what)}: {visible(note.why)}" for note in report.missing)
    return ["MISSING", *(line for note in notes for line in wrapped(note))]


def _advice(report: Report) -> Lines:
    lines = ["ADVICE", *settings_lines(report.settings)]
    lines += wrapped(visible(report.advice)) if report.advice else []
    following = report.settings[0].apply if report.settings else shell_line(["tracekit", "dashboard", report.path])
    return [*lines, "", f"next: {visible(following)}"]
