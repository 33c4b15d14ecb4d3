"""The backward passes of data-parallel ranks: what was computed in them, and when their gradient buckets came and
went."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracekit.analysis.counters import Increases
from tracekit.analysis.intervals import union
from tracekit.analysis.steps import Steps
from tracekit.run.manifest import Wrapped
from tracekit.run.reader import Run

Floats = NDArray[np.float64]

_NS = 1e9
# DistributedDataParallel forms its buckets anew when it has seen the first pass; and whatever else is new is so then.
_FIRST_PASSES = 2
_FEWEST_PASSES = 5


# A pass inside another one, as of what was checkpointed, is a part of that.
_PASSES = """
    SELECT process, start_ns, duration_ns, row_number() OVER (PARTITION BY process ORDER BY start_ns) AS number
    FROM (
        SELECT process, start_ns, duration_ns, max(start_ns + duration_ns) OVER (
            PARTITION BY process ORDER BY start_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS before_ns
        FROM spans WHERE kind = 'phase' AND name = 'backward'
        AND process IN (SELECT process FROM processes WHERE rank >= 0)
    ) WHERE before_ns IS NULL OR start_ns >= before_ns
"""
_BUCKETS = f"""
    SELECT met.process, number, bucket, bytes, sequence, pass.start_ns, ready_ns,
           min(unsure_ns) OVER (PARTITION BY met.process, number) AS least_unsure_ns, unsure_ns,
           pass.duration_ns / 1e9 AS took,
           (ready_ns - pass.start_ns) / 1e9 AS there, (met.start_ns + met.duration_ns - pass.start_ns) / 1e9 AS back
    FROM collectives AS met JOIN ({_PASSES}) AS pass ON pass.process = met.process
    AND ready_ns BETWEEN pass.start_ns AND pass.start_ns + pass.duration_ns
    WHERE bucket >= 0
"""

# A layer's backward pass, until all buckets were sent: in the last one the reducer waits for them.
_LAYERS = f"""
    SELECT name, median(least(start_ns + duration_ns, sent_ns) - start_ns) AS took
    FROM spans JOIN (
        SELECT met.process, pass.start_ns AS began_ns, pass.start_ns + pass.duration_ns AS ended_ns,
               max(ready_ns) AS sent_ns
        FROM collectives AS met JOIN ({_PASSES}) AS pass ON pass.process = met.process
        AND ready_ns BETWEEN pass.start_ns AND pass.start_ns + pass.duration_ns
        WHERE bucket >= 0 GROUP BY ALL
    ) AS sent ON sent.process = spans.process AND spans.start_ns BETWEEN began_ns AND sent_ns
    WHERE kind = 'layer' AND direction = 'backward' GROUP BY name
"""


@dataclass(frozen=True)
class GradientPasses:
    """What is typical of the passes of a model: medians over P passes of the ranks of one host, s.

    A step takes `step`, each of its `passes_per_step` takes `took`, and `took_last` on the rank that sent its last
    bucket after all others, which waits for nobody; its main thread computes for `computing` until it has sent the last
    bucket, and for `finishing` from then on. Of its B buckets, `sizes` in bytes, each was `there` and `back` so long
    after the pass began; the latter may have been earlier by `unsure`. A byte costs `cpu_per_byte` of the CPU time of
    other threads (nan where that cannot be told). `ranks` share the `cpus` of a host. `weights` say how much of the
    pass is computed for each parameter, in the model's order (all alike for each byte where no layer was recorded).
    `spread`: the relative standard error of the step.
    """

    model: Wrapped
    passes: int
    ranks: int
    world: int
    cpus: float
    step: float
    took: float
    took_last: float
    passes_per_step: int
    computing: float
    finishing: float
    sizes: NDArray[np.int64]
    there: Floats
    back: Floats
    unsure: Floats
    cpu_per_byte: float
    weights: Floats
    spread: float


def ranks_of(run: Run, process: int | None) -> tuple[int, int]:
    """How many ranks were seen of those that a process is one of, and how many there are."""
    rows = run.sql(
        "SELECT count(DISTINCT other.rank) AS seen, max(other.world_size) AS world FROM processes AS own"
        " JOIN processes AS other ON other.rank >= 0 AND other.attempt IS NOT DISTINCT FROM own.attempt"
        " AND other.world_size IS NOT DISTINCT FROM own.world_size WHERE own.process = ?",
        [process],
    )
    seen, world = rows.fillna(0).iloc[0]
    return int(seen), max(int(seen), int(world))


def gradient_passes(run: Run, steps: Steps) -> GradientPasses | str:
    """Those of the only model that is wrapped; or why nothing can be told of them."""
    models = run.manifest.ddp
    if len(models) != 1:
        return "several models are wrapped" if models else "no model is wrapped"
    model = models[0]
    if len(model.sizes) != model.parameters:
        return f"it has {model.parameters} parameters, and the sizes of {len(model.sizes)} were told"
    here = run if steps.main is None else run.near(steps.main)
    passes, buckets = here.sql(_PASSES), here.sql(_BUCKETS)
    if buckets.empty or passes.empty or steps.main is None:
        return "no gradient bucket was seen"
    buckets = buckets[buckets["least_unsure_ns"] >= 0]  # one that has failed, or that nobody asks for
    if buckets.empty:
        return "when buckets of gradients on a device are back is not seen"
    counts = buckets.groupby(["process", "number"])["bucket"].transform("size")
    usual = buckets[(counts == counts.mode().iloc[0]) & (buckets["number"] > _FIRST_PASSES)]
    seen = usual[["process", "number"]].drop_duplicates()
    if len(seen) < _FEWEST_PASSES:
        return f"{len(seen)} passes with the same buckets were seen"
    each = usual.groupby("bucket").median(numeric_only=True)
    own = steps.of(steps.main)
    durations = own["duration_ns"].to_numpy() / _NS
    computing, finishing = _computed(here, passes)
    ranks, world = ranks_of(run, steps.main)
    per_step = float(each["bytes"].sum())
    took = float(usual["took"].median())
    return GradientPasses(
        model=model,
        passes=len(seen),
        ranks=-(-ranks // _sets_of_cpus(run)),
        world=world,
        cpus=run.manifest.cpu.usable,
        step=float(np.median(durations)),
        took=took,
        took_last=_took_last(usual),
        passes_per_step=_passes_per_step(usual[usual["process"] == steps.main], own),
        computing=min(computing if computing > 0 else float(each["there"].max()), took),
        finishing=finishing,
        sizes=each["bytes"].to_numpy(np.int64),
        there=each["there"].to_numpy(),
        back=each["back"].to_numpy(),
        unsure=each["unsure_ns"].to_numpy() / _NS,
        cpu_per_byte=_cpu_beside(here, passes, seen) / per_step if _has_one_thread(run) else float("nan"),
        weights=_weights(here, model),
        spread=float(1.25 * durations.std() / durations.mean() / np.sqrt(len(durations))),
    )


def _took_last(buckets: pd.DataFrame) -> float:
    """What a pass takes on the rank that sends its last bucket after the others: it waits for the transfer alone."""
    last = buckets[buckets["bucket"] == buckets["bucket"].max()].sort_values("ready_ns")
    if (last["sequence"] >= 0).all():  # else nobody knows which ones belong together
        last = last.drop_duplicates("sequence", keep="last")
    return float(last["took"].median())


def _passes_per_step(buckets: pd.DataFrame, steps: pd.DataFrame) -> int:
    """How many passes with buckets a step usually has, of those with any: 1, but where gradients are added up in
    several that all communicate."""
    begins = buckets.drop_duplicates("number")["start_ns"].to_numpy()
    in_step = np.searchsorted(steps["start_ns"].to_numpy(), begins, "right")
    counts = np.unique(in_step, return_counts=True)[1]
    return max(round(float(np.median(counts))), 1) if len(counts) else 1


def _sets_of_cpus(run: Run) -> int:
    """How many sets of CPUs the ranks are on: each a host's, or what one was given of it."""
    return len({(each.node or each.host, *each.cpu.affinity) for each in run.manifests})


def _has_one_thread(run: Run) -> bool:
    """Whether what other threads do is no part of an operator."""
    return run.manifest.torch is not None and run.manifest.torch.intra_op == 1


def _computed(run: Run, passes: pd.DataFrame) -> tuple[float, float]:
    """CPU time of the main thread in a pass, until all buckets are sent and from then on, s; (0, 0) if not followed."""
    before, after = [], []
    for process in passes["process"].unique():
        rows = run.sql("SELECT phase, cpu_ns FROM changes WHERE process = $1 ORDER BY start_ns", [int(process)])
        phase, cpu = rows["phase"].to_numpy(dtype=object), rows["cpu_ns"].to_numpy(np.int64)
        begins = np.flatnonzero((phase[:-3] == "backward") & (phase[1:-2] == "communication"))
        # What follows is the end of the pass, or its last part.
        ends = np.where(phase[begins + 2] == "backward", begins + 3, begins + 2)
        before += (cpu[begins + 1] - cpu[begins]).tolist()
        after += (cpu[ends] - cpu[begins + 1]).tolist()
    return (float(np.median(before)) / _NS, float(np.median(after)) / _NS) if before else (0.0, 0.0)


def _cpu_beside(run: Run, passes: pd.DataFrame, with_buckets: pd.DataFrame) -> float:
    """CPU time of a rank's other threads for each of its passes that have buckets, s: before one, gradients may have
    been added up in several others."""
    increases, found = Increases(run, ["process.cpu_ns"]), []
    for process, own in passes.groupby("process"):
        first, last = int(own["start_ns"].min()), int(own["start_ns"].max())
        whole = increases.rate_in(int(process), "process.cpu_ns", union(np.array([first]), np.array([last])))
        rows = run.sql(
            "SELECT max(cpu_ns) - min(cpu_ns) AS cpu, max(start_ns) - min(start_ns) AS span FROM changes "
            "WHERE process = $1 AND start_ns BETWEEN $2 AND $3",
            [int(process), first, last],
        )
        cpu, span = float(rows["cpu"].iloc[0] or 0), float(rows["span"].iloc[0] or 0)
        if span > 0 and not np.isnan(whole):
            sent = own.merge(with_buckets[["process", "number"]], on=["process", "number"])["start_ns"]
            each = float(np.median(np.diff(np.sort(sent.to_numpy()))))  # between two, some are left out
            found.append((whole - cpu / span) * each / _NS)
    return max(float(np.mean(found)), 0.0) if found else float("nan")


def _weights(run: Run, model: Wrapped) -> Floats:
    """How much of the pass is computed for each parameter, by the time of the backward pass of its layer."""
    sizes = np.array(model.sizes, dtype=np.float64)
    rows = run.sql(_LAYERS)
    times = {str(row.name).removeprefix("module."): float(row.took) for row in rows.itertuples(index=False)}
    layers = [name.rpartition(".")[0] for name in model.names]
    if not all(layer in times for layer in layers):
        return sizes
    shares = np.zeros(len(sizes))
    for layer in set(layers):
        at = np.flatnonzero([each == layer for each in layers])
        shares[at] = times[layer] * sizes[at] / max(sizes[at].sum(), 1.0)
    return shares
