"""What `verify` tells of the prediction that it verifies."""

from pathlib import Path

import msgspec
import pytest
from synthetic import make_manifest, make_run

from tracekit.analysis.report_schema import Gain, Setting
from tracekit.cli.locate import best_fixed_of, predicted_of
from tracekit.cli.runs import _steps
from tracekit.study.result import Study, text_of

BOTH, PLAN = Gain(0.2, 0.32, 0.4), Gain(0.05, 0.1, 0.15)
WORKERS = Setting("loader.x.num_workers", 0, 4, BOTH, "probe", "order", "why", "apply")
AHEAD = Setting("loader.x.prefetch_factor", None, 2, BOTH, "probe", "identical", "why", "apply")
LAYERS = Setting("threads.layers", None, {"rnn": 1, "head": 2}, PLAN, "measured", "numerics", "why", "apply")
AS_TOLD = {
    "loader.x.num_workers": 4, "loader.x.prefetch_factor": 2, "threads.layers.rnn": 1, "threads.layers.head": 2
}  # fmt: skip


@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize("file", ["findings.json", "study.json"])
@pytest.mark.parametrize(
    ("edited", "still"),
    [
        ({}, [WORKERS, AHEAD, LAYERS]),
        ({"loader.x.num_workers": 3}, [AHEAD, LAYERS]),
        ({"threads.layers.head": 1}, [WORKERS, AHEAD]),
    ],
)
def test_what_is_as_it_was_recommended_was_predicted(
    tmp_path: Path, beside: bool, file: str, edited: dict[str, int], still: list[Setting]
) -> None:
    (tmp_path / file).write_bytes(msgspec.json.encode({"schema": 1, "settings": [WORKERS, AHEAD, LAYERS]}))
    settings = tmp_path / "settings.toml"
    settings.touch()
    assert predicted_of(settings if beside else tmp_path, AS_TOLD | edited) == still


@pytest.mark.parametrize("beside", [True, False])
def test_what_was_predicted_beside_other_settings_is_no_gain_over_nothing_set(
    tmp_path: Path, beside: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """GIVEN a run that was recorded under a setting which is not its own recommendation."""
    run = make_run(tmp_path / "run", [], manifest=make_manifest(settings={"threads.intra_op": 1}))
    (run / "findings.json").write_bytes(msgspec.json.encode({"schema": 1, "settings": [WORKERS, AHEAD]}))
    (run / "settings.toml").touch()
    assert predicted_of(run / "settings.toml" if beside else run, AS_TOLD | {"threads.intra_op": 1}) == []
    assert "recorded under threads.intra_op" in capsys.readouterr().err
    assert predicted_of(run, AS_TOLD) == [WORKERS, AHEAD]  # it was taken out of the file


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"settings": 3}', b'{"settings": [{"name": 1}]}', b'{"\xff": 1}', b'{"x": ' + b"[" * 100_000],
)
def test_findings_that_cannot_be_read_tell_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "findings.json").write_bytes(content)
    assert (predicted_of(tmp_path, AS_TOLD), best_fixed_of(tmp_path), _steps(tmp_path)) == ([], None, "-")


def test_nothing_is_predicted_where_nothing_was_found(tmp_path: Path) -> None:
    assert predicted_of(tmp_path, AS_TOLD) == []


def test_a_study_tells_what_was_predicted_once_for_what_goes_together() -> None:
    study = Study(1, "verify", "runs/x", ["python"], [], [], 1.0, 0.95, "", {}, predicted=[WORKERS, AHEAD, LAYERS])
    lines = [line.strip() for line in text_of(study).splitlines() if "predicted" in line]
    assert lines == [
        "predicted (probe): saves +32.0% [+20.0%, +40.0%] of a step with loader.x.num_workers,"
        " loader.x.prefetch_factor",
        "predicted (measured): saves +10.0% [+5.0%, +15.0%] of a step with threads.layers",
    ]
