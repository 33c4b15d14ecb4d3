"""Loaders of ranks that made the others wait, beside those of the rank that stands for the run."""

import msgspec

from tracekit.advice.loader_findings import why_it_waits
from tracekit.advice.loader_summary import loop_s, summary_of
from tracekit.analysis.loading import loader_costs
from tracekit.analysis.report_schema import Finding, Report
from tracekit.analysis.steps import steps_of
from tracekit.models.loader_epochs import as_crowded
from tracekit.models.loading import forecasts
from tracekit.run.reader import Run

# The costliest of them: each takes as long as the loaders of the rank that stands for the run.
_MOST = 4


def late_loaders(run: Run, report: Report) -> list[Finding]:
    """`loading.split` of the ranks whose loading is why others waited: for what they waited themselves."""
    late = [delay for group in report.ranks for delay in group.delays if delay.phase == "loading"]
    costliest = sorted((each for each in late if not each.undecided), key=lambda each: -each.cost_rank_seconds)
    others = {each.process: each.rank for each in costliest if each.process not in (-1, report.steps.process)}
    return [finding for process, rank in list(others.items())[:_MOST] for finding in _why_it_waits(run, rank, process)]


def _why_it_waits(run: Run, rank: int, process: int) -> list[Finding]:
    steps, found = steps_of(run, process), []
    for costs in loader_costs(run.near(process), steps):
        if costs.known and not costs.at_once and not costs.is_aside:
            own = as_crowded(costs)
            summary = summary_of(own, forecasts(own, [own.settings.num_workers]), loop_s(steps, process), None)
            if summary.split:
                finding = why_it_waits(summary, own)
                title, evidence = f"on rank {rank} {finding.title}", {**finding.evidence, "rank": rank}
                found.append(msgspec.structs.replace(finding, title=title, evidence=evidence))
    return found
