"""What the commands that run a program share: its command, a budget, a folder, progress."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import click

from tracekit.cli.saying import say
from tracekit.errors import TracekitError

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Duration(click.ParamType[float]):
    """A time such as 90s, 5m, 1.5h; seconds without a unit."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = re.fullmatch(r"(\d{1,9}(?:\.\d+)?)([smh]?)", str(value))
        if not found or not float(found[1]):
            self.fail(f"{value!r} is no time such as 90s, 5m or 1h", param, ctx)
        return float(found[1]) * _UNITS[found[2] or "s"]


budget_option = click.option(
    "--budget", type=Duration(), default="5m", show_default=True, help="Time to spend; stops earlier when settled."
)


def program_of(words: tuple[str, ...], usage: str) -> list[str]:
    """The command that was given behind `--`. `usage` is how the line would begin that has one.

    Raises TracekitError when there is none, or an option where it should begin.
    """
    command = list(words[1:] if words[:1] == ("--",) else words)
    example = f"as in: tracekit {usage} -- python train.py"
    if not command:
        raise TracekitError(f"no command to run; give it after --, {example}")
    if command[0].startswith("-"):
        raise TracekitError(
            f"{command[0]} stands where the command should begin; tracekit's own options come before what they are"
            f" about, {example}"
        )
    return command


def end_on_signals() -> None:
    """Let what ends a study by a signal end its runs too, as Ctrl-C does."""
    import signal

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)


def narrator(quiet: bool) -> Callable[[str], None]:
    """Says what is going on, on a terminal."""
    if quiet or not sys.stderr.isatty():
        return lambda text: None
    return say


def study_folder(command: list[str]) -> Path:
    """A new folder among the runs."""
    from tracekit import config
    from tracekit.run.folder import new_run_path

    path = new_run_path(command, config.resolve()["runs"].value)
    return path.with_name(f"study-{path.name}")
