"""What is found of loaders: for what the program waits, how far ahead their order is known, what memory they take, how
their workers are started and with how many threads they compute, how their batches get to a GPU, and which samples take
long."""

from collections.abc import Sequence

from tracekit.analysis.devices import share_of_pageable
from tracekit.analysis.loading import LoaderCosts
from tracekit.analysis.report_schema import Finding, LoaderSummary
from tracekit.analysis.samples import share_of_slowest, slowest_files, slowest_samples
from tracekit.run.manifest import Loader
from tracekit.run.reader import Run

# A share of the wait that is worth a word, and one of all of the time, as settings are as good to within it.
NOTABLE, NOTICED = 0.1, 0.01
# Samples are uneven where this share of them takes a notable share of the time; so many are named.
_FEW, _NAMED = 0.01, 5
_NS_PER_MS = 1e6
_WORDS = {
    "storage": "storage",
    "cpu": "the computing that samples take",
    "transfer": "batches to be put together and sent",
    "consumer": "taking batches that are there, or drawing indices",
    "startup": "workers to start and to end",
}


def how_long_it_waits(summary: LoaderSummary) -> str:
    """The share of the time, in words; and that of usual epochs, which all that is told of the loader is about."""
    usual = summary.usual_wait
    unlike = f", {usual:.0%} in epochs as most are" if abs(usual - summary.wait) > NOTABLE else ""
    return f"{summary.wait:.0%} of the time{unlike}"


def why_it_waits(summary: LoaderSummary, costs: LoaderCosts) -> Finding:
    """`loading.split`: the share of the time, and what for."""
    first = max(summary.split, key=lambda name: summary.split[name])
    title = f"the program waits for {summary.loader} {how_long_it_waits(summary)}, most of it for {_WORDS[first]}"
    threads = summary.split["storage"] * _may_be_threads(costs)
    if first == "storage" and threads >= NOTABLE:
        title += f"; up to {threads:.0%} of it may be for other threads that compute for the batch, as those of a pool"
    if first in ("cpu", "transfer") and summary.collating is not None and summary.collating >= NOTABLE:
        title += f"; putting the samples of a batch together takes {summary.collating:.0%} of making it"
    if summary.unexplained >= NOTABLE:
        title += f"; {summary.unexplained:.0%} of the waiting is not explained by what was seen to cost time"
    if summary.slowed >= NOTABLE:
        title += f"; up to {summary.slowed:.0%} more may be for samples to be computed, which slows the program down"
    if summary.order >= NOTABLE:
        title += f"; {summary.order:.0%} of it would go if batches were delivered in any order"
    evidence = {"loader": summary.loader, "process": summary.process, "wait": summary.wait, "order": summary.order}
    evidence["usual_wait"] = summary.usual_wait
    evidence |= {**summary.split, "unexplained": summary.unexplained, "slowed": summary.slowed, "threads": threads}
    return Finding("loading.split", title, evidence)


def _may_be_threads(costs: LoaderCosts) -> float:
    """The share of the time that goes by as if for storage for which other threads of who makes a batch may have
    computed: whether beside it, or while it waited for them, is not seen."""
    blocked, others = float(costs.blocked.sum()), (costs.maker_cpus - 1) * float(costs.cpu.sum())
    return min(others / blocked, 1.0) if blocked > 0 else 0.0


def memory_of(summary: LoaderSummary) -> Finding:
    """`loading.memory`: of its workers, each with what it shares with the program, and of batches that wait."""
    each = summary.worker_bytes / (1 << 20)
    workers = "1 worker" if summary.num_workers == 1 else f"{summary.num_workers} workers"
    title = f"{summary.loader} has {workers}, of up to {each:,.0f} MiB, some of it the program's"
    if summary.ahead_bytes is not None:
        title += f", and up to {max(summary.ahead_bytes / (1 << 20), 0.1):,.1f} MiB of batches in shared memory"
    evidence = {"loader": summary.loader, "worker_bytes": summary.worker_bytes, "ahead_bytes": summary.ahead_bytes}
    return Finding("loading.memory", title, evidence)


def teams_in_workers(costs: LoaderCosts) -> Finding | None:
    """`loading.worker_threads`: that workers compute with more threads than there are CPUs for. None where they do not,
    as where they mostly wait for storage, or the threads hardly matter."""
    workers, computing = costs.settings.num_workers, float(costs.cpu.sum())
    making = computing + float(costs.blocked.sum())
    wanted = workers * costs.maker_cpus * computing / making if making else 0.0
    if costs.maker_cpus < 1 + NOTABLE or wanted <= costs.cpus:
        return None
    title = (
        f"each worker of {costs.loader} keeps {costs.maker_cpus:.1f} CPUs busy while it computes, as other threads of"
        f" it run as well: {workers} want {wanted:.1f} CPUs on average, and there are {costs.cpus:.0f}; libraries such"
        " as NumPy's BLAS and OpenCV start them (one more sends the batches): OMP_NUM_THREADS=1 before the program, or"
        " in its worker_init_fn threadpoolctl.threadpool_limits(1) and cv2.setNumThreads(0), leave each worker one"
    )
    evidence = {"loader": costs.loader, "worker_cpus": costs.maker_cpus, "workers": workers, "cpus": costs.cpus}
    return Finding("loading.worker_threads", title, evidence)


def pageable_copies(run: Run, loaders: Sequence[LoaderCosts]) -> Finding | None:
    """`loading.pageable`: that copies to a GPU from memory that is not page-locked take time, as batches of these
    loaders, the process's, may be. How much faster page-locked ones are, no run has seen that had none. None where that
    is not worth it, or some are page-locked: then nobody knows whose the copies are."""
    if not loaders or any(each.settings.pin_memory for each in loaders):
        return None
    share = share_of_pageable(run, loaders[0].process)
    if share < NOTICED:
        return None
    names = sorted(each.loader for each in loaders)
    settings = " and ".join(f"`loader.{name}.pin_memory = true`" for name in names)
    title = (
        f"copies to the GPU from memory that is not page-locked take {share:.0%} of the profiler's windows; what"
        f" page-locked batches save is told by {settings} in a settings file and `tracekit verify`; copies with"
        " non_blocking=True then go on beside other work"
    )
    return Finding("loading.pageable", title, {"loaders": names, "share": share})


def workers_that_import(summary: LoaderSummary, costs: LoaderCosts) -> Finding | None:
    """`loading.start_method`: that workers are started as new processes, which import all anew, and that this takes
    time. How long forked ones take, no run has seen that had none. None where it is not worth a word."""
    method, share = costs.settings.start_method, summary.wait * summary.split.get("startup", 0.0)
    if method in ("", "fork") or share < NOTICED:
        return None
    name, takes = summary.loader, costs.start + costs.boot * costs.boot_shared
    title = (
        f"workers of {name} are started by {method}, and each takes {takes:.2g} s until it loads; to"
        f" start and to end them takes {share:.0%} of the time; forked ones begin as a copy of the program, which must"
        " have no thread in a lock then, and use no GPU in its data set; what they save is told by"
        f' `loader.{name}.multiprocessing_context = "fork"` in a settings file and `tracekit verify`'
    )
    evidence = {"loader": name, "start_method": method, "share": share, "start_s": takes}
    return Finding("loading.start_method", title, evidence)


def predictability(name: str, loader: Loader) -> Finding:
    """`loading.predictability`: how far ahead the order is known."""
    ahead = {"run": "when the run begins", "epoch": "when an epoch begins"}
    known = f"is known {ahead[loader.predictability]}" if loader.predictability in ahead else "is not known beforehand"
    title = f"the order in which {name} takes samples {known}"
    if loader.checked:
        title += f": {loader.predicted} of {loader.checked} indices were predicted"
    evidence = {"loader": name, "class": loader.predictability, "checked": loader.checked}
    return Finding("loading.predictability", title, {**evidence, "predicted": loader.predicted})


def uneven_samples(run: Run) -> Finding | None:
    """`loading.samples`: that few samples take much of the time of all, and which samples and files take longest. None
    where they are about alike."""
    looked_at, share = share_of_slowest(run, _FEW)
    if share < NOTABLE:
        return None
    samples = slowest_samples(run, _NAMED)
    files = slowest_files(run, _NAMED)
    title = f"the slowest {_FEW:.0%} of {looked_at} samples take {share:.0%} of their time"
    if len(samples):
        slowest = samples.iloc[0]
        title += f", first of them sample {int(slowest['index'])} ({slowest['wall_ns'] / _NS_PER_MS:.3g} ms)"
    evidence = {
        "looked_at": looked_at,
        "share": share,
        "samples": {
            str(index): ns / _NS_PER_MS for index, ns in zip(samples["index"], samples["wall_ns"], strict=True)
        },
        "files": {str(path): ns / _NS_PER_MS for path, ns in zip(files["path"], files["wall_ns"], strict=True)},
    }
    return Finding("loading.samples", title, evidence)
