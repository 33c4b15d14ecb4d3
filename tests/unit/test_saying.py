"""Where nobody can be told anything, and reports that a terminal cannot show: exit codes stay what they are."""

import io
import os
import sys
from pathlib import Path

import pytest
from tables import new_run

from tracekit.cli import record
from tracekit.cli.main import main
from tracekit.cli.saying import say
from tracekit.errors import RunError
from tracekit.record.supervisor import Outcome
from tracekit.run.reader import open_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return new_run(tmp_path / "run")


def test_without_stderr_nothing_is_said_on_the_programs_stdout(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", None)

    say("recorded")

    assert capsys.readouterr().out == ""


def test_a_full_stderr_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stderr", full)
        say("recorded")  # and not as it is closed, with what waits in it


def test_a_summary_that_fails_says_what_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record._summary(Outcome(3, tmp_path / "gone", "the disk was full", "node"))

    first, lost, then = capsys.readouterr().err.splitlines()
    assert first.startswith(f"tracekit: recorded {tmp_path / 'gone'}, but not summed up: ")
    assert lost == "tracekit: LOST: the disk was full" and then.startswith("tracekit: next: ")


def test_a_working_directory_that_is_gone(run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    assert record._short(tmp_path / "gone" / "run") == "run"
    (tmp_path / "gone").rmdir()

    assert record._short(tmp_path / "run") == str(tmp_path / "run")
    with pytest.raises(RunError, match="a folder that is gone"):  # and DuckDB does not abort the process
        open_run(run).table("batches")


def test_a_reader_that_has_left_is_no_error(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)

        assert main(["query", str(run), "SELECT 1"]) == 0
        print("and no more is said of it", flush=True)


def test_a_pipe_of_another_that_breaks_is_one(
    run: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(path: Path) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("tracekit.run.reader.open_run", broken)

    assert main(["query", str(run), "SELECT 1"]) == 2
    assert "Broken pipe" in capfd.readouterr().err


def test_what_a_locale_does_not_hold_is_escaped(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))

    assert main(["query", str(run), "SELECT 'caf\u00e9 \u2192' AS name"]) == 0
    assert b"caf\xe9 \\u2192" in written.getvalue()
