"""Options and where they come from."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from tracekit.config import OPTIONS, ConfigError, Resolved, collector_names, resolve
from tracekit.dashboards.command import command as dashboard


def project(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(text)
    return folder


def test_defaults(tmp_path: Path) -> None:
    values = {name: found.value for name, found in resolve({}, {}, tmp_path).items()}
    assert values == {
        "runs": "tracekit-runs",
        "overhead": 1.0,
        "profile": "auto",
        "collectors": collector_names(),
        "sample_hz": 10.0,
    }
    assert "layers" in collector_names()


def test_precedence(tmp_path: Path) -> None:
    folder = project(tmp_path, '[tool.tracekit]\noverhead = 2\nprofile = "full"\nsample_hz = 5')
    found = resolve({"overhead": "4", "profile": None}, {"TRACEKIT_OVERHEAD": "3", "TRACEKIT_PROFILE": "off"}, folder)
    assert found["overhead"] == Resolved(4.0, "--overhead")
    assert found["profile"] == Resolved("off", "TRACEKIT_PROFILE")
    assert found["sample_hz"] == Resolved(5.0, f"{folder / 'pyproject.toml'} [tool.tracekit] sample_hz")
    assert found["runs"].source == "default"


def test_the_nearest_project_that_speaks_of_tracekit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project(tmp_path, '[tool.tracekit]\nruns = "recorded"')
    project(tmp_path / "a", "[tool.other]\nx = 1")
    broken = project(tmp_path / "a" / "b", "this is = = not TOML")
    monkeypatch.chdir(project(broken / "c", "tool = 5  # not of tool.tracekit"))
    assert resolve({}, {})["runs"].value == "../../../recorded"


def test_collectors_as_words_or_list(tmp_path: Path) -> None:
    folder = project(tmp_path, '[tool.tracekit]\ncollectors = ["steps", "layers"]')
    assert resolve({}, {}, folder)["collectors"].value == ["steps", "layers"]
    assert resolve({"collectors": "counters, steps,"}, {}, folder)["collectors"].value == ["steps", "counters"]


@pytest.mark.parametrize(
    ("flags", "environment", "text", "said"),
    [
        ({"overhead": "much"}, {}, "", "--overhead: must be a number above 0, at most 100; not 'much'"),
        ({"overhead": "nan"}, {}, "", "--overhead: must be"),
        ({}, {"TRACEKIT_OVERHEAD": "0"}, "", "TRACEKIT_OVERHEAD: must be"),
        ({}, {"TRACEKIT_PROFILE": "on"}, "", "TRACEKIT_PROFILE: must be one of auto, off, full; not 'on'"),
        ({"collectors": "steps,layer"}, {}, "", "did you mean layers?"),
        ({"sample_hz": "-1"}, {}, "", "--sample-hz: must be"),
        ({}, {}, "[tool.tracekit]\noverhead = true", "[tool.tracekit] overhead: must be a number"),
        ({}, {}, "[tool.tracekit]\nruns = 3", "[tool.tracekit] runs: must be the path"),
        ({}, {}, "[tool.tracekit]\noverheads = 3", "has no option 'overheads'; did you mean overhead?"),
        ({}, {}, "[tool.tracekit]\noverhead =", "is not valid TOML"),
        ({}, {}, "[tool.tracekit]\noverhead = " + "9" * 400, "[tool.tracekit] overhead: must be a number"),
        ({}, {}, "[tool.tracekit]\noverhead = " + "9" * 5000, "is not valid TOML"),
        ({}, {}, "[tool.tracekit]\nruns = " + "[" * 5000, "is not valid TOML"),
        ({}, {}, "[tool]\ntracekit = 5 # tool.tracekit", "must be one table"),
        ({}, {}, "[[tool.tracekit]]\nruns = 'x'", "must be one table"),
    ],
)
def test_a_bad_value_names_its_source(
    tmp_path: Path, flags: dict[str, object], environment: dict[str, str], text: str, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(flags, environment, project(tmp_path, text))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_a_stronger_source_hides_is_not_judged(tmp_path: Path) -> None:
    assert resolve({"overhead": "2"}, {"TRACEKIT_OVERHEAD": "bad"}, tmp_path)["overhead"].value == 2.0
    assert resolve({}, {"TRACEKIT_OVERHEAD": ""}, tmp_path)["overhead"].source == "default"


def test_every_default_is_a_value_that_may_be_given() -> None:
    for option in OPTIONS.values():
        assert option.parse(option.default()) == option.default()


def test_dashboard_looks_where_runs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a directory of runs in the configuration THEN it is browsed, unless another is named."""
    browsed = []
    monkeypatch.setattr("tracekit.dashboards.server.serve", lambda directory, *_: browsed.append(directory))
    monkeypatch.chdir(project(tmp_path / "project", '[tool.tracekit]\nruns = "kept"'))
    for words in ([], ["others"]):
        assert CliRunner().invoke(dashboard, words).exit_code == 0
    monkeypatch.setenv("TRACEKIT_RUNS", "elsewhere")
    assert CliRunner().invoke(dashboard, []).exit_code == 0
    assert browsed == ["kept", "others", "elsewhere"]
