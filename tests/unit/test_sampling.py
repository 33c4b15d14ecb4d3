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
