"""What is said of a command line that is none."""

import pytest

from tracekit.cli.main import main


@pytest.mark.parametrize(
    ("words", "what", "help_of"),
    [
        (["runs", "--nope"], "--nope", "tracekit runs"),
        (["nowhere"], "nowhere", "tracekit"),
        (["study", "nowhere"], "nowhere", "tracekit study"),
        (["noise", "cpu=1", "--for", "soon"], "'soon' is no time such as 90s, 5m or 1h.", "tracekit noise"),
        (["noise"], "SPEC...", "tracekit noise"),
    ],
)
def test_it_is_one_line(words: list[str], what: str, help_of: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tracekit: ") and what in line and line.endswith(f". See `{help_of} --help`.")


@pytest.mark.parametrize("words", [[], ["study"]])
def test_without_a_command_there_is_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert "Commands:" in capsys.readouterr().err.splitlines()
