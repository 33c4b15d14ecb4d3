"""What a study found is kept and told, whatever its command is, wherever it is to be written."""

from pathlib import Path

import pytest

from tracekit.advice.entries import entries_of
from tracekit.analysis.report_schema import Advice, Gain, Setting
from tracekit.errors import RunError
from tracekit.run.folder import create_study
from tracekit.study.result import STUDY_VERSION, Study, text_of

_NO_UTF8 = "tr\udce9.py"  # a byte that is none, as Python has it


def study(stopped: str = "the time was up", **what: object) -> Study:
    command = ["python", _NO_UTF8]
    return Study(STUDY_VERSION, "verify", f"/studies/{_NO_UTF8}", command, [], [], 1.0, 0.95, stopped, {}, **what)  # type: ignore[arg-type]


def test_a_command_that_is_no_utf8_is_kept(tmp_path: Path) -> None:
    create_study(tmp_path / "study")
    study(explored=f"/runs/{_NO_UTF8}").save(tmp_path / "study")
    found = Study.load(tmp_path / "study")
    assert found.command == ["python", r"tr\udce9.py"] and found.explored == r"/runs/tr\udce9.py"
    assert found.stopped == "the time was up"


@pytest.mark.parametrize("content", [b"", b'{"\xff": 1}', b'{"x": ' + b"[" * 100_000])
def test_what_is_no_study_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "study.json").write_bytes(content)
    with pytest.raises(RunError, match="is not a study"):
        Study.load(tmp_path)


def test_a_study_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    found = study()
    found.save(tmp_path / "gone")
    assert f"could not be written to {tmp_path / 'gone'} (No such file or directory)" in text_of(found)


def test_what_is_recommended_says_what_it_changes_and_how_to_apply_it() -> None:
    gain = Gain(0.02, 0.05, 0.08)
    how = "tracekit apply x"
    view = Setting("ddp.gradient_as_bucket_view", False, True, gain, "measured", "numerics", "6 pairs", how)
    told = " ".join(text_of(study(settings=[view])).split())
    assert "ddp.gradient_as_bucket_view: True instead of False, saves 5% of a step (2% to 8%)" in told
    assert "effect on results: numerics. 6 pairs" in told and "apply: tracekit apply x" in told
    (entry,) = entries_of(Advice([view], ""))
    assert entry.comment == "6 pairs; effect on results: numerics"


def test_nothing_that_a_terminal_obeys_is_printed() -> None:
    assert text_of(study("\x1b]0;yours\x07\u202e", advice="\x9b2J")).replace("\n", "").isprintable()
