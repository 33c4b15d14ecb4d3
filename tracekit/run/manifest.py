"""The manifest: what was run, where, under what, at which cost, and what is missing. One file per supervisor (host)."""

import json
import os
from pathlib import Path
from typing import Any

import msgspec

from tracekit.errors import RunError
from tracekit.run.files import replace_file

MANIFEST_VERSION = 1


class Missing(msgspec.Struct, frozen=True):
    """Something that was not captured, and why; `lost` when it should have been, so that the run is not complete.
    `processes` are those that say so, where it holds for them alone."""

    what: str
    why: str
    lost: bool = False
    processes: tuple[int, ...] = ()


# As long as a rank waits before that is written: ranks wait for each other in every step.
LAST_SECONDS = "the last seconds"  # are missing where a supervisor was killed and its spool folder is gone
LONG_WAIT_S = 30.0


class CameTo(msgspec.Struct, frozen=True):
    """What a rank that lives came to last: number `sequence` of a group, in which it has been waiting for so long when
    its supervisor looked; -1 where it is not in it any more, as it was through or has `failed` there. `world`: how many
    ranks there are."""

    rank: int
    attempt: int
    world: int
    op: str
    group: str
    sequence: int
    waits_s: float
    failed: bool = False


class CPU(msgspec.Struct):
    """The CPUs that the program could use: those of `affinity`, or those among them that it was started on, as by
    taskset (`of_program`, [] where that is all)."""

    model: str = ""
    logical: int = 0
    affinity: list[int] = []
    physical_cores: int = 0
    sockets: int = 0
    numa_nodes: int = 0
    quota: float | None = None  # CPUs the cgroup grants, None where it sets no limit
    of_program: list[int] = []

    @property
    def allowed(self) -> int:
        """How many the program may run on."""
        return len(self.of_program) or len(self.affinity) or self.logical or 1

    @property
    def cores(self) -> int:
        """The physical cores among them, at most; 0 where the kernel does not tell."""
        return min(self.physical_cores, self.allowed)

    @property
    def usable(self) -> float:
        """How many of them it may keep busy."""
        return float(self.allowed) if self.quota is None else min(float(self.allowed), self.quota)


class Memory(msgspec.Struct):
    """What was free when the run began, bytes: memory that the machine and the cgroup gave, and /dev/shm, through which
    loader workers hand over batches; and how many `files` a process may have open, of which each piece of memory in
    these is one. None where that is not known, or there is no limit."""

    free: int | None = None
    shared: int | None = None
    files: int | None = None


class Torch(msgspec.Struct):
    """The torch build in the program, as its own process saw it."""

    version: str = ""
    cuda: str | None = None
    openmp: str = ""
    intra_op: int = 0
    inter_op: int = 0
    on_gpu: bool | None = None  # whether the program had begun to use one; None where nobody looked


class Loader(msgspec.Struct):
    """A DataLoader of the program, when it was last iterated over."""

    place: str = ""  # the file and line that makes it; "" where that was not seen
    origin: str = ""  # a mark of the calls that lead there, which tells it from others that the line makes
    num_workers: int = 0
    prefetch_factor: int | None = None
    in_order: bool | None = None  # None: torch has no such setting, batches come in order
    pin_memory: bool = False
    persistent_workers: bool = False
    made: int = 1  # how many loaders the program has made in this place; 0: that was not seen, as of one unpickled
    varied: bool = False  # not all of them with the same settings, or the same kind of sampler
    batch_size: int | None = None
    drop_last: bool = False
    iterable: bool = False
    sampler: str = ""
    has_generator: bool = False  # of its own, for the seeds of its workers
    draws_from: str = ""  # the order of its samples: program (torch's default generator) | generator | nothing
    predictability: str = ""  # of the order of its samples: run | epoch | none; "" where nobody looked
    checked: int = 0  # indices that were compared with their prediction
    predicted: int = 0  # those that were as predicted
    left_early: bool = False  # another epoch began when the program had not had all batches of the last
    ends_unasked: bool = False  # the program takes all batches of an epoch, and does not ask for one more
    told_late: bool = False  # its sampler is told the epoch when an iterator is there: too late for workers
    prepares: bool = False  # its workers, by a function of the program
    told_epochs: bool = False  # its data set has a method by which the program tells it the epoch
    starts_processes: bool = False  # as a batch is made: its data set makes a pool, or a loader with workers
    stateful: bool = False  # one of torchdata's, whose state can be saved
    storages: int = 0  # pieces of memory that the tensors of a batch have; 0 where that was not seen
    pickled: int = 0  # bytes of a batch in arrays that are no tensors, which workers send through a pipe
    on_device: bool = False  # it has no workers, and makes its batches on a GPU, say
    daemonic: bool = False  # the process that iterates over it may have no children
    start_method: str = ""  # of its workers, had it any; "" where that is not known


class Wrapped(msgspec.Struct):
    """A model that DistributedDataParallel wraps. `bytes` of `parameters` have gradients; `names` and `sizes`, bytes,
    of the first of them, in the model's order. Where the program gives a list, a cap for each bucket, `bucket_caps_mb`
    is that, and `bucket_cap_mb` the largest of them."""

    bucket_cap_mb: float = 0.0
    gradient_as_bucket_view: bool = False
    static_graph: bool = False
    find_unused_parameters: bool = False
    broadcast_buffers: bool = False
    compiled: bool = False  # the program uses torch.compile, which cuts its graphs at buckets
    hook: bool = False  # the program, or another one of its models, does something else with each bucket
    parameters: int = 0
    bytes: int = 0
    names: list[str] = []
    sizes: list[int] = []
    bucket_caps_mb: list[float] = []
    is_default_cap: bool | None = None  # torch's own, with a smaller first bucket; None where that was not told
    buckets: dict[str, int] = {}  # how many there are with each cap that an exploration tries, by its name

    @property
    def caps_mb(self) -> list[float]:
        return self.bucket_caps_mb or [self.bucket_cap_mb]

    @property
    def cap(self) -> float | str:
        """The cap as a setting, MiB: a number, or a list of them in words."""
        return ", ".join(f"{each:g}" for each in self.caps_mb) if len(self.caps_mb) > 1 else self.caps_mb[0]


class Overhead(msgspec.Struct):
    """What recording cost, as tracekit estimates it itself.

    `program` is the share of the run's wall time spent in hooks inside the program, `profiler` the part of it due to
    profiler windows, `supervisor` the CPU time of the supervisor over the CPU time that the machine had to offer.
    """

    budget: float = 0.01
    program: float = 0.0
    profiler: float = 0.0
    supervisor: float = 0.0

    @property
    def total(self) -> float:
        return self.program + self.supervisor


class Manifest(msgspec.Struct):
    """One supervisor's account of the run. A key missing in an old file takes its default."""

    schema: int = MANIFEST_VERSION
    tracekit: str = ""
    run: str = ""
    host: str = ""  # the node, or a name of its own where the run has several supervisors on one
    node: str = ""
    job: str = ""  # whose supervisors share the run
    first_process: int = 0  # the processes of this host are numbered from here
    command: list[str] = []
    directory: str = ""
    condition: str = "baseline"
    settings: dict[str, Any] = {}
    noise: list[str] = []  # what was made beside the program, as it was asked for
    collectors: list[str] = []
    started_ns: int = 0
    ended_ns: int | None = None  # None while recording, and after a supervisor that was killed
    clock_offset_ns: int = 0  # add to CLOCK_MONOTONIC for Unix time
    exit_code: int | None = None
    exit_signal: int | None = None
    spool: str | None = None  # where unconverted evidence waits; None once all of it is in the tables
    supervisor: int = 0  # its pid, while it lives
    supervisor_started: int = 0  # its start in clock ticks since boot: a recycled pid is not the supervisor
    boot: str = ""  # of the kernel that numbers it so; "" where that is not known
    pid_namespace: int = 0  # inode of the one in which it has that number
    cpu: CPU = msgspec.field(default_factory=CPU)
    memory: Memory = msgspec.field(default_factory=Memory)
    torch: Torch | None = None
    loaders: dict[str, Loader] = {}  # of the process with the most steps
    ddp: list[Wrapped] = []  # of the process with the most steps
    gpus: list[str] = []
    overhead: Overhead = msgspec.field(default_factory=Overhead)
    profile: str = "auto"
    missing: list[Missing] = []
    hanging: list[CameTo] = []  # what the ranks came to last, while one of them waits for long

    def add_missing(self, what: str, why: str, lost: bool = False, process: int | None = None) -> None:
        """Note once that something was not captured, and by which processes, where it holds for them alone."""
        for at, note in enumerate(self.missing):
            if (note.what, note.why, note.lost) == (what, why, lost):
                if process is not None and process not in note.processes:
                    self.missing[at] = Missing(what, why, lost, (*note.processes, process))
                return
        self.missing.append(Missing(what, why, lost, () if process is None else (process,)))

    @property
    def may_use_gpu(self) -> bool:
        """Whether the program may have used a GPU: it did, or the machine has one, and nobody saw that it was left
        alone. Not every GPU is one that can be listed here, as AMD's."""
        on_gpu = self.torch.on_gpu if self.torch is not None else None
        return on_gpu is True or (bool(self.gpus) and on_gpu is not False)

    def is_on(self, node: str) -> bool:
        return (self.node or self.host) == node

    def path_in(self, run: Path) -> Path:
        """Where this host's manifest lies in a run directory."""
        return run / "manifest" / f"{self.host}.json"

    def save(self, path: Path) -> None:
        """Replace the file at once: a reader sees the old or the new manifest, never half of one.

        Words that are no text (command lines and paths may be any bytes) are kept with "?" for each such byte.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(msgspec.to_builtins(self), indent=2, ensure_ascii=False)
        replace_file(path, text.encode("utf-8", "replace"))

    @classmethod
    def load(cls, path: Path) -> "Manifest":
        """Read one manifest. Raises RunError when it is not one, or newer than this tracekit."""
        try:
            data = path.read_bytes()
            version = msgspec.json.decode(data, type=_Version).schema
            if version > MANIFEST_VERSION:
                raise RunError(
                    f"{path}: written by a newer tracekit (schema {version}, this one reads up to {MANIFEST_VERSION});"
                    " upgrade tracekit to open this run"
                )
            found = msgspec.json.decode(data, type=cls)
            if found.host != os.path.basename(found.host) or "\0" in found.host:
                raise RunError(f"{path}: not a tracekit manifest (its host is no name)")
            return found
        except OSError as error:
            raise RunError(f"{path}: cannot be read ({error.strerror})") from error
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise RunError(f"{path}: not a tracekit manifest ({error})") from error


class _Version(msgspec.Struct):
    schema: int = MANIFEST_VERSION
