"""Programs that run with settings: their exit code is what counts."""

import shutil
from pathlib import Path

import pytest

from tracekit.record import applying, signals


def test_a_program_that_removes_the_spool_keeps_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a program that empties the folder for temporary files."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(signals, "block", set)
    monkeypatch.setattr(applying, "spawn", lambda command, environment, heard, cpus: 1234)

    def wait_for(child: int, heard: set[int], witness: signals.Witness) -> int:
        for folder in tmp_path.iterdir():
            shutil.rmtree(folder)
        witness.dismiss()
        return 3 << 8

    monkeypatch.setattr(signals, "wait_for", wait_for)

    code, (line,) = applying.run_with(["true"], {})

    assert code == 3
    assert line.startswith("what was not applied is not known: ") and str(tmp_path) in line
