"""Emulated slow storage: an HTTP server that answers late and sends slowly, in a process of its own.

    python tests/slow_storage.py FOLDER [--latency 0.01] [--bandwidth 20e6]

Every answer waits `latency` seconds, however many wait with it; what is sent shares `bandwidth` bytes per second. It
prints its URL when it is ready. Emulated: real sockets, times made up.
"""

import argparse
import sys
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_CHUNK = 16 * 1024


class Bandwidth:
    """Bytes per second that all senders share: who sends waits until what went before is through."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._lock = threading.Lock()
        self._free_at = 0.0

    def take(self, size: int) -> None:
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + size / self._rate
            until = self._free_at
        time.sleep(max(until - now, 0.0))


class SlowHandler(SimpleHTTPRequestHandler):
    """Serves a folder, late and slowly."""

    protocol_version = "HTTP/1.1"  # a connection is kept for as long as the reader keeps it
    disable_nagle_algorithm = True  # else the body would wait for the reader's word on the head, some 40 ms

    def __init__(self, *args: object, latency: float, bandwidth: Bandwidth, **kwargs: object) -> None:
        self._latency, self._bandwidth = latency, bandwidth
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]

    def copyfile(self, source, outputfile) -> None:  # type: ignore[no-untyped-def]
        time.sleep(self._latency)
        while chunk := source.read(_CHUNK):
            self._bandwidth.take(len(chunk))
            outputfile.write(chunk)

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Readers may be killed."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--latency", type=float, default=0.01, help="seconds before each answer")
    parser.add_argument("--bandwidth", type=float, default=20e6, help="bytes per second, all answers together")
    options = parser.parse_args()
    handler = partial(
        SlowHandler, latency=options.latency, bandwidth=Bandwidth(options.bandwidth), directory=str(options.folder)
    )
    with _Server(("127.0.0.1", 0), handler) as server:
        print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
