"""What is sampled beside the program, where it cannot be written."""

from typing import Any, cast

import pyarrow as pa
import pytest

from tracekit.record.flush import Flusher
from tracekit.record.sampling import _MOST_WAITING, Recording
from tracekit.run.manifest import Manifest
from tracekit.run.schema import TABLES


class OneRow:
    """A sampler that has a row every time."""

    def drain(self) -> pa.Table:
        return pa.Table.from_pylist([{"process": 0, "start_ns": 1, "duration_ns": 1}], schema=TABLES["counters"])


class Fails:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def flush(self, now: int, others: dict[str, pa.Table]) -> bool:
        raise self.error


class Tells:
    """Moves nothing; `told`: when it was asked to tell who the processes are, s."""

    def __init__(self, clock: list[int], error: Exception | None = None) -> None:
        self.clock, self.error = clock, error
        self.told: list[int] = []

    def flush(self, now: int, others: dict[str, pa.Table]) -> bool:
        return False

    def tell(self, now: int) -> None:
        self.told.append(self.clock[0])
        if self.error:
            raise self.error


@pytest.mark.parametrize(
    ("error", "told", "said"),
    [
        (None, [5, 10, 20, 40, 80, 140, 200], []),
        (OSError(28, "No space left on device"), list(range(5, 201, 5)), []),
        (ValueError("odd"), [5], ["who the processes are, while they last"]),
    ],
)
def test_who_the_processes_are_is_told_as_often_as_the_recording_gets_older(
    error: Exception | None, told: list[int], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, manifest = [0], Manifest()
    monkeypatch.setattr("time.perf_counter_ns", lambda: clock[0] * 1_000_000_000)
    recording, flusher = Recording(manifest, {}, 1, 10.0), Tells(clock, error)
    for at_s in range(5, 201, 5):
        clock[0] = at_s
        recording._flush(cast(Flusher, flusher))
    assert flusher.told == told and [note.what for note in manifest.missing] == said


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(28, "No space left on device"), ["some counters"]),
        (ValueError("odd"), ["some counters", "what was not converted"]),
    ],
)
def test_samples_that_cannot_be_written_wait_up_to_a_limit(error: Exception, said: list[str]) -> None:
    manifest = Manifest()
    sampler: Any = OneRow()
    recording = Recording(manifest, {"counters": sampler}, 1, 10.0)

    for _ in range(2 * _MOST_WAITING):
        recording._flush(cast(Flusher, Fails(error)))

    assert recording.rest()["counters"].num_rows == _MOST_WAITING
    assert sorted(note.what for note in manifest.missing if note.lost) == said
