"""CPU threads: how well the main loops use theirs, and whether there are more of them than CPUs."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec
import numpy as np

from tracekit.analysis.counters import MACHINE, Increases
from tracekit.analysis.people import Person
from tracekit.analysis.steps import Steps
from tracekit.record.machine import thread_budget
from tracekit.run.manifest import Manifest
from tracekit.run.reader import Run

# Shares of waiting are compared between blocks of this length: five readings at the default rate.
_BLOCK_NS = 500_000_000
# The customary level of a test; it decides only together with a share that matters (`Crowding.lost`).
_SIGNIFICANCE = 0.05

_COUNTERS = [
    "process.cpu_ns", "thread.cpu_ns", "thread.run_delay_ns", "cgroup.throttled_ns", "host.steal_ns", "psi.cpu.some_ns",
]  # fmt: skip


@dataclass(frozen=True)
class Loop:
    """When a process `began`, and when the first step of its main loop began and the last one ended, Unix ns."""

    process: int
    began: int
    start: int
    end: int


class ThreadUse(msgspec.Struct):
    """What one process made of its threads while its main loop ran. Shares are ratios, None where not measured.

    `cpus_used` is CPU time over wall time, `efficiency` the same over `intra_op` threads (waiting threads that spin
    count as working). `run_delay_share` is the time its threads waited for a CPU over the time they had or wanted one;
    `run_delay_share_before` the same before the loop, when the program is still one thread.
    """

    process: int
    role: str
    wall_s: float
    intra_op: int | None
    cpus_used: float | None
    efficiency: float | None
    run_delay_share: float | None
    run_delay_share_before: float | None


class Crowding(msgspec.Struct):
    """The threads that want a CPU of one host against the CPUs they may use. None: not known.

    `threads` is the intra-op threads of all main loops plus the whole CPUs that loader workers keep busy
    (`worker_cpus`); `cpus` what affinity and quota allow. `runnable` is how many of the run's threads were running or
    ready to run, on average over the loop. `waiting` is the share of time that threads waited for a CPU beyond what the
    same processes waited before their loops, `p` the chance to see that much by accident. `recording` is the share of
    time that recording may account for.
    """

    host: str
    cpus: int
    affinity: int
    quota: float | None
    physical_cores: int | None
    processes: int
    intra_op: int | None
    worker_cpus: float
    threads: int | None
    runnable: float | None
    waiting: float | None
    p: float | None
    throttled: float | None
    steal: float | None
    psi_cpu: float | None
    recording: float

    def is_oversubscribed(self) -> bool:
        """Whether more threads may want to run than may run."""
        return self.threads is not None and self.threads > self.cpus

    def lost(self) -> float:
        """The share of time lost to crowding that cannot be laid to others, 0 where none is evident.

        It is the largest of

        - what the run's own threads must wait for each other: `1 - cpus / runnable`, also on a machine of their own;
        - `waiting`, if it is no accident: before its loop a program is one thread among the same neighbours;
        - `throttled`: a quota halts its job for nothing but its own use.

        Of no account is what recording, which takes CPU time too, may account for by itself.
        """
        crowded_out = 1 - self.cpus / self.runnable if self.runnable else 0.0
        waiting = self.waiting if self.waiting is not None and _below(self.p, _SIGNIFICANCE) else 0.0
        share = max(crowded_out, waiting, self.throttled or 0.0)
        return share if share > self.recording else 0.0


def _below(p: float | None, level: float) -> bool:
    return p is not None and p < level


def thread_use(run: Run, steps: Steps, person: Person) -> ThreadUse | None:
    """How the main loop of a process used its threads; None where it has none."""
    window = steps.window(person.process)
    if window is None or person.began_ns is None:
        return None
    increases = Increases(run, _COUNTERS)
    return _use(increases, person, window, _intra_op(run.manifest))


def crowding(run: Run, loops: Sequence[Loop]) -> Crowding:
    """Whether the threads of the main loops of a host fit its CPUs, of those that were at it together for the longest:
    what comes after another shares no CPUs with it. `run` is what was recorded on that host."""
    rows = run.sql("SELECT DISTINCT process FROM processes WHERE role LIKE 'loader worker%' ORDER BY process")
    workers = [int(worker) for worker in rows["process"]]
    return _crowding(Increases(run, _COUNTERS), run.manifest, together(loops), workers)


def together(loops: Sequence[Loop]) -> list[Loop]:
    """Those loops that ran at the same time for longer than any others did."""
    moments = sorted({moment for each in loops for moment in (each.start, each.end)})
    lasted: dict[tuple[int, ...], int] = {}
    for begin, end in pairwise(moments):
        running = tuple(at for at, each in enumerate(loops) if each.start <= begin < each.end)
        lasted[running] = lasted.get(running, 0) + end - begin
    lasted.pop((), None)
    return [loops[at] for at in max(lasted, key=lasted.__getitem__)] if lasted else [*loops]


def _intra_op(manifest: Manifest) -> int | None:
    return manifest.torch.intra_op or None if manifest.torch else None


def _use(increases: Increases, person: Person, window: tuple[int, int], intra_op: int | None) -> ThreadUse:
    process, began = person.process, person.began_ns or window[0]
    cpus = _cpus(increases, process, window)
    return ThreadUse(
        process=process,
        role=person.role or "",
        wall_s=(window[1] - window[0]) / 1e9,
        intra_op=intra_op,
        cpus_used=_known(cpus),
        efficiency=_known(cpus / intra_op) if intra_op else None,
        run_delay_share=_known(_delay_share(increases, process, window)),
        run_delay_share_before=_known(_delay_share(increases, process, (began, window[0]))),
    )


def _cpus(increases: Increases, process: int, window: tuple[int, int]) -> float:
    """CPU time over wall time of a process: by its own account, else by the sum over the threads that were seen."""
    whole = increases.rate(process, "process.cpu_ns", window)
    return whole if not math.isnan(whole) else increases.rate(process, "thread.cpu_ns", window)


def _delay_share(increases: Increases, process: int, window: tuple[int, int]) -> float:
    delay = increases.rate(process, "thread.run_delay_ns", window)
    wanted = delay + increases.rate(process, "thread.cpu_ns", window)
    return delay / wanted if wanted > 0 else math.nan


def _crowding(increases: Increases, manifest: Manifest, loops: Sequence[Loop], workers: list[int]) -> Crowding:
    cpu, intra_op = manifest.cpu, _intra_op(manifest)
    loop = min(each.start for each in loops), max(each.end for each in loops)
    worker_cpus = sum(_worker_cpus(increases, worker, loop) for worker in workers)
    in_loops = sum(_runnable(increases, each.process, (each.start, each.end)) for each in loops)
    cpus, affinity = thread_budget(cpu), cpu.allowed
    waiting, p = _waiting(increases, loops)

    def machine(counter: str, offered: float = 1.0) -> float | None:
        return _known(increases.rate(MACHINE, counter, loop) / offered)

    threads = intra_op * len(loops) + int(worker_cpus) if intra_op else None
    # The kernel adds up for how long it halts the cgroup on each CPU, and halts it on those that it is on.
    halted = increases.rate(MACHINE, "cgroup.throttled_ns", loop) / max(min(affinity, threads or affinity), 1)
    halted = min(halted, 1.0) if not math.isnan(halted) else halted

    return Crowding(
        host=manifest.host,
        cpus=cpus,
        affinity=affinity,
        quota=cpu.quota,
        physical_cores=cpu.cores or None,
        processes=len(loops),
        intra_op=intra_op,
        worker_cpus=round(worker_cpus, 3),
        threads=threads,
        runnable=_known(in_loops + worker_cpus),
        waiting=waiting,
        p=p,
        throttled=_known(halted) if cpu.quota is not None else None,
        steal=machine("host.steal_ns", max(cpu.logical, 1)),
        psi_cpu=machine("psi.cpu.some_ns"),
        recording=max(manifest.overhead.budget, manifest.overhead.total),
    )


def _worker_cpus(increases: Increases, worker: int, loop: tuple[int, int]) -> float:
    """CPU time of a loader worker over the time of the whole loop: workers come and go with the epochs."""
    start, end = np.array([loop[0]]), np.array([loop[1]])
    grown = float(increases.within(worker, "process.cpu_ns", start, end)[0])
    return 0.0 if math.isnan(grown) else grown / max(loop[1] - loop[0], 1)


def _runnable(increases: Increases, process: int, window: tuple[int, int]) -> float:
    """The threads of a process that were running or ready to run, on average."""
    ran, waited = (increases.rate(process, name, window) for name in ("thread.cpu_ns", "thread.run_delay_ns"))
    return ran + waited


def _waiting(increases: Increases, loops: Sequence[Loop]) -> tuple[float | None, float | None]:
    """The share of time that threads of the main loops waited for a CPU, less the share before the loops, and the
    p-value (Mann-Whitney, one-sided) of the difference between blocks of half a second.

    Before its loop a program imports and builds: one thread on the same machine among the same neighbours.
    """
    before = _block_shares(increases, ((each.process, each.began, each.start) for each in loops))
    during = _block_shares(increases, ((each.process, each.start, each.end) for each in loops))
    if not len(before[0]) or not len(during[0]):
        return None, None
    from scipy.stats import mannwhitneyu

    excess = during[1] - before[1]
    return excess, float(mannwhitneyu(during[0], before[0], alternative="greater").pvalue)


def _block_shares(increases: Increases, windows: Iterable[tuple[int, int, int]]) -> tuple[np.ndarray, float]:
    """The share of waiting in each block of the windows (process, start, end), and over all of them."""
    delays, wanted = [], []
    for process, start, end in windows:
        edges = np.linspace(start, end, max(round((end - start) / _BLOCK_NS), 1) + 1).astype(np.int64)
        delay = increases.within(process, "thread.run_delay_ns", edges[:-1], edges[1:])
        delays.append(delay)
        wanted.append(delay + increases.within(process, "thread.cpu_ns", edges[:-1], edges[1:]))
    delay, want = np.concatenate(delays), np.concatenate(wanted)
    ran = want > 0
    whole = float(delay[ran].sum() / want[ran].sum()) if ran.any() else math.nan
    return delay[ran] / want[ran], whole


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
