"""tracekit dashboard."""

import click


@click.command(name="dashboard")
@click.argument("directory", metavar="[DIR]", required=False)
@click.option("--port", type=click.IntRange(0, 65535), default=8050, show_default=True, help="0 takes any free port.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--base-path", metavar="PATH", default="", help="Where a proxy (Jupyter, Open OnDemand) mounts it.")
@click.option(
    "--allow-host", "allowed", metavar="NAME", multiple=True, help="Another host name browsers may use; repeat."
)
def command(directory: str | None, port: int, host: str, base_path: str, allowed: tuple[str, ...]) -> None:
    """Browse runs: DIR holds runs (default: where runs are kept, see `tracekit config show`) or is one.

    Prints the address to open. Only this machine can reach it, unless --host says otherwise, and only with the token in
    the address; Ctrl-C ends it. From elsewhere: ssh -L 8050:127.0.0.1:8050 NODE.

    \b
        tracekit dashboard
        tracekit dashboard --port 0 tracekit-runs/train-20260101T120000Z-1a2b3c
        tracekit dashboard --base-path /user/me/proxy/8050 --allow-host jupyter.example.org
    """
    from tracekit import config
    from tracekit.dashboards.server import serve

    serve(directory or config.resolve()["runs"].value, host, port, base_path, allowed)
