"""`tracekit query`."""

from pathlib import Path

import click


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("sql")
@click.option(
    "--format", "style", type=click.Choice(["table", "csv", "json"]), default="table", show_default=True, help="Output."
)
def command(run: Path, sql: str, style: str) -> None:
    """Ask the tables of RUN by SQL (DuckDB's).

    Tables: processes, spans, operators, batches, workers, fetches, samples, reads, collectives, reached, changes,
    counters. Times are integer nanoseconds.

    \b
        tracekit query RUN "SELECT name, count(*), sum(duration_ns) FROM operators GROUP BY name ORDER BY 3 DESC"
        tracekit query RUN "SELECT * FROM batches" --format csv > batches.csv
    """
    from tracekit.cli.locate import complete, locate
    from tracekit.cli.rows import WRITERS
    from tracekit.run.reader import open_run

    table = open_run(complete(locate(run))).arrow(sql)
    for piece in WRITERS[style](table):
        click.echo(piece, nl=False)
