"""`tracekit apply`."""

from pathlib import Path

import click

from tracekit.cli.options import program_of
from tracekit.cli.saying import say


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("settings", type=click.Path(path_type=Path))
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def command(settings: Path, command: tuple[str, ...]) -> int:
    """Run COMMAND unchanged with SETTINGS in force: a settings file, or a run that `analyze` has explained.

    Nothing is recorded. The command gets its own stdin, stdout, stderr and signals; tracekit leaves with its exit code.

    \b
        tracekit apply tracekit-runs/train-20260721T101500Z-1a2b3c -- python train.py
        tracekit apply settings.toml -- python train.py
    """
    from tracekit.cli.locate import settings_of
    from tracekit.record.applying import run_with

    code, lines = run_with(program_of(command, "apply RUN"), settings_of(settings))
    for line in lines:
        say(line)
    return code
