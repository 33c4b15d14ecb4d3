"""Probes that are of no use: what is said of them."""

from pathlib import Path

import pytest
from synthetic import Tape, make_run

from tracekit.advice import analyze
from tracekit.cli.main import main
from tracekit.run.folder import PROBE, STUDY_FILE, create_study
from tracekit.run.reader import open_run


def test_a_probe_that_cannot_be_read_is_named_and_the_run_explained(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", [Tape(process=0, role="main")])
    make_run(path / PROBE, [Tape(process=0, role="main")])
    assert "probe was left out" not in analyze(open_run(path)).advice
    (manifest,) = (path / PROBE / "manifest").glob("*.json")
    manifest.write_text("{")
    report = analyze(open_run(path))
    assert "probe was left out" in report.advice and str(manifest) in report.advice


def test_a_study_is_not_probed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = create_study(tmp_path / "study")
    (study / STUDY_FILE).write_text("{}")
    assert main(["analyze", "--probe", str(study)]) == 2
    said = capsys.readouterr().err
    assert "only a run can be probed" in said and said.count("\n") == 1
