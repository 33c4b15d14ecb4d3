"""What a report holds: the one JSON object that text, JSON and dashboard show, schema 1."""

from collections.abc import Callable
from typing import Literal

import msgspec

from tracekit.analysis.communication import CommunicationPart
from tracekit.analysis.garbage import GarbageUse
from tracekit.analysis.neighbours import Neighbour
from tracekit.analysis.noise_effects import NoiseEffect
from tracekit.analysis.threads import Crowding, ThreadUse
from tracekit.analysis.unfinished import NeverEnded
from tracekit.analysis.words import shell_line
from tracekit.run.manifest import Missing, Overhead
from tracekit.run.reader import Run

REPORT_VERSION = 1
Evidence = dict[str, object]


class Phase(msgspec.Struct):
    """A phase and its mean share of a step."""

    name: str
    share: float


class ProcessSteps(msgspec.Struct):
    """The steps of one process, and the rule that found them; the median is None without steps."""

    process: int
    role: str
    count: int
    rule: str
    median_ms: float | None


LONG_STEP = 5  # times the median: such a step holds something else too


class StepSummary(msgspec.Struct):
    """The steps of the process that stands for the run. Times are None without steps.

    `phase_steps` of them have their phases known. `long_steps` of them took more than `LONG_STEP` times the median,
    together `long_share` of the time of all: what a program does now and then between two steps lies in them.
    """

    count: int
    median_ms: float | None
    p90_ms: float | None
    phases: list[Phase]
    phase_steps: int = 0
    longest_ms: float | None = None
    long_steps: int = 0
    long_share: float = 0.0
    rule: str = "none"
    process: int | None = None
    processes: list[ProcessSteps] = []


class LayerSummary(msgspec.Struct):
    """A layer's median time in a step; None where it was not recorded in any step, or not in that direction.

    `self_ms` and `share` are of both directions together, `calls_per_step`, `mean_ms` and `steps`, the number of steps
    that it rests on, of the forward calls.
    """

    name: str
    depth: int
    calls: int
    steps: int
    calls_per_step: float | None
    mean_ms: float | None
    forward_ms: float | None
    backward_ms: float | None
    self_ms: float | None
    share: float | None


class OperatorSummary(msgspec.Struct):
    """An operator, kernel, … in the profiler windows; `share` is of the self time of its `side`: cpu, device, profiler
    (what that did itself), or one category of what a device's rows tell beside its work."""

    category: str
    name: str
    calls: int
    total_ms: float
    self_ms: float
    share: float
    side: str = "cpu"


class DeviceUse(msgspec.Struct):
    """A GPU in the profiler windows of the main process: the shares of their time in which it worked for that process,
    and in which it copied (copies at once add up)."""

    device: int
    busy: float
    copying: float


class CounterSummary(msgspec.Struct):
    """A counter over the steps; `phases` divides the increase in proportion to time. `process` -1 is the machine.

    A level has its highest value as `value` and no phases.
    """

    process: int
    name: str
    unit: str
    source: str
    value: float
    phases: dict[str, float] = {}


class Finding(msgspec.Struct):
    """A fact that an analysis established."""

    id: str
    title: str
    evidence: Evidence


class Gain(msgspec.Struct):
    """The relative saving of step time, 1 - new/old: positive means that the new one has the shorter steps."""

    low: float
    expected: float
    high: float


class Setting(msgspec.Struct):
    """A recommended value of a setting."""

    name: str
    current: int | float | str | bool | None
    recommended: int | float | str | bool | dict[str, int]
    gain: Gain
    basis: Literal["measured", "model", "probe", "rule"]
    effect: Literal["identical", "order", "augmentation", "numerics"]
    why: str
    apply: str


class LayerThreadTimes(msgspec.Struct):
    """The time that a layer takes in a step at each thread count, ms: the median over rounds and its 95 % interval.

    `planned` is the count that the plan gives it.
    """

    layer: str
    direction: str
    calls: float
    times: dict[str, Gain]
    planned: int | None = None


class Guideline(msgspec.Struct):
    """A simple sentence on how to set the counts, and the share of the measured configurations that it beats."""

    sentence: str
    beats: float
    configurations: int
    grid: str


class ThreadExploration(msgspec.Struct):
    """What a run that tried thread counts in turn has shown. `step` as `times` of the layers, for the whole step.

    `disturbed` blocks of `blocks` were left out: something kept the program from its CPUs. `problem` says why nothing
    can be concluded. `candidate` are the settings of the plan by layer that is the best by the times of the layers,
    whether or not it was seen to save anything as a whole: something to put to the test.
    """

    counts: list[int]
    current: int
    rounds: int
    blocks: int
    disturbed: int
    drift: float | None
    step: dict[str, Gain]
    layers: list[LayerThreadTimes]
    problem: str | None
    guidelines: list[Guideline] = []
    candidate: dict[str, int | str] = {}


class LoaderForecast(msgspec.Struct):
    """The time per batch, ms, with some settings of a loader: at least, expected, at most. It is predicted, unless the
    run or its probe had these settings (`seen`)."""

    num_workers: int
    prefetch_factor: int
    low_ms: float
    expected_ms: float
    high_ms: float
    seen: bool = False


class LoaderSummary(msgspec.Struct):
    """A loader of one process. `wait` is the share of the loop's time that the program waited for it, to start and to
    end its workers included, `split` why, in shares that add up to 1; {} where it did not wait: of its usual epochs,
    were all as they were, it would wait for `usual_wait` of the time. Delivery in any order would save the share
    `order` of the waiting, which is part of these. `readers` batches were being made at once, at most, in the run or in
    a probe (`probed`): what is predicted for more rests on how storage of either kind would answer. `error` is by how
    much the prediction misses the time per batch that the run had. `predictability`: how far ahead the order of its
    samples was known (`run`, `epoch`, `none`; "" where that was not looked at). A worker takes `worker_bytes` of memory
    (0: not seen), the batches that wait to be taken up to `ahead_bytes` of shared memory (None: not known). Making a
    batch goes by to get its samples, but for the share `collating`, which puts them together (None: not seen). The
    share `unexplained` of the waiting is more than the costs that were seen bring about, or less: by so much the split
    may be off. The share `slowed` of the waiting, at most, is told as `consumer` in the split and is `cpu`: computing
    workers may slow the program down.
    """

    process: int
    loader: str
    place: str
    num_workers: int
    prefetch_factor: int
    batches: int
    epochs: int
    batch_ms: float
    wait: float
    split: dict[str, float]
    busy: float  # share of their time that the workers made batches
    readers: int
    known: float
    error: float
    forecasts: list[LoaderForecast] = []
    predictability: str = ""
    probed: bool = False
    order: float = 0.0
    sampler: str = ""
    persistent_workers: bool = False
    in_order: bool = True
    worker_bytes: int = 0
    ahead_bytes: int | None = None
    collating: float | None = None
    unexplained: float = 0.0
    slowed: float = 0.0
    usual_wait: float = 0.0


class DelaySummary(msgspec.Struct):
    """A rank (`process`) that made the others wait by a phase of its own, in which it was `blocked` or `computing`, by
    computing longer `throughout`, or by noise that `kept` it from its CPU, `always` or in some steps (`persistence`:
    always, turns, stretches, random). `share_of_waiting` of all their waiting, `cost_rank_seconds` of it; that was
    longer than with the others by `step`, a share of the usual step, on average over all steps. `of_host`: so it is of
    all ranks of its `host`, and of no other's. `undecided`: it may be how this process has started, and another rank in
    another run."""

    rank: int
    phase: str
    by: str
    share_of_waiting: float
    cost_rank_seconds: float
    step: Gain
    always: bool
    host: str = ""
    of_host: bool = False
    undecided: bool = False
    persistence: str = "always"
    process: int = -1


class ClockSummary(msgspec.Struct):
    """By how much the clock of a host was ahead of that of the first rank's, ms, when the group had met first, and how
    much further it went, ppm; known but for `unsure_ms` either way, and not at all where that is negative. A clock that
    does not run evenly is followed in `pieces`."""

    host: str
    offset_ms: float
    drift_ppm: float
    unsure_ms: float
    pieces: int = 1


class RankGroup(msgspec.Struct):
    """Ranks that communicate, and what that cost, in those `seconds` that were recorded of all of them. They waited
    `waited` of that time for the last one to come (of it, `kept` because that one was kept from its CPU) and were at
    `transfer` for the rest of their communication. `efficiency` as POP has it (parallel = load balance x serialization
    x transfer), {} where it is not known. `path`: what the path through all ranks that decides how long it takes
    consists of, in seconds; of its loading, what the makers of batches did by itself. `followed`: of the waiting, the
    share of which it is known what the ranks did before. Of very many meetings the share `looked_at` is: `meetings`,
    `seconds` and all that is in rank-seconds are of these. Whose `delays` they are is told (`is_told`) if enough steps
    were followed on all ranks. For the share `overlap`, at least and at most, of what goes on of `communication` (the
    costliest first) their loops go on beside it."""

    group: str
    attempt: int
    ranks: list[int]
    meetings: int
    seconds: float
    waited: float
    transfer: float
    kept: float
    followed: float
    efficiency: dict[str, float] = {}
    path: dict[str, float] = {}
    clocks: list[ClockSummary] = []  # of the other hosts, for which the times are corrected
    delays: list[DelaySummary] = []
    looked_at: float = 1.0
    is_told: bool = True
    overlap: tuple[float, float] | None = None
    communication: list[CommunicationPart] = []


class BucketForecast(msgspec.Struct):
    """The time of a step, ms, with so many gradient `buckets` (0: not known) of a cap: at least, expected, at most."""

    cap_mb: float
    buckets: int
    low_ms: float
    expected_ms: float
    high_ms: float


class WhatIf(msgspec.Struct):
    """The time of a step, ms, at least, expected, at most, were something else; its `effect` as a setting's, or ""."""

    effect: str
    what: str
    low_ms: float
    expected_ms: float
    high_ms: float


class BucketSummary(msgspec.Struct):
    """The gradient buckets of the model that DistributedDataParallel wraps: `forecasts` by cap, the first for that of
    the run, `cap_mb`, the largest of its `caps_mb` where it has a list. If communication cost nothing a step would take
    `ideal_ms`. The best replay `missed` what the run saw by this share of a step. Where the caps were tried in turn, in
    so many `rounds` or, what is clearly slower, in some of them, these are None, and the forecasts were measured."""

    cap_mb: float
    ranks: int
    passes: int
    bytes: int
    ideal_ms: float | None
    missed: float | None
    forecasts: list[BucketForecast]
    rounds: int | None = None
    what_if: list[WhatIf] = []
    caps_mb: list[float] = []


class Report(msgspec.Struct):
    """What is known about a run. `advice` says in a sentence why `settings` is what it is.

    `holds_for` goes into the settings file beside the settings: what they were measured with, the settings that the run
    was recorded under included.
    """

    schema: int
    run: str
    complete: bool
    missing: list[Missing]
    steps: StepSummary
    findings: list[Finding]
    settings: list[Setting]
    advice: str
    path: str
    command: list[str]
    condition: str
    exit_code: int | None
    exit_signal: int | None
    overhead: Overhead
    layers: list[LayerSummary]
    layer_count: int
    operators: list[OperatorSummary]
    operator_count: int
    threads: list[ThreadUse]
    crowding: list[Crowding]
    counters: list[CounterSummary]
    exploration: ThreadExploration | None = None
    holds_for: dict[str, int | str | bool] = {}
    loaders: list[LoaderSummary] = []
    ranks: list[RankGroup] = []
    never_ended: list[NeverEnded] = []
    buckets: BucketSummary | None = None
    noise: list[NoiseEffect] = []  # of what was made beside it, on and off
    neighbours: list[Neighbour] = []  # with which the steps got longer
    garbage: list[GarbageUse] = []
    devices: list[DeviceUse] = []
    operator_sides: dict[str, int] = {}  # how many operators there are on each

    def command_line(self) -> str:
        """The recorded command as one would type it."""
        return shell_line(self.command)


class Advice(msgspec.Struct):
    """What one advisor recommends; where nothing, `why` says why not."""

    settings: list[Setting]
    why: str
    holds_for: dict[str, int | str | bool] = {}


Advisor = Callable[[Run, Report], Advice]
