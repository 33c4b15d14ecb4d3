"""What a DataLoader would do with other settings: its mechanics replayed with what each batch costs.

`torch.utils.data.DataLoader` hands out the indices of W k batches at first (W workers, prefetch factor k), and one more
for each batch that the program has got; to the workers in turn, where batches come in order. A worker makes its batches
one after the other. Beside them runs the program, which takes batches from the workers and computes. While it waits for
the one that is due it takes whatever comes, and keeps it until its turn. What shares the CPUs is slowed down alike when
more is wanted than there is (processor sharing), and so are the reads that share the storage.
"""

import heapq
import math
from collections import deque
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.float64]

_EPSILON = 1e-12


@dataclass(frozen=True)
class Workload:
    """What the batches of an epoch cost, one value each [B], in seconds; with the machine to themselves.

    In the worker: `delay` waiting for storage whatever else is read, `transfer` at all of the storage's bandwidth, and
    `cpu`. From then on it takes `send` until the batch is there for the program, while the worker goes on. In the
    program: `receive` to take it, from its worker if there are any, `consume` to compute with it.
    """

    delay: Seconds
    transfer: Seconds
    cpu: Seconds
    send: Seconds
    receive: Seconds
    consume: Seconds

    def __len__(self) -> int:
        return len(self.cpu)


@dataclass(frozen=True)
class Machine:
    """`cpus` that may be busy; `consumer_cpus` of them on average between batches (0 where only a GPU computes then);
    `stream` is the share of the storage's bandwidth that one read alone can have. What computes while another CPU is
    busy takes `together` times as long: CPUs may share a core, its caches or the memory. `maker_cpus` are kept busy by
    whoever makes a batch: libraries may have a team of threads for it. Where more CPUs are wanted than there are, the
    program has an even share of them, and of what it lacks then as much as it is `preferred`, from 0 to 1."""

    cpus: float = math.inf
    consumer_cpus: float = 1.0
    stream: float = 1.0
    together: float = 1.0
    maker_cpus: float = 1.0
    preferred: float = 0.0


@dataclass(frozen=True)
class LoaderSettings:
    """`workers` 0: the program makes its batches itself. `start` is what starting one worker takes the program, `boot`
    what a worker computes then before its first batch, which takes so much longer to send (`connect`), s."""

    workers: int
    prefetch: int = 2
    in_order: bool = True
    start: float = 0.0
    boot: float = 0.0
    connect: float = 0.0


@dataclass(frozen=True)
class Replay:
    """When the program asked for each batch and got it, s from the beginning of the epoch [B], in the order in which
    they came; when it was through with the last one; and for how long storage was being read, by each reader, s."""

    asked: Seconds
    received: Seconds
    end: float
    reading: float

    @property
    def stall(self) -> float:
        """For how long the program waited, s."""
        return float((self.received - self.asked).sum())


def replay(work: Workload, machine: Machine, settings: LoaderSettings) -> Replay:
    """Run one epoch of these batches. Raises ValueError for settings that torch would not take."""
    if settings.workers < 0 or (settings.workers and settings.prefetch < 1):
        raise ValueError(f"no loader has {settings.workers} workers with {settings.prefetch} batches each")
    return _Epoch(work, machine, settings).run()


@dataclass(slots=True)
class _Task:
    """Work under way: its phases that are left, each a kind and seconds when alone."""

    phases: deque[tuple[str, float]]
    cpus: float = 1.0

    def kind(self) -> str:
        return self.phases[0][0]


@dataclass(slots=True)
class _Alike:
    """Tasks of one kind, all of which go on as fast: each ends when `done`, the seconds that one alone would have come
    along, reaches what it stands with in the heap."""

    done: float = 0.0
    ends: list[tuple[float, int]] = field(default_factory=list)

    def add(self, seconds: float, who: int) -> None:
        heapq.heappush(self.ends, (self.done + seconds, who))

    def left(self, rate: float) -> float:
        """When the first one ends, at this rate."""
        left = self.ends[0][0] - self.done
        if rate > 0:
            return max(left, 0.0) / rate
        return 0.0 if left <= _EPSILON else math.inf

    def go_on(self, seconds: float, ended: list[int]) -> None:
        """Come along by so much, and add who has ended."""
        self.done += seconds
        while self.ends and self.ends[0][0] - self.done <= _EPSILON:
            ended.append(heapq.heappop(self.ends)[1])


class _Epoch:
    """The state of one replay. Time goes from event to event, at each of which a phase of some task ends."""

    def __init__(self, work: Workload, machine: Machine, settings: LoaderSettings) -> None:
        self._work, self._machine, self._settings = work, machine, settings
        self._now = 0.0
        self._queues: list[deque[int]] = [deque() for _ in range(settings.workers)]
        self._making: list[int | None] = [None] * settings.workers
        self._tasks: dict[int, _Task] = {}  # by worker; the program is -1, behind the workers come batches on their way
        self._computing, self._waiting, self._transferring = _Alike(), _Alike(), _Alike()
        self._program = _Alike()  # when it computes: it may be preferred
        self._kinds = {"cpu": self._computing, "delay": self._waiting, "transfer": self._transferring}
        self._costs = {each.name: getattr(work, each.name).tolist() for each in fields(Workload)}
        self._outstanding = [0] * settings.workers
        # What is left of it when all have been started, which others were while this one booted.
        after = reversed(range(settings.workers))
        self._boot = [max(settings.boot - settings.start * others, 0.0) for others in after]
        self._connect = [settings.connect] * settings.workers
        self._maker: dict[int, int] = {}  # the worker of a batch that is not received yet
        self._finished: deque[int] = deque()  # and not taken yet, as they came
        self._kept: set[int] = set()  # taken, and not due yet
        self._next_worker = self._handed_out = 0
        self._asked: list[float] = []
        self._received: list[float] = []
        self._is_waiting = False
        self._reading = 0.0

    def run(self) -> Replay:
        self._asked.append(0.0)
        if self._settings.workers == 0:
            self._fetch_itself()
        else:
            # Workers are started one after the other before any index is handed out.
            self._now = self._settings.start * self._settings.workers
            for _ in range(min(self._settings.workers * self._settings.prefetch, len(self._work))):
                self._hand_out()
            self._is_waiting = True
        while self._tasks:
            self._advance()
        return Replay(np.array(self._asked[: len(self._work)]), np.array(self._received), self._now, self._reading)

    # The program.

    def _fetch_itself(self) -> None:
        batch = len(self._received)
        if batch < len(self._work):
            beside = ("cpu", self._costs["receive"][batch])
            self._begin(-1, [*self._made(batch), beside], "made", self._machine.maker_cpus)

    def _look(self) -> None:
        """Where the program waits: have the batch that is due, if it was taken already, or take what came first."""
        if not self._is_waiting:
            return
        due = len(self._received)
        if due in self._kept:
            self._kept.remove(due)
            self._have(due)
        elif self._finished:
            self._is_waiting = False
            self._taking = self._finished.popleft()
            self._begin(-1, [("cpu", self._costs["receive"][self._taking])], "taken")

    def _taken(self) -> None:
        batch = self._taking
        if self._settings.in_order and batch != len(self._received):
            del self._tasks[-1]
            self._kept.add(batch)
            self._is_waiting = True
            self._look()
        else:
            self._have(batch)

    def _have(self, batch: int) -> None:
        """The program has a batch from a worker, and hands out another one before it computes."""
        self._is_waiting = False
        self._outstanding[self._maker.pop(batch)] -= 1
        self._hand_out()
        self._got(batch)

    def _begin(self, who: int, phases: list[tuple[str, float]], then: str, cpus: float = 1.0) -> None:
        left = deque([*phases, (then, 0.0)])
        while len(left) > 2 and left[0][1] <= _EPSILON:
            left.popleft()
        self._tasks[who] = task = _Task(left, cpus)
        self._enter(who, task)

    def _enter(self, who: int, task: _Task) -> None:
        """It begins the first of the phases that are left."""
        kind, seconds = task.phases[0]
        (self._program if who == -1 and kind == "cpu" else self._kinds[kind]).add(seconds, who)

    def _made(self, batch: int) -> list[tuple[str, float]]:
        return [(kind, self._costs[kind][batch]) for kind in ("delay", "transfer", "cpu")]

    def _got(self, batch: int) -> None:
        """The program has a batch and computes."""
        self._received.append(self._now)
        cpus, consume = self._machine.consumer_cpus, self._costs["consume"][batch]
        # Less than one: for so much of the time it has one, and waits for the rest, a device for instance.
        computing = consume * min(cpus, 1.0)
        self._begin(-1, [("cpu", computing), ("delay", consume - computing)], "consumed", max(cpus, 1.0))

    def _consumed(self) -> None:
        del self._tasks[-1]
        if len(self._received) < len(self._work):
            self._asked.append(self._now)
            if self._settings.workers:
                self._is_waiting = True
                self._look()
            else:
                self._fetch_itself()

    # The workers.

    def _hand_out(self) -> None:
        if self._handed_out >= len(self._work):
            return
        workers = self._settings.workers
        for _ in range(workers):
            worker = self._next_worker
            self._next_worker = (worker + 1) % workers
            if self._settings.in_order or self._outstanding[worker] < self._settings.prefetch:
                break
        batch, self._handed_out = self._handed_out, self._handed_out + 1
        self._outstanding[worker] += 1
        self._maker[batch] = worker
        self._queues[worker].append(batch)
        self._work_on(worker)

    def _work_on(self, worker: int) -> None:
        if self._making[worker] is None and self._queues[worker]:
            batch = self._queues[worker].popleft()
            self._making[worker] = batch
            boot, self._boot[worker] = self._boot[worker], 0.0
            self._begin(worker, [("cpu", boot), *self._made(batch)], "finished", self._machine.maker_cpus)

    # Time.

    def _advance(self) -> None:
        """To the end of the phase that ends first."""
        makers, programs = len(self._computing.ends), len(self._program.ends)
        wanted = makers * self._machine.maker_cpus + (self._tasks[-1].cpus if programs else 0.0)
        slower = self._machine.together if min(makers + programs, self._machine.cpus) > 1 else 1.0
        program, others = self._shares(wanted)
        reading = len(self._transferring.ends)
        going = [
            (self._computing, others / slower),
            (self._program, program / slower),
            (self._transferring, min(self._machine.stream, 1.0 / reading) if reading else 1.0),
            (self._waiting, 1.0),
        ]
        step = math.inf
        for alike, rate in going:
            if alike.ends:
                step = min(step, alike.left(rate))
        self._now += step
        self._reading += step * reading
        ended: list[int] = []
        for alike, rate in going:
            if alike.ends:
                alike.go_on(step * rate, ended)
        for who in ended:
            self._tasks[who].phases.popleft()
        # Workers first: what they finish now is there when the program looks.
        if len(ended) > 1:
            ended.sort(key=lambda each: (each == -1, each))
        for who in ended:
            self._settle(who)

    def _shares(self, wanted: float) -> tuple[float, float]:
        """What the program gets of each CPU that it wants, and what the others get, where so many are wanted in all."""
        cpus = self._machine.cpus
        even = min(1.0, cpus / wanted) if wanted else 1.0
        if even == 1.0 or not self._machine.preferred or not self._program.ends:
            return even, even
        task = self._tasks[-1]
        program = even + (min(1.0, cpus / task.cpus) - even) * self._machine.preferred
        others = wanted - task.cpus
        return program, (cpus - program * task.cpus) / others if others > _EPSILON else even

    def _settle(self, who: int) -> None:
        """Act on what a task has come to, if its phases of work are over."""
        task = self._tasks[who]
        while len(task.phases) > 1 and task.phases[0][1] <= _EPSILON:
            task.phases.popleft()
        if len(task.phases) > 1:
            self._enter(who, task)
            return
        match task.kind():
            case "made":
                self._got(len(self._received))
            case "taken":
                self._taken()
            case "consumed":
                self._consumed()
            case "finished":
                batch = self._making[who]
                assert batch is not None
                self._making[who] = None
                del self._tasks[who]
                connect, self._connect[who] = self._connect[who], 0.0
                sent = self._settings.workers + batch
                self._tasks[sent] = _Task(deque([("delay", self._costs["send"][batch] + connect), ("sent", 0.0)]))
                self._work_on(who)
                self._settle(sent)
            case "sent":
                del self._tasks[who]
                self._finished.append(who - self._settings.workers)
                self._look()
