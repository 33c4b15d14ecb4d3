"""Serving the dashboard: one process, a few threads, until Ctrl-C."""

import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

import waitress

from tracekit.dashboards.app import build_app, content_policy
from tracekit.dashboards.guard import LOOPBACK, Guard
from tracekit.dashboards.library import Library
from tracekit.errors import TracekitError

# Callbacks wait for DuckDB and NumPy, which release the interpreter; a browser asks for a few things at once.
_THREADS = 8


def serve(directory: Path | str, host: str, port: int, base_path: str = "", allowed: Sequence[str] = ()) -> None:
    """Serve until interrupted. Raises TracekitError when there is no run, or the address is taken."""
    base_path = "/" + base_path.strip("/") if base_path.strip("/") else ""
    token = secrets.token_urlsafe(16)
    for name in [name for name in os.environ if name.startswith("DASH_")]:
        del os.environ[name]  # meant for another app; they would change debugging, prefixes and more of this one
    with Library(Path(directory)) as library:
        app = build_app(library, f"{base_path}/{token}/")
        hosts = LOOPBACK | {host.lower(), socket.gethostname().lower()} | {name.lower() for name in allowed}
        guard = Guard(app.server, token, hosts, base_path, content_policy(app))
        listener = _listen(host, port)
        server = waitress.create_server(guard, sockets=[listener], threads=_THREADS, ident="tracekit")
        # A busy browser is no reason for a line on the terminal.
        logging.getLogger("waitress.queue").setLevel(logging.ERROR)
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
                signal.signal(number, _leave)
        address = f"http://[{host}]" if ":" in host else f"http://{host}"
        address += f":{listener.getsockname()[1]}{base_path}/{token}/"
        with suppress(KeyboardInterrupt):
            print(f"tracekit: dashboard of {directory} at {address}")
            print("tracekit: Ctrl-C ends it", flush=True)
            library.warm()
            server.run()
    # Queries may still run in the background, and DuckDB aborts a process whose interpreter goes away under one.
    sys.stdout.flush()
    os._exit(0)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = error.strerror or error
        raise TracekitError(
            f"cannot listen on {host}:{port} ({reason}); choose another --port, or 0 for any"
        ) from error


def _leave(number: int, frame: FrameType | None) -> None:
    """Unwind on a signal, so that the scratch files are removed."""
    sys.exit(128 + number)
