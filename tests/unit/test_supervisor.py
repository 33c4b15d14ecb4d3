"""The supervisor's end: whatever goes wrong with the recording, the program's exit code is what counts."""

from pathlib import Path

import pytest

from tracekit.record.supervisor import Options, _Recorder
from tracekit.run.manifest import Manifest


class Broken:
    """A recording that fails when it is to end."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def stop(self) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(28, "No space left on device", "/x/part"), "/x/part: No space left on device"),
        (ValueError("out of bounds"), "ValueError: out of bounds"),
        (UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed"), "UnicodeEncodeError"),
    ],
)
def test_failure_at_the_end_is_said_and_not_raised(error: Exception, said: str, tmp_path: Path) -> None:
    options = Options(["true"], tmp_path / "run")
    recorder = _Recorder(tmp_path / "run", tmp_path / "spool", Manifest(), options, {}, 1)
    recorder.join = lambda timeout=None: None  # type: ignore[method-assign]  # its thread was never started
    recorder._recording = Broken(error)  # type: ignore[assignment]

    lost = recorder.finish()

    assert lost is not None and said in lost and str(tmp_path / "spool") in lost
