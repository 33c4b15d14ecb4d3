"""What is sampled beside the program has the times of its records, though somebody sets the clock."""

import time
from collections.abc import Iterable

import pyarrow as pa
import pytest

from tracekit.noise.noise import Noise
from tracekit.noise.spec import parse_all
from tracekit.record.sampling import Recording
from tracekit.run.manifest import Manifest, Missing

HOUR_NS = 3600 * 1_000_000_000


class Looking:
    """A sampler that keeps when it was asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def watch(self, pids: Iterable[tuple[int, int]]) -> None: ...

    def sample(self, now_ns: int, complete: bool = False) -> None:
        self.asked.append(now_ns)

    def drain(self) -> pa.Table:
        return pa.table({})

    def missing(self) -> list[Missing]:
        return []

    def close(self) -> None: ...


def test_samples_have_the_times_of_the_records() -> None:
    looking, offset = Looking(), time.time_ns() - time.perf_counter_ns() - HOUR_NS
    recording = Recording(Manifest(clock_offset_ns=offset), {"looking": looking}, 1, 10.0)

    began = time.perf_counter_ns() + offset
    recording.last_sample()

    assert began <= looking.asked[0] <= time.perf_counter_ns() + offset


def test_noise_is_logged_on_the_clock_that_it_began_with(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        def __init__(self, specs: object) -> None: ...

        def done(self) -> dict[str, int]:
            return {"cpu=1": 0}

        def failed(self) -> dict[str, str]:
            return {}

    monkeypatch.setattr("tracekit.noise.noise.Generators", Silent)
    noise = Noise(parse_all(["cpu=1"]))
    began, unix_ns = time.time_ns(), time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: unix_ns() + HOUR_NS)

    noise._write(["cpu=1"], began, {"cpu=1": 0})

    (logged,) = noise.log()
    assert 0 <= logged.end_ns - began < HOUR_NS // 60
