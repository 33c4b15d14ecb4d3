"""Noise by a pattern, and the log of it: every 100 ms, and at each change, what was asked for and what was done."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from tracekit.noise.generators import Generators
from tracekit.noise.pattern import Pattern, always
from tracekit.noise.spec import LOG_EVERY_S, Spec, dose_text
from tracekit.run.manifest import Missing
from tracekit.run.schema import TABLES

_LOOK_FOR_LOOP_S = 0.05
_SOURCE = "generator"
# What achieves less than this share of its dose is told as such.
_ACHIEVED = 0.95


@dataclass(frozen=True)
class Logged:
    """What a noise was asked for and did (or held) from one moment to another, Unix time in ns."""

    spec: Spec
    start_ns: int
    end_ns: int
    asked: float
    done: float


@dataclass
class Achieved:
    """A noise so far: the doses asked for and done, on average over the `seconds` that it was on, as in its spec."""

    seconds: float = 0.0
    asked: float = 0.0
    done: float = 0.0

    @property
    def share(self) -> float:
        """Of what was asked for; 1 before anything was."""
        return self.done / self.asked if self.asked else 1.0

    def add(self, seconds: float, asked: float, done: float) -> None:
        """Take in so many seconds with these doses on average."""
        whole = self.seconds + seconds
        self.asked, self.done = (
            (old * self.seconds + new * seconds) / whole for old, new in ((self.asked, asked), (self.done, done))
        )
        self.seconds = whole


class Noise:
    """Some noises beside a program, by a pattern that begins with the program's loop; without one from the start on.

    It has what a sampler of counters has: its log is rows of the table `counters`.
    """

    def __init__(self, specs: Sequence[Spec], pattern: Pattern | None = None) -> None:
        """Raises NoiseError where a noise cannot be made here."""
        self._specs = {spec.label: spec for spec in specs}
        self.labels = list(self._specs)
        self._pattern = pattern
        self._generators = Generators(specs)
        self._log: list[Logged] = []
        self._achieved = {spec.label: Achieved() for spec in specs}
        self._failed: dict[str, str] = {}
        self._end = threading.Event()
        self._clock_offset_ns = time.time_ns() - time.perf_counter_ns()  # as a run's, whatever Unix time is set to then
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self, has_begun: Callable[[], bool] = lambda: True) -> None:
        """Begin; with a pattern as soon as this tells that it is time."""
        self._thread = threading.Thread(target=self._go, args=(has_begun,), name="noise", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End all of it."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()
        self._generators.close()

    def _go(self, has_begun: Callable[[], bool]) -> None:
        while self._pattern is not None and not has_begun():
            if self._end.wait(_LOOK_FOR_LOOP_S):
                return
        pattern = self._pattern or always(list(self._specs.values()))
        since, done = self._now_ns(), self._generators.done()
        for stretch in pattern():
            self._generators.set(stretch.on)
            until = time.monotonic() + stretch.seconds
            while not self._end.is_set() and (left := until - time.monotonic()) > 0:
                self._end.wait(min(left, LOG_EVERY_S))
                since, done = self._write(stretch.on, since, done)
            if self._end.is_set():
                break
        self._generators.set(())

    def _write(self, on: Iterable[str], since: int, before: dict[str, int]) -> tuple[int, dict[str, int]]:
        now, done = self._now_ns(), self._generators.done()
        with self._lock:
            self._failed |= self._generators.failed()
            for label, spec in self._specs.items():
                seconds = max(now - since, 1) / 1e9
                length = seconds if spec.kind.rate else 1.0
                asked = spec.rate * length if label in on and label not in self._failed else 0.0
                did = float(done[label] - before[label] if spec.kind.rate else done[label])
                if asked or did:
                    self._log.append(Logged(spec, since, now, asked, did))
                if asked:
                    self._achieved[label].add(seconds, spec.dose, did / length / spec.kind.per_dose)
        return now, done

    def _now_ns(self) -> int:
        return time.perf_counter_ns() + self._clock_offset_ns

    def is_on(self) -> bool:
        """Whether its pattern goes on."""
        return self._thread is not None and self._thread.is_alive()

    def achieved(self) -> dict[str, Achieved]:
        """What each has done until now."""
        with self._lock:
            return {label: replace(each) for label, each in self._achieved.items()}

    def log(self) -> list[Logged]:
        """What has been logged since the last call."""
        with self._lock:
            log, self._log = self._log, []
        return log

    # What the supervisor wants of a sampler.

    def watch(self, pids: Iterable[tuple[int, int]]) -> None:
        """Who is in the program makes no difference."""

    def sample(self, now_ns: int, complete: bool = False) -> None:
        """It has a pace of its own; `complete`: the program has ended."""
        if complete:
            self.stop()

    def drain(self) -> pa.Table:
        """Rows of the table `counters`, of the whole machine."""
        return counters_of(self.log())

    def missing(self) -> list[Missing]:
        """What could not be made, or not as much of it."""
        notes = [Missing(f"the noise {label}", f"it ended early: {why}") for label, why in self._failed.items()]
        for label, achieved in self.achieved().items():
            if achieved.share < _ACHIEVED and label not in self._failed:
                dose = dose_text(self._specs[label].kind, achieved.done)
                why = f"{dose} was achieved, {achieved.share:.0%} of the dose"
                notes.append(Missing(f"all of the noise {label}", why))
            if (spec := self._specs[label]).host and not spec.backend and achieved.done:
                why = f"it was sent to {spec.host}; whether it arrived is not known"
                notes.append(Missing(f"the end of the noise {label}", why))
        return notes

    def close(self) -> None:
        """As `stop`."""
        self.stop()


def counters_of(log: Sequence[Logged]) -> pa.Table:
    """The log as rows of the table `counters`: `noise.<label>.asked_<unit>` and `.done_<unit>`."""
    names: list[str] = []
    values: list[int] = []
    for row in log:
        kind, label = row.spec.kind, row.spec.label
        asked, done = ("asked", "done") if kind.rate else ("wanted", "held")
        names += [f"noise.{label}.{asked}_{kind.unit}", f"noise.{label}.{done}_{kind.unit}"]
        values += [round(row.asked), round(row.done)]
    twice = [row for row in log for _ in range(2)]
    columns = {
        "process": pa.array([-1] * len(twice), pa.int32()),
        "thread": pa.array([0] * len(twice), pa.int64()),
        "start_ns": pa.array([row.start_ns for row in twice], pa.int64()),
        "duration_ns": pa.array([row.end_ns - row.start_ns for row in twice], pa.int64()),
        "counter": pa.array(names, pa.string()).dictionary_encode(),
        "value": pa.array(values, pa.int64()),
        "source": pa.array([_SOURCE] * len(twice), pa.string()).dictionary_encode(),
    }
    return pa.table(columns).cast(TABLES["counters"])
