"""What is known of a loader, as the report has it."""

from dataclasses import asdict

from tracekit.analysis.loading import LoaderCosts
from tracekit.analysis.probes import Probe
from tracekit.analysis.report_schema import LoaderForecast, LoaderSummary
from tracekit.analysis.steps import Steps
from tracekit.models.loader_epochs import usual_wait, waited_s
from tracekit.models.loader_memory import needed
from tracekit.models.loader_split import split
from tracekit.models.loading import Forecasts

_MS = 1e3


def loop_s(steps: Steps, process: int) -> float:
    """For how long the main loop of a process goes on, s."""
    window = steps.window(process)
    return (window[1] - window[0]) / 1e9 if window else 0.0


def summary_of(costs: LoaderCosts, predicted: Forecasts, loop: float, probe: Probe | None) -> LoaderSummary:
    """What is told of a loader: `loop` is for how long its main loop goes on, s."""
    why, waited = split(costs), waited_s(costs)
    whole = max(loop, waited + float(costs.gap.sum()))
    making = float((costs.blocked + costs.cpu).sum())
    workers = max(costs.settings.num_workers, 1)
    return LoaderSummary(
        process=costs.process,
        loader=costs.loader,
        place=costs.settings.place,
        num_workers=costs.settings.num_workers,
        prefetch_factor=costs.settings.prefetch_factor or 0,
        batches=len(costs),
        epochs=int(costs.first.sum()),
        batch_ms=predicted.current.expected * _MS,
        wait=waited / whole if whole else 0.0,
        usual_wait=min(waited / whole * usual_wait(costs), 1.0) if whole else 0.0,
        split={name: share for name, share in asdict(why).items() if name not in ("order", "slowed")} if why else {},
        order=why.order if why else 0.0,
        sampler=costs.settings.sampler,
        persistent_workers=costs.settings.persistent_workers,
        in_order=costs.settings.in_order is not False,
        busy=min(making / (workers * whole), 1.0) if whole else 0.0,
        readers=max(costs.readers, probe.costs.readers if probe else 0),
        probed=probe is not None,
        known=costs.known,
        error=predicted.error,
        predictability=costs.settings.predictability,
        worker_bytes=costs.worker_bytes if costs.seen_working else 0,
        ahead_bytes=needed(costs, costs.settings.num_workers, costs.settings.prefetch_factor or 2)[0]
        if costs.largest_batch is not None
        else None,
        collating=costs.collating,
        unexplained=_unexplained(costs, predicted),
        slowed=why.slowed if why else 0.0,
        forecasts=[
            LoaderForecast(
                each.settings.workers,
                each.settings.prefetch if each.settings.workers else 0,
                each.low * _MS,
                each.expected * _MS,
                each.high * _MS,
                each.seen,
            )
            for each in predicted.grid
        ],
    )


def _unexplained(costs: LoaderCosts, predicted: Forecasts) -> float:
    """What the costs explain too much or too little of the time of a batch, as a share of the waiting for it."""
    waited = waited_s(costs) / len(costs)
    return min(predicted.error * predicted.current.expected / waited, 1.0) if waited > 0 else 0.0
