"""The backward passes of data-parallel ranks: what was computed in them, and when their gradient buckets came and
went."""

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracekit.analysis.counters import Increases
from tracekit.analysis.intervals import union
from tracekit.analysis.people import ranks_beside, ranks_of, world_of
from tracekit.analysis.steps import Steps
from tracekit.analysis.teams import crowded_team
from tracekit.run.manifest import Wrapped
from tracekit.run.reader import Run

Floats = NDArray[np.float64]

_NS = 1e9
# DistributedDataParallel forms its buckets anew when it has seen the first pass; and whatever else is new is so then.
_FIRST_PASSES = 2
_FEWEST_PASSES = 5
# How the parameters of a recurrent layer of several, which has its backward pass at once, tell theirs.
_PART = re.compile(r"_l\d+(_reverse)?$")


# Of the `ranks` of one job, those that accumulate gradients. A pass inside another one, as of what was checkpointed, is
# a part of that.
PASSES = """
    SELECT process, start_ns, duration_ns, row_number() OVER (PARTITION BY process ORDER BY start_ns) AS number
    FROM (
        SELECT process, start_ns, duration_ns, max(start_ns + duration_ns) OVER (
            PARTITION BY process ORDER BY start_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS before_ns
        FROM spans WHERE kind = 'phase' AND name = 'backward' AND coalesce(layer, 0) < 1 AND process IN ({ranks})
    ) WHERE before_ns IS NULL OR start_ns >= before_ns
"""
_BUCKETS = f"""
    SELECT met.process, "group", number, bucket, bytes, sequence, pass.start_ns, ready_ns,
           min(unsure_ns) OVER (PARTITION BY met.process, number) AS least_unsure_ns, unsure_ns,
           pass.duration_ns / 1e9 AS took,
           (ready_ns - pass.start_ns) / 1e9 AS there, (met.start_ns + met.duration_ns - pass.start_ns) / 1e9 AS back
    FROM (SELECT * FROM collectives WHERE bucket >= 0) AS met ASOF JOIN ({PASSES}) AS pass
    ON pass.process = met.process AND met.ready_ns >= pass.start_ns
    WHERE ready_ns <= pass.start_ns + pass.duration_ns
"""
_WITH_BUCKETS = f"SELECT DISTINCT process, number FROM ({_BUCKETS}) WHERE number > {_FIRST_PASSES}"
# The ranks whose gradients meet those of a process, and the group that they are of: all ranks of the job, or some.
_GROUP = """
    SELECT DISTINCT "group" AS name, process FROM collectives
    WHERE bucket >= 0 AND process IN ({ranks}) AND "group" IN (
        SELECT "group" FROM collectives WHERE bucket >= 0 AND process = $1
        GROUP BY 1 ORDER BY count(*) DESC LIMIT 1
    ) ORDER BY process
"""
# Of each pass of a group, by the number of its last bucket, the rank that waits for nobody: all have it back at the
# same time, and there it was under way for the shortest. That needs no clocks that agree. `seen` ranks have a record of
# the pass.
_OF_THE_LAST = f"""
    WITH buckets AS ({_BUCKETS}), passes AS (
        SELECT process, number, max(sequence) AS meeting, arg_max(back - there, sequence) AS under_way
        FROM buckets WHERE least_unsure_ns >= 0 AND "group" = $1 GROUP BY process, number
    ), latest AS (
        SELECT meeting, arg_min(process, under_way) AS process, arg_min(number, under_way) AS number, count(*) AS seen
        FROM passes GROUP BY meeting
    )
    SELECT buckets.*, meeting, seen FROM buckets JOIN latest USING (process, number) ORDER BY process, number, bucket
"""

# When a layer's backward pass began and ended, at the latest when all buckets were sent: in the last one the reducer
# waits for them. A layer that is called several times began with the first call and ended with the `last`.
_LAYERS = f"""
    SELECT name, median(began) / 1e9 AS began, median(last) / 1e9 AS last, median(ended) / 1e9 AS ended FROM (
        SELECT name, min(start_ns) - began_ns AS began, arg_max(start_ns, start_ns + duration_ns) - began_ns AS last,
               max(least(start_ns + duration_ns, sent_ns)) - began_ns AS ended
        FROM (SELECT * FROM spans WHERE kind = 'layer' AND direction = 'backward') AS layers ASOF JOIN (
            SELECT process, start_ns AS began_ns, max(ready_ns) AS sent_ns FROM ({_BUCKETS}) GROUP BY process, start_ns
        ) AS sent ON sent.process = layers.process AND layers.start_ns >= began_ns
        WHERE layers.start_ns <= sent_ns GROUP BY name, layers.process, began_ns
    ) GROUP BY name
"""


@dataclass(frozen=True)
class GradientPasses:
    """What is typical of the passes of a model: medians over P passes, each on the rank that sent its last bucket after
    all others and so waits for nobody, s.

    A step takes `step`, each of its `passes_per_step` takes `took`; its main thread computes for `computing` until it
    has sent the last bucket, and for `finishing` from then on. Of its B buckets, `sizes` in bytes, each was `there` and
    `back` so long after the pass began; the latter may have been earlier by `unsure`. A byte costs `cpu_per_byte` of
    the CPU time of other threads (nan where that cannot be told). `ranks` share the `cpus` of a host. `comes` says when
    the gradient of each parameter is there, in the model's order, on an axis of its own where no layer was recorded.
    `in_order`: whether gradients came in the reverse of that order, as far as layers tell; None where none do.
    `spread`: the relative standard error of the step.
    """

    model: Wrapped
    passes: int
    ranks: int
    world: int
    cpus: float
    step: float
    took: float
    passes_per_step: int
    computing: float
    finishing: float
    sizes: NDArray[np.int64]
    there: Floats
    back: Floats
    unsure: Floats
    cpu_per_byte: float
    comes: Floats
    in_order: bool | None
    spread: float


def gradient_passes(run: Run, steps: Steps) -> GradientPasses | str:
    """Those of the only model that is wrapped; or why nothing can be told of them."""
    models = run.manifest.ddp
    if len(models) != 1:
        return "several models are wrapped" if models else "no model is wrapped"
    model = models[0]
    if model.hook:
        return "the program does something else with each bucket (a communication hook)"
    if model.compiled:
        return "the program uses torch.compile, which may cut its graphs at the buckets: others make other graphs"
    if len(model.sizes) != model.parameters:
        return f"it has {model.parameters} parameters, and the sizes of {len(model.sizes)} were told"
    job = ranks_of(run, steps.main)
    if not job or steps.main is None:
        return "no gradient bucket was seen"
    here = run.near(steps.main)
    ranks = ", ".join(str(who.process) for who in job)
    group = run.sql(_GROUP.format(ranks=ranks), [steps.main])
    if group.empty:
        return "no gradient bucket was seen"
    ranks = ", ".join(map(str, group["process"]))
    buckets = run.sql(_OF_THE_LAST.format(ranks=ranks), [group["name"].iloc[0]])
    if buckets.empty:
        return _why_none(run.sql(f"{_BUCKETS.format(ranks=ranks)} LIMIT 1"))
    if (buckets["meeting"] < 0).any():
        return "which buckets of its ranks belong together is not known"
    buckets, world = buckets[buckets["seen"] == buckets["seen"].max()], world_of(job)
    if len(job) == world:  # all are known, so those of the group are, too
        world = len(group)
    if buckets["seen"].iloc[0] < world:
        return f"{buckets['seen'].iloc[0]} of {world} ranks were seen: whether they waited for the others is not known"
    counts = buckets.groupby(["process", "number"])["bucket"].transform("size")
    usual = buckets[(counts == counts.mode().iloc[0]) & (buckets["number"] > _FIRST_PASSES)]
    seen = usual[["process", "number"]].drop_duplicates()
    if len(seen) < _FEWEST_PASSES:
        return f"{len(seen)} passes with the same buckets were seen"
    together = ranks_beside(run, steps.main)
    if threads := crowded_team(here.manifest, together):
        return (
            f"each operator has {threads} threads, which share the CPUs with what sends them, and how long they then"
            " wait for each other no run tells"
        )
    each = usual.groupby("bucket").median(numeric_only=True)
    own = steps.of(steps.main)
    durations = own["duration_ns"].to_numpy() / _NS
    computing, finishing = _computed(run, usual)
    took = float(usual["took"].median())
    comes, in_order = _comes(here.sql(_LAYERS.format(ranks=ranks)), model)
    return GradientPasses(
        model=model,
        passes=len(seen),
        ranks=together,
        world=world,
        cpus=here.manifest.cpu.usable,
        step=float(np.median(durations)),
        took=took,
        passes_per_step=_passes_per_step(run.sql(_BUCKETS.format(ranks=steps.main)), own),
        computing=min(computing if computing > 0 else float(each["there"].max()), took),
        finishing=finishing,
        sizes=each["bytes"].to_numpy(np.int64),
        there=each["there"].to_numpy(),
        back=each["back"].to_numpy(),
        unsure=each["unsure_ns"].to_numpy() / _NS,
        cpu_per_byte=_cpu_per_byte(here, ranks, float(each["bytes"].sum())),
        comes=comes,
        in_order=in_order,
        spread=float(1.25 * durations.std() / durations.mean() / np.sqrt(len(durations))),
    )


def _why_none(buckets: pd.DataFrame) -> str:
    if buckets.empty:
        return "no gradient bucket was seen"
    return "when buckets of gradients on a device are back is not seen"  # or they have failed, or nobody asks for them


def _passes_per_step(buckets: pd.DataFrame, steps: pd.DataFrame) -> int:
    """How many passes with buckets a step usually has, of those with any: 1, but where gradients are added up in
    several that all communicate."""
    begins = buckets.drop_duplicates("number")["start_ns"].to_numpy()
    in_step = np.searchsorted(steps["start_ns"].to_numpy(), begins, "right")
    counts = np.unique(in_step, return_counts=True)[1]
    return max(round(float(np.median(counts))), 1) if len(counts) else 1


def _cpu_per_byte(here: Run, ranks: str, sent: float) -> float:
    """CPU time of the other threads of ranks for each of so many bytes that a pass sends, s; nan where it is not told
    apart from that of operators."""
    if not _has_one_thread(here):
        return float("nan")
    passes, with_buckets = (here.sql(query.format(ranks=ranks)) for query in (PASSES, _WITH_BUCKETS))
    return _cpu_beside(here, passes, with_buckets) / sent


def _has_one_thread(run: Run) -> bool:
    """Whether what other threads do is no part of an operator."""
    return run.manifest.torch is not None and run.manifest.torch.intra_op == 1


def _computed(run: Run, buckets: pd.DataFrame) -> tuple[float, float]:
    """CPU time of the main thread in the passes of these buckets, until all are sent and from then on, s; (0, 0) if not
    followed."""
    before, after = [], []
    passes = buckets.drop_duplicates(["process", "number"])
    for process, own in passes.groupby("process"):
        rows = run.sql(
            "SELECT phase, start_ns, cpu_ns FROM changes WHERE process = $1 AND start_ns BETWEEN $2 AND $3"
            " ORDER BY start_ns",
            [int(process), int(own["start_ns"].min() - _NS), int((own["start_ns"] + own["took"] * _NS).max() + _NS)],
        )
        phase, cpu = rows["phase"].to_numpy(dtype=object), rows["cpu_ns"].to_numpy(np.int64)
        begins = np.flatnonzero((phase[:-3] == "backward") & (phase[1:-2] == "communication"))
        begun, starts = rows["start_ns"].to_numpy(np.int64)[begins + 1], np.sort(own["start_ns"].to_numpy(np.int64))
        at = np.searchsorted(starts, begun, "right") - 1
        lengths = own.sort_values("start_ns")["took"].to_numpy() * _NS
        is_in_pass = (at >= 0) & (begun <= starts[at] + lengths[at])
        # Buckets are waited for last; what the program's own functions gather in their backward pass is within it.
        begins, at = begins[is_in_pass], at[is_in_pass]
        begins = begins[at != np.append(at, -1)[1:]]
        # What follows is the end of the pass, or its last part.
        ends = np.where(phase[begins + 2] == "backward", begins + 3, begins + 2)
        before += (cpu[begins + 1] - cpu[_first_backward(phase)[begins]]).tolist()
        after += (cpu[ends] - cpu[begins + 1]).tolist()
    return (float(np.median(before)) / _NS, float(np.median(after)) / _NS) if before else (0.0, 0.0)


def _first_backward(phase: NDArray[np.object_]) -> NDArray[np.intp]:
    """Of changes [N], where the pass that each is in began: with "backward" behind anything else than its parts."""
    is_part = np.isin(phase, ["backward", "communication"])
    begins = (phase == "backward") & ~np.append(False, is_part[:-1])
    return np.maximum.accumulate(np.where(begins, np.arange(len(phase)), 0))


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


def _comes(rows: pd.DataFrame, model: Wrapped) -> tuple[Floats, bool | None]:
    """When the gradient of each parameter is there: with the end of the backward pass of its layer, or of its part of a
    layer of several, for which the last call's is taken to go on evenly, as the whole pass is without layers; and
    whether the layers had their backward passes in the reverse of the order in which the model has their parameters."""
    sizes = np.array(model.sizes, dtype=np.float64)
    rows = rows.set_index(rows["name"].astype(str).str.removeprefix("module."))
    rows = rows[~rows.index.duplicated()]
    layers = [name.rpartition(".")[0] for name in model.names]
    if not layers or not all(layer in rows.index for layer in layers):
        return np.cumsum(sizes[::-1])[::-1], None
    parts = [found[0] if (found := _PART.search(name)) else None for name in model.names]
    backward = pd.DataFrame({"layer": layers, "part": parts, "bytes": sizes})[::-1]
    in_parts = backward["part"].notna().groupby(backward["layer"]).transform("all")
    backward["part"] = backward["part"].where(in_parts, "")
    backward["share"] = backward.groupby("layer")["bytes"].cumsum()
    share = backward.groupby(["layer", "part"])["share"].transform("max")
    share /= backward.groupby("layer")["bytes"].transform("sum").clip(lower=1.0)
    last, ended = (each.loc[backward["layer"]].to_numpy() for each in (rows["last"], _ends(rows)))
    ends = (last + share * (ended - last)).to_numpy()[::-1]
    came = rows.loc[list(dict.fromkeys(layers))]
    # None begins when one has ended that the model has before it.
    earliest_end = came["ended"].cummin().shift(fill_value=np.inf)
    # What the model has before a parameter comes after it.
    return np.minimum.accumulate(ends), bool((came["began"] < earliest_end).all())


def _ends(rows: pd.DataFrame) -> "pd.Series[float]":
    """When the backward pass of each layer was through, s: when the next one that is not within it began, at the
    latest. One whose input has no gradient is seen to end with the whole pass."""
    begun = rows.sort_values("last")
    names, begins = begun.index.to_list(), begun["last"].to_list()
    latest = [
        next(
            (
                begins[later]
                for later in range(at + 1, len(names))
                if name and begins[later] > begins[at] and not names[later].startswith(f"{name}.")
            ),
            np.inf,
        )
        for at, name in enumerate(names)
    ]
    return begun["ended"].clip(upper=pd.Series(latest, index=begun.index))
