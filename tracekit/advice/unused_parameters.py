"""Unused parameters: the look for them that DistributedDataParallel was asked for, and may do without."""

from dataclasses import asdict

from tracekit.analysis.people import ranks_of
from tracekit.analysis.report_schema import Finding, Report
from tracekit.analysis.unused_parameters import unused_parameters
from tracekit.run.manifest import Wrapped
from tracekit.run.reader import Run

SETTING = "ddp.find_unused_parameters"
FINDING = "ddp.unused_parameters"


def needless_look(report: Report) -> bool:
    """Whether it found nothing in any pass of the run, of all ranks."""
    return any(
        each.id == FINDING
        and not each.evidence["with_some"]
        and not each.evidence["behind_others"]
        and each.evidence["ranks"] == each.evidence["world"]
        for each in report.findings
    )


def found_unused(run: Run, models: list[Wrapped], process: int | None) -> Finding | None:
    """`ddp.unused_parameters`: what the look has found, in how many passes of the ranks of whose job a process is.
    None where nobody looked."""
    if not any(each.find_unused_parameters and not each.static_graph for each in models):
        return None
    found = unused_parameters(run, ranks_of(run, process))
    if found is None:
        return None
    looked = f"looked for unused parameters in {found.passes} backward passes of"
    looked += f" {found.ranks} ranks" if found.ranks == found.world else f" {found.ranks} of {found.world} ranks"
    title = (
        f"DistributedDataParallel {looked}, and {found.with_some} had some: find_unused_parameters is needed"
        if found.with_some
        else f"DistributedDataParallel {looked}, and found none; but {found.behind_others} came behind other backward"
        " passes. Where gradients of the model are added up in these, one alone may leave some unused, and"
        " find_unused_parameters may be needed"
        if found.behind_others
        else f"DistributedDataParallel {looked}, and found none; of other ranks nothing is known"
        if found.ranks < found.world
        else f"DistributedDataParallel {looked}, and found none: without find_unused_parameters each would save a way"
        " through the graph and a collective; one that does leave some unused would then end the program with an error"
    )
    return Finding(FINDING, title, asdict(found))
