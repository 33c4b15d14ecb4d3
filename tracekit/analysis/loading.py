"""Loading: what the batches of each loader cost where they are made and where they are used, without waiting for each
other.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracekit.analysis.batches import made_batches
from tracekit.analysis.counters import Increases
from tracekit.analysis.handover import beside_making, handover
from tracekit.analysis.intervals import union
from tracekit.analysis.loader_devices import seconds_of_a_gpu
from tracekit.analysis.loading_cpus import Crowding, computed_by_others, consumer_cpus_of, share_of_cpu
from tracekit.analysis.operators import windows
from tracekit.analysis.people import ranks_beside
from tracekit.analysis.starting import boot_of, cold_of, cold_outside_of, connect_of, start_of, stop_of
from tracekit.analysis.steps import Steps
from tracekit.analysis.teams import share_of_operators
from tracekit.run.manifest import Loader, Memory
from tracekit.run.reader import Run

Seconds = NDArray[np.float64]
Stop = tuple[int, int]  # from, to: ns

_NS = 1e9
# As many batches as these were being made at once for at least this share of the time in which any was.
_SEEN_SHARE = 0.05
# Where profiler windows are so much of a run, what is unlike them is not typical of it.
_MOST_UNLIKE = 0.5
_MOSTLY = 0.5  # more often than not
_MOST_WORKERS = 1 << 15  # more processes no Linux lets anybody have unless it is told to


@dataclass(frozen=True)
class LoaderCosts:
    """The batches of one loader of one process, B of them in the order in which the program got them, in seconds.

    `wait` is for how long the program waited for each, `gap` what went by from then until it asked for the next, and
    `consume` the same less the waiting for a CPU. In the worker, `blocked` went by without the CPU being wanted
    (storage, locks, sleep), `cpu` on it, of which reading takes the share `reading_cpu` and page faults may take
    `faults`, and putting samples together the share `collating` of all (None: not seen); and for so long it was
    `delayed`, waiting for a CPU. To `send` a batch takes as long, and to `receive` one that is there (without workers:
    what the program is at beside making one): both without waiting for a CPU, for which the program did wait for
    `delayed_receive` on average as it took a batch; the share `crowded` of this waiting is taken to be one of the
    costs, wherever there are as many workers. Where all batches are there when they are asked for it takes
    `more_if_there` longer, to find that they are, and `rested` in all where workers have nothing else to do (None: not
    seen). `first` marks those that an epoch began with; `number` tells a batch by its epoch and index, in another run
    too (-1: how it was made was not seen). `start` is what the program takes to start one worker, `boot` what a worker
    takes then, with a CPU, until it makes its first batch (it took `boot_shared` times as long), for which it computes
    for `cold` longer than for others (of that for `cold_outside` outside of getting samples; None: not seen); that one
    takes so much longer to `connect` for; and `stop` is what ending takes a worker. A batch has `batch_bytes`, and at
    most `largest_batch`, None where none was measured; a worker had `worker_bytes` at most (or, where none was
    `seen_working`, has what the program had, whose copy it begins as), and `memory` was free beside the program.
    `alone`: one thread, as a worker has it, may take so many times the `cpu` time, at most: where the program's team of
    threads had a part in each of torch's operators. Who makes a batch keeps `maker_cpus` busy while it computes:
    libraries have threads of their own. `at_once`: epochs overlapped, several iterators of the loader were in use.
    `began`: what the program took from its start until it wanted its first batch of all. `is_aside`: another thread
    than that of the steps takes the batches. Where more CPUs are wanted than there are the program is taken to be
    `preferred` (`loader_replay.Machine`). `readers` were being made at once, at most, and storage was `reading` so many
    of them on average. `known` is the share of the batches whose making was seen. A GPU works for `device` between two
    batches, at least; nan where one may be used and nobody saw for how long: the program may be through with a batch
    before it is. The share `in_loop` was asked for within the steps of the program. Of the CPUs so many are `cores`:
    others share one. Where the program `leaves_early` workers had made batches of an epoch that it did not take, before
    another one began. Where it asks `in_turn_with` another loader, each waits for both.
    """

    process: int
    loader: str
    settings: Loader
    wait: Seconds
    gap: Seconds
    blocked: Seconds
    cpu: Seconds
    delayed: Seconds
    delayed_receive: float
    reading_cpu: float
    collating: float | None
    send: float
    receive: Seconds
    consume: Seconds
    first: NDArray[np.bool_]
    number: NDArray[np.int64]
    start: float
    boot: float
    stop: float
    readers: int
    reading: float
    cpus: float
    consumer_cpus: float
    batch_bytes: int
    largest_batch: int | None
    worker_bytes: int
    memory: Memory
    known: float
    seen_working: bool = False
    crowded: float = 0.0
    alone: float = 1.0
    faults: float = 0.0
    maker_cpus: float = 1.0
    at_once: bool = False
    began: float = 0.0
    cold: float = 0.0
    cold_outside: float | None = None
    connect: float = 0.0
    more_if_there: float = 0.0
    rested: float | None = None
    preferred: float = 0.0
    is_aside: bool = False
    device: float = 0.0
    in_loop: float = 1.0
    boot_shared: float = 1.0
    cores: float = math.inf
    leaves_early: bool = False
    in_turn_with: str = ""

    def __len__(self) -> int:
        return len(self.wait)

    @property
    def busy(self) -> float:
        """The share of the CPUs that loading and the program keep busy."""
        making = float(self.cpu.sum()) * self.maker_cpus
        computing = making + float(self.receive.sum() + self.consume.sum() * self.consumer_cpus)
        whole = float((self.wait + self.gap).sum())
        return (computing + self.send * len(self)) / (self.cpus * whole) if whole else 0.0


def loader_costs(run: Run, steps: Steps, stops: Sequence[Stop] = ()) -> list[LoaderCosts]:
    """What each loader's batches cost, in the process that stands for the run; of loaders that were iterated over.

    Batches that were being made or waited for while the run was stopped (from, to: Unix ns) are left out.
    """
    if steps.main is None:
        return []
    batches = made_batches(run, steps.main)
    batches = batches[~_stopped(batches, stops)]
    if batches.empty:
        return []
    increases = Increases(run, ["process.cpu_ns", "thread.cpu_ns", "thread.run_delay_ns"])
    profiled = windows(run)
    profiled = profiled[profiled["process"] == steps.main]
    began = _began(run, steps.main, int(batches["asked_ns"].min()))
    parts = {str(loader): part.sort_values("asked_ns") for loader, part in batches.groupby("loader", sort=True)}
    device = seconds_of_a_gpu(run, steps.main, profiled, parts)
    window = steps.window(steps.main)
    found = [
        replace(
            _costs(run, increases, profiled, steps.main, steps.thread[steps.main], began, loader, part, stops),
            device=device[loader],
            in_loop=float(part["asked_ns"].between(*window).mean()) if window else 1.0,
        )
        for loader, part in parts.items()
    ]
    asked = {loader: part["asked_ns"].to_numpy() for loader, part in parts.items()}
    return [replace(each, in_turn_with=_in_turn_with(each.loader, asked)) for each in found]


def _in_turn_with(loader: str, asked: dict[str, NDArray[np.int64]]) -> str:
    """Another loader that the program asks between most batches of this one, as this one between most of it; ""."""
    own = asked[loader]
    for other, theirs in asked.items():
        if other != loader and min(_asked_between(own, theirs), _asked_between(theirs, own)) > _MOSTLY:
            return other
    return ""


def _asked_between(own: NDArray[np.int64], theirs: NDArray[np.int64]) -> float:
    """Between which share of one's own batches one of theirs was asked for."""
    return float((np.diff(np.searchsorted(theirs, own)) > 0).mean()) if len(own) > 1 else 0.0


def _costs(
    run: Run,
    increases: Increases,
    profiled: pd.DataFrame,
    process: int,
    thread: int,
    began: float,
    loader: str,
    batches: pd.DataFrame,
    stops: Sequence[Stop],
) -> LoaderCosts:
    stopped = union(*np.array(stops, dtype=np.int64).reshape(-1, 2).T)
    asked, received = (batches[name].to_numpy(dtype=np.int64) for name in ("asked_ns", "received_ns"))
    known = batches["maker"].to_numpy() >= 0
    made_for = (batches["made_ns"] - batches["made_start_ns"]).to_numpy(dtype=np.float64)
    cpu = np.minimum(batches["cpu_ns"].to_numpy(dtype=np.float64), made_for)
    waited = made_for - cpu
    delayed = _delayed(batches, waited)
    blocked = waited - delayed
    epoch = batches["epoch"].to_numpy()
    first = np.append(True, epoch[1:] != epoch[:-1])
    itself = (batches["worker"] < 0).to_numpy()
    begun, made = (batches[name].to_numpy(dtype=np.int64) for name in ("made_start_ns", "made_ns"))
    # Of an epoch's first batch what its sampler takes to begin: as with workers, where that goes by before it is asked.
    wait = (received - np.where(first & itself & known, np.clip(begun, asked, received), asked)) / _NS
    late = np.where(_meets(np.minimum(made, asked), asked, stops), np.nan, (asked - made) / _NS)
    cpu = _filled(cpu / _NS, known)
    at_once, length = _at_once(batches[known])
    ranks = ranks_beside(run, process)
    cpus = max(run.manifest.cpu.usable / ranks, 1.0)
    gap = np.append(asked[1:] - received[:-1], 0) / _NS
    last = np.append(first[1:], True)
    is_cut = last | np.append(_meets(received[:-1], asked[1:], stops), True)
    is_cut[0] = True  # the first step compiles, allocates and opens files, which no setting changes
    gap[is_cut] = np.median(gap[~is_cut]) if (~is_cut).any() else 0.0
    unlike = _around(profiled, received)
    if unlike.mean() < _MOST_UNLIKE:
        gap[unlike] = np.median(gap[~unlike])
    crowding = Crowding.of(increases, process, union(asked[first], received[last]))
    settings = _settings(run.manifest.loaders.get(loader), int(batches["worker"].max()) + 1)
    made_late = np.where(known & ~itself, late, np.nan)
    handed = handover(batches, made_late, first, cpus, crowding.share_delayed, settings.storages)
    by_workers = int(np.count_nonzero(~itself))
    beside = beside_making(batches[itself], wait[itself], first[itself])
    warm = batches[batches["turn"] > 0]  # in its first batch a forked worker makes its own what it begins with
    told = warm[warm["others_ns"] >= 0]
    helped = 1 + share_of_cpu(told[told["worker"] < 0], "others_ns")  # by other threads
    by_itself = float(cpu[itself].sum()) * helped + beside * np.count_nonzero(itself)
    delayed_itself = float(delayed[itself].sum()) / _NS
    computing, delayed_there = handed.computing + by_itself, handed.delayed + delayed_itself
    consume = crowding.alone(gap, computing + delayed_there, delayed_there, float(wait.sum() + gap.sum()))
    most_alone = min(1 + share_of_cpu(told, "others_ns"), cpus) if len(told) else np.inf
    size = batches["bytes"].to_numpy()
    blocked = _filled(np.maximum(blocked, 0) / _NS, known)
    theirs = computed_by_others(told, float(cpu.mean()), float(blocked.mean()), cpus, handed.send)
    maker_cpus, by_maker = theirs.maker_cpus, float(cpu.sum())
    cpu, blocked = cpu + theirs.of_blocked * blocked, blocked * (1 - theirs.of_blocked)
    by_maker /= float(cpu.sum()) or 1.0
    boot, boot_shared = boot_of(batches[known & ~itself], cpus, stopped)
    making = length[at_once > 0].sum()
    makers = batches["maker"][known & ~itself].unique()
    of_workers = _most_memory(run, makers.tolist())
    return LoaderCosts(
        process=process,
        loader=loader,
        settings=settings,
        wait=wait,
        gap=gap,
        blocked=blocked,
        cpu=cpu,
        delayed=_filled(delayed / _NS, known),
        delayed_receive=handed.delayed / by_workers if by_workers else 0.0,
        reading_cpu=by_maker * min(share_of_cpu(batches[batches["delayed_ns"] >= 0], "reading_cpu_ns"), 1.0),
        collating=_collating(batches),
        send=handed.send,
        receive=np.where(itself, beside, handed.receive),
        consume=consume,
        first=first,
        number=np.where(known, (epoch.astype(np.int64) << 32) + batches["index"].to_numpy(dtype=np.int64), -1),
        start=start_of(run, process, loader, stopped),
        boot=boot,
        boot_shared=boot_shared,
        stop=stop_of(run, process, loader, cpus, stopped),
        readers=_most_at_once(at_once, length),
        reading=float(blocked[known].sum() * _NS / making) if making else 0.0,
        cpus=cpus,
        consumer_cpus=consumer_cpus_of(crowding.busy, computing, wait, gap, consume, cpus),
        batch_bytes=int(np.median(size[size >= 0])) if (size >= 0).any() else 0,
        largest_batch=int(size.max()) if (size >= 0).any() else None,
        worker_bytes=of_workers or _most_memory(run, [process]),
        seen_working=of_workers > 0,
        memory=_memory_beside(run, process, ranks),
        known=float(known.mean()),
        alone=1.0 if settings.num_workers else min(_slowdown_alone(run, process, loader, cpus), most_alone),
        maker_cpus=maker_cpus,
        faults=by_maker * min(share_of_cpu(warm[warm["faults_ns"] >= 0], "faults_ns"), 1.0),
        at_once=bool(np.count_nonzero(first) > len(np.unique(epoch))),
        began=began,
        cold=cold_of(batches[known & ~itself]),
        cold_outside=cold_outside_of(batches[known & ~itself]),
        connect=connect_of(batches[known & ~itself], handed.send + handed.receive),
        more_if_there=handed.more_if_there,
        rested=handed.rested,
        is_aside=bool((batches["thread"] != thread).mean() > _MOSTLY),
        cores=(run.manifest.cpu.cores or math.inf) / ranks,
        leaves_early=bool(batches["is_left"].groupby(epoch).any().iloc[:-1].any()),
    )


def _stopped(batches: pd.DataFrame, stops: Sequence[Stop]) -> NDArray[np.bool_]:
    """Which batches a stop falls into as they are made, or waited for; while one that is ready waits to be asked for a
    stop changes nothing of it."""
    asked, begun, made, received = (
        batches[name].to_numpy(dtype=np.int64) for name in ("asked_ns", "made_start_ns", "made_ns", "received_ns")
    )
    return _meets(asked, received, stops) | ((begun > 0) & _meets(begun, made, stops))


def _meets(begins: NDArray[np.int64], ends: NDArray[np.int64], stops: Sequence[Stop]) -> NDArray[np.bool_]:
    """Which stretches of time a stop falls into."""
    stopped, resumed = np.array(stops, dtype=np.int64).reshape(-1, 2).T
    return np.searchsorted(stopped, ends) > np.searchsorted(resumed, begins)


def _around(profiled: pd.DataFrame, received: NDArray[np.int64]) -> NDArray[np.bool_]:
    """After which batches a profiler window began, was open or ended, which takes longer than a batch may."""
    starts, ends = profiled["start_ns"], profiled["start_ns"] + profiled["duration_ns"]
    # It begins as the program is about to ask for a batch, before its first operation, and ends so, after its last one.
    first, after = np.searchsorted(received, starts, "right") - 2, np.searchsorted(received, ends, "right") + 1
    open_more = np.zeros(len(received) + 1, dtype=np.int64)
    np.add.at(open_more, np.clip(first, 0, len(received)), 1)
    np.add.at(open_more, np.clip(after, 0, len(received)), -1)
    return np.cumsum(open_more)[:-1] > 0


def _delayed(batches: pd.DataFrame, waited: Seconds) -> Seconds:
    """For how long each batch waited for a CPU, ns: of what was neither on a CPU nor measured, the same share as of the
    batches that were looked at."""
    delayed = batches["delayed_ns"].to_numpy(dtype=np.float64)
    measured = (delayed >= 0) & (batches["maker"].to_numpy() >= 0)
    whole = waited[measured].sum()
    share = min(delayed[measured].sum() / whole, 1.0) if whole > 0 else 0.0
    return np.where(measured, np.minimum(delayed, waited), share * waited)


def _collating(batches: pd.DataFrame) -> float | None:
    """The share of the time of making batches in which their samples were put together: but for the first ones, and
    those that were looked at closely, which take longer for that than others: 22 % in place of 14 % of what 32 small
    tensors take to make was seen, as what looks at each comes in between."""
    told = batches[(batches["maker"] >= 0) & (batches["collating_ns"] >= 0)]
    for usual in ("faults_ns < 0", "turn > 0"):
        told = told.query(usual) if len(told.query(usual)) else told
    making = float((told["made_ns"] - told["made_start_ns"]).sum())
    return min(float(told["collating_ns"].sum()) / making, 1.0) if making > 0 else None


def _filled(values: Seconds, known: NDArray[np.bool_]) -> Seconds:
    """What is not known is taken to be like what is known around it."""
    if known.all() or not known.any():
        return np.where(known, values, 0.0)
    at = np.arange(len(values))
    return np.where(known, values, np.interp(at, at[known], values[known]))


def _slowdown_alone(run: Run, process: int, loader: str, cpus: float) -> float:
    """How many times longer one thread may take for what the team of the program had a part in."""
    threads = min(run.manifest.torch.intra_op if run.manifest.torch else 1, cpus)
    return 1.0 + share_of_operators(run, process, loader) * (threads - 1) if threads > 1 else 1.0


def _began(run: Run, process: int, asked_ns: int) -> float:
    rows = run.sql("SELECT start_ns FROM processes WHERE process = ?", [process])
    return max(asked_ns - int(rows["start_ns"].iloc[0]), 0) / _NS if len(rows) else 0.0


def _settings(told: Loader | None, workers: int) -> Loader:
    """What is known of a loader of which so many workers were seen. One that was told to have what no loader works with
    has had something else, as where a program sets its attributes."""
    if told is None:
        return Loader(num_workers=workers, made=0)
    if 0 <= told.num_workers <= _MOST_WORKERS and (told.prefetch_factor or 0) >= 0:
        return told
    return msgspec.structs.replace(told, num_workers=workers, prefetch_factor=None, varied=True)


def _most_memory(run: Run, processes: list[int]) -> int:
    """The resident memory of one of some processes at its highest, bytes; 0 where it was not looked at."""
    query = (
        "SELECT max(value) AS highest FROM counters WHERE counter = 'process.rss_bytes' AND list_contains(?, process)"
    )
    rows = run.sql(query, [processes])
    return int(rows["highest"].fillna(0).iloc[0])


def _memory_beside(run: Run, process: int, ranks: int) -> Memory:
    """A rank's part of what was free when the run began, less what it came to need itself."""
    memory = run.manifest.memory
    free = None if memory.free is None else max(memory.free // ranks - _most_memory(run, [process]), 0)
    shared = None if memory.shared is None else memory.shared // ranks
    return Memory(free, shared, memory.files)


def _at_once(batches: pd.DataFrame) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many batches were being made at once in each stretch of time in which that is the same; its length, ns."""
    starts, ends = (batches[name].to_numpy(dtype=np.int64) for name in ("made_start_ns", "made_ns"))
    times = np.concatenate([starts, ends])
    change = np.concatenate([np.ones(len(starts), dtype=np.int64), -np.ones(len(ends), dtype=np.int64)])
    order = np.lexsort((change, times))
    return np.cumsum(change[order])[:-1], np.diff(times[order])


def _most_at_once(at_once: NDArray[np.int64], length: NDArray[np.int64]) -> int:
    """How many batches were being made at once for a noticeable share of the time."""
    making = length[at_once > 0].sum()
    for count in range(int(at_once.max(initial=0)), 1, -1):
        if length[at_once >= count].sum() >= _SEEN_SHARE * making:
            return count
    return 1
