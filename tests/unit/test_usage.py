"""What is said of a command line that is none."""

import pytest

from tracekit.cli.main import main


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["runs", "--nope"], "tracekit: No such option '--nope'. See `tracekit runs --help`.\n"),
        (["nowhere"], "tracekit: No such command 'nowhere'. See `tracekit --help`.\n"),
        (["study", "nowhere"], "tracekit: No such command 'nowhere'. See `tracekit study --help`.\n"),
        (
            ["noise", "cpu=1", "--for", "soon"],
            "tracekit: Invalid value for '--for': 'soon' is no time such as 90s, 5m or 1h."
            " See `tracekit noise --help`.\n",
        ),
        (["noise"], "tracekit: Missing argument 'SPEC...'. See `tracekit noise --help`.\n"),
    ],
)
def test_it_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("words", [[], ["study"]])
def test_without_a_command_there_is_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert "Commands:" in capsys.readouterr().err.splitlines()
