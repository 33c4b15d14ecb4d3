"""The `tracekit` command: an explicit list of commands, and the one place that turns errors into a line and a code."""

import importlib
import importlib.metadata
import io
import sys
from collections.abc import Sequence

import click

import tracekit
from tracekit.cli.saying import forget_reader, say
from tracekit.errors import TracekitError

# name -> module with a click command called `command`; imported only when asked for.
COMMANDS = {
    "record": "tracekit.cli.record",
    "analyze": "tracekit.cli.analyze",
    "apply": "tracekit.cli.apply",
    "study": "tracekit.cli.study",
    "verify": "tracekit.cli.verify",
    "noise": "tracekit.cli.noise",
    "query": "tracekit.cli.query",
    "runs": "tracekit.cli.runs",
    "doctor": "tracekit.cli.doctor",
    "config": "tracekit.cli.config",
    "completion": "tracekit.cli.completion",
}


class Commands(click.Group):
    """The commands above, and those that other packages add by the entry point group `tracekit.commands`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *(point.name for point in _entry_points() if point.name not in COMMANDS)]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in COMMANDS:
            return importlib.import_module(COMMANDS[name]).command
        for point in _entry_points():
            if point.name == name:
                return point.load()
        return None

    def invoke(self, ctx: click.Context) -> object:
        """As click does; but that the reader of our output has left (`tracekit query … | head`) is no error, as which
        click would take it."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            if not forget_reader():
                raise TracekitError(f"{error.filename or 'writing'}: {error.strerror}") from error
            return 0


def _entry_points() -> importlib.metadata.EntryPoints:
    return importlib.metadata.entry_points(group="tracekit.commands")


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(tracekit.__version__, prog_name="tracekit")
def command() -> None:
    """Record an unmodified PyTorch program, explain its time, and get settings that make it faster.

    \b
        tracekit record -- python train.py
        tracekit analyze
        tracekit dashboard
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. What the user can mend is one line on stderr and code 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names may hold what a Latin-1 locale does not
    try:
        result = command.main(args=arguments, prog_name="tracekit", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.Abort:
        return 130
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else "tracekit"
        what = " ".join(error.format_message().split())
        say(f"{what}{'' if what.endswith(('.', '?', ')')) else '.'} See `{path} --help`.")
        return 2
    except click.ClickException as error:
        error.show()
        return 2
    except TracekitError as error:
        say(str(error))
        return error.exit_code
    except OSError as error:
        say(f"{error.filename or 'reading or writing'}: {error.strerror or error}")
        return 2


def entry() -> None:
    """The console script."""
    sys.exit(main())
