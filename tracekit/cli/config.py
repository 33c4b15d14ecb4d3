"""`tracekit config`."""

import click


@click.group()
def command() -> None:
    """The options that hold for every command."""


@command.command()
def show() -> None:
    """Show every option, its value and where it comes from.

    A flag comes before a TRACEKIT_* variable, that before [tool.tracekit] in the nearest pyproject.toml upward, and
    that before the default.
    """
    from tracekit.analysis.words import visible
    from tracekit.config import OPTIONS, resolve

    rows = [["OPTION", "VALUE", "FROM", "VARIABLE", "MEANING"]]
    for name, found in resolve().items():
        value = ",".join(found.value) if isinstance(found.value, list) else str(found.value)
        option = OPTIONS[name]
        rows.append([name, visible(value), visible(found.source), option.variable, option.meaning])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
