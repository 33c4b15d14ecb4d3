"""The tables of a run: one Arrow schema each. Times are integer nanoseconds, `start_ns` since the Unix epoch."""

import pyarrow as pa

SCHEMA_VERSION = 1

_NAME = pa.dictionary(pa.int32(), pa.string())

_COMMON = [
    pa.field("process", pa.int32()),
    pa.field("thread", pa.int64()),
    pa.field("start_ns", pa.int64()),
    pa.field("duration_ns", pa.int64()),
]


def _table(*columns: tuple[str, pa.DataType]) -> pa.Schema:
    return pa.schema(_COMMON + [pa.field(name, kind) for name, kind in columns])


TABLES: dict[str, pa.Schema] = {
    # A process of the run. `parent` is the `process` of its parent, -1 where the parent is not part of the run;
    # `rank`, `local_rank`, `worker` are -1 where they do not apply.
    "processes": _table(
        ("pid", pa.int64()),
        ("parent", pa.int32()),
        ("role", _NAME),
        ("rank", pa.int32()),
        ("local_rank", pa.int32()),
        ("world_size", pa.int32()),
        ("worker", pa.int32()),
        ("attempt", pa.int32()),
        ("host", _NAME),
        ("command", _NAME),
        ("recorded", pa.bool_()),
        ("clock_offset_ns", pa.int64()),
        ("clock_drift_ppm", pa.float64()),
    ),
    # kind: step | layer | phase | range. `step` is set on explicit steps only, -1 elsewhere: steps are
    # derived when analysing. `layer` numbers the layers of a process. `direction`: forward | backward | "".
    # `watched` marks a call during which the layers inside an nn.LSTM or GRU were told apart: that cost inflates it.
    # kind garbage: Python did a full collection.
    # A phase named calls is a mark: from there on module calls are recorded (`layer` 1) or left out (0).
    # Of explorations: block (a condition was in force; `layer`: its number, `step`: round, `depth`: steps of
    # transition, `watched`: the condition's first), plain block (the same without a look at the layers), planned (a
    # layer's count, `step`, in the plan of number `depth`; name "": everything else), probe (a measured cost), shape
    # (an input that a layer was given).
    "spans": _table(
        ("kind", _NAME),
        ("name", _NAME),
        ("depth", pa.int32()),
        ("step", pa.int64()),
        ("layer", pa.int64()),
        ("direction", _NAME),
        ("watched", pa.bool_()),
    ),
    # category: Kineto's own (cpu_op, user_annotation, kernel, gpu_memcpy, cuda_runtime, …). -1 where not given.
    "operators": _table(
        ("category", _NAME),
        ("name", _NAME),
        ("dims", _NAME),
        ("sequence", pa.int64()),
        ("correlation", pa.int64()),
        ("device", pa.int32()),
        ("stream", pa.int64()),
        ("bytes", pa.int64()),
        ("flops", pa.int64()),
        ("window", pa.int32()),
    ),
    # `duration_ns` is the time the program waited for the batch, of which the last `taking_ns` went into making one of
    # the bytes that a worker had sent, -1 where that is not known: there was no worker, or another thread took them, or
    # it was taken while an earlier one was waited for. `bytes` is -1 where it was not measured, as of most batches of
    # very short steps.
    "batches": _table(
        ("loader", _NAME),
        ("epoch", pa.int64()),
        ("index", pa.int64()),
        ("worker", pa.int32()),
        ("bytes", pa.int64()),
        ("taking_ns", pa.int64()),
    ),
    # A worker that a loader started; the time is that of starting all of them, and of drawing the first indices from
    # the sampler, which took `drawing_ns` of it. Worker -1: that of stopping all of them, as many as `pid` says.
    "workers": _table(
        ("loader", _NAME),
        ("epoch", pa.int64()),
        ("worker", pa.int32()),
        ("pid", pa.int64()),
        ("drawing_ns", pa.int64()),
    ),
    # A batch made, in a worker or, without workers, in the program; where batches are very short, some of them.
    # `iteration`: which pass of this process over its data set, of those that have a batch here; `turn`: the batch's
    # place among those it made in it, in which order they are delivered too. `cpu_ns` of the thread; `delayed_ns` it
    # waited for a CPU, page faults may have taken `faults_ns` of its time, and other threads of the process ran for
    # `others_ns`; its samples were put together for `collating_ns`; -1 where that was not measured.
    "fetches": _table(
        ("iteration", pa.int64()),
        ("turn", pa.int64()),
        ("samples", pa.int32()),
        ("cpu_ns", pa.int64()),
        ("delayed_ns", pa.int64()),
        ("faults_ns", pa.int64()),
        ("others_ns", pa.int64()),
        ("collating_ns", pa.int64()),
    ),
    # A sample of some of these batches, what giving it back takes, which is done of all of them together, included;
    # `index` is that in the data set, -1 where it has none.
    "samples": _table(("iteration", pa.int64()), ("turn", pa.int64()), ("index", pa.int64()), ("cpu_ns", pa.int64())),
    # A file or object that was read for one of these batches, or a part of it. `path` is "" where there were too many;
    # `offset` -1 where it is not known; a request for an object, and the wait for its first byte, have no `bytes`.
    "reads": _table(("path", _NAME), ("offset", pa.int64()), ("bytes", pa.int64()), ("cpu_ns", pa.int64())),
    # Communication of ranks. `sequence` counts what a group has done together, alike on all of its ranks; -1 where not
    # all of them take part. `bucket`: the gradients of DistributedDataParallel, by their turn in a backward pass; -1
    # for what the program calls itself. `ready_ns` is when the data could have been sent, `start_ns` when it was given
    # to the backend, after the hook of the program, if it has one. Where the program does not wait the end is when it
    # was first found done, and may be earlier by `unsure_ns`; -1 where it was not seen, as on devices. Where it waits
    # later for what it has begun that is a row of its own, `wait for` it, with the same `ready_ns`.
    "collectives": _table(
        ("op", _NAME),
        ("group", _NAME),
        ("sequence", pa.int64()),
        ("bytes", pa.int64()),
        ("dtype", _NAME),
        ("is_async", pa.bool_()),
        ("ready_ns", pa.int64()),
        ("bucket", pa.int32()),
        ("unsure_ns", pa.int64()),
    ),
    # The communication that a rank came to last. Where it was not over the rank was in it at the end.
    "reached": _table(("op", _NAME), ("group", _NAME), ("sequence", pa.int64()), ("is_over", pa.bool_())),
    # Where the loop of a rank of several goes from one phase to the next: loading, forward, backward, communication,
    # optimizer, other; "" where that is not known until the next row. `cpu_ns` is the CPU time of the thread until
    # then, `delayed_ns` for how long it has waited for a CPU, -1 unknown.
    "changes": _table(("phase", _NAME), ("cpu_ns", pa.int64()), ("delayed_ns", pa.int64())),
    # One value of one counter over [start_ns, start_ns + duration_ns]. process -1: the whole machine or job.
    # `source` is the rung of the ladder that the value came from.
    "counters": _table(("counter", _NAME), ("value", pa.int64()), ("source", _NAME)),
}


def plain(name: str) -> pa.Schema:
    """The schema of a table with its dictionary-encoded words as plain strings: what SQL and data frames see."""
    return pa.schema(
        [field.with_type(pa.string()) if pa.types.is_dictionary(field.type) else field for field in TABLES[name]]
    )
