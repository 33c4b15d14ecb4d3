"""The supervisor's end: whatever goes wrong with the recording, the program's exit code is what counts."""

import os
import threading
from pathlib import Path

import pytest

from tracekit.record import signals, supervisor
from tracekit.record.supervisor import Options, _Recorder, record
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


def test_a_recorder_that_cannot_start_leaves_the_program_to_be_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN as many processes as this user may have, the program among them."""

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    recorder = _Recorder(tmp_path / "run", tmp_path / "spool", Manifest(), Options(["true"], tmp_path / "run"), {}, 1)

    recorder.start()
    recorder.program_ended()

    assert recorder.finish() == "the recorder could not start: can't start new thread"


def test_a_path_that_is_no_text_is_said_and_the_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow and DuckDB take only UTF-8: all would be lost, after it had been recorded."""
    monkeypatch.setattr(signals, "block", set)
    monkeypatch.setattr(signals, "Witness", lambda: None)
    monkeypatch.setattr(supervisor, "spawn", lambda command, environment, heard: 1234)
    monkeypatch.setattr(signals, "wait_for", lambda child, heard, witness: 3 << 8)
    folder = tmp_path / os.fsdecode(b"latin-\xe9")

    outcome = record(Options(["true"], folder / "run"))

    assert (outcome.exit_code, outcome.run) == (3, None)
    assert outcome.lost is not None and r"latin-\udce9/run: its name is not UTF-8" in outcome.lost
    assert not folder.exists()
