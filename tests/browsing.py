"""What the browser tests share: a run whose names attack the page, the server that shows it, a page that is watched."""

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import ConsoleMessage, Dialog, Error, Page, Request, Response
from synthetic import MS, Tape, make_manifest, make_run, train

from tracekit.run.manifest import Missing

HOSTILE = "<img src=x onerror=alert(1)>\"quoted\" 'single' 100% %{x} &amp;\n<script>alert(2)</script>"
ODD_NAME = "odd & 100% 'run' <b>#?"


def hostile_run(path: Path) -> None:
    """A training run in which every text that a program, a path or a trace can choose is an attack."""
    tape = Tape(role=HOSTILE, thread=100)
    train(tape, 30)
    tape.gap(5)
    with tape.span("range", HOSTILE), tape.layer(HOSTILE):
        tape.call(f"inner.{HOSTILE}", 3.0)
    tape.batch(1.0, loader=HOSTILE)
    for _ in range(3000):
        with tape.operator_around(HOSTILE, category=HOSTILE):
            tape.operator("aten::mm", 0.01)
    tape.collective(1.0, op=HOSTILE)
    for index in range(40):
        tape.counter(HOSTILE, index, index * 20.0, 20.0, source=HOSTILE)
        tape.counter("process.cpu_ns", 10 * MS, index * 20.0, 20.0)
        tape.counter("process.rss_bytes", 2**28 + index, index * 20.0, 20.0)
        tape.counter("host.cpu_busy_ns", 30 * MS, index * 20.0, 20.0, machine=True)
    worker = Tape(process=1, role="loader worker 0", parent=0, worker=0, thread=7)
    for _ in range(30):
        worker.gap(2)
        worker.fetch(3)
    manifest = make_manifest(
        command=["python", HOSTILE],
        condition=HOSTILE,
        directory=f"/tmp/{HOSTILE}",
        settings={HOSTILE: {HOSTILE: HOSTILE}},
        collectors=[HOSTILE],
        gpus=[HOSTILE],
        missing=[Missing(HOSTILE, HOSTILE)],
    )
    make_run(path, [tape, worker], manifest=manifest)


@dataclass
class Server:
    """A running `tracekit dashboard` and the address that it printed."""

    url: str
    process: "subprocess.Popen[str]"


@dataclass
class Watched:
    """A page, and everything on it that must not happen."""

    page: Page
    wrong: list[str] = field(default_factory=list)

    def console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(f"console {message.type}: {message.text}")

    def request(self, request: Request) -> None:
        if not request.url.startswith(("http://127.0.0.1:", "data:", "blob:")):
            self.wrong.append(f"request to {request.url}")

    def dialog(self, dialog: Dialog) -> None:
        self.wrong.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def response(self, response: Response) -> None:
        if response.status >= 400:
            self.wrong.append(f"{response.status} {response.url}")

    def error(self, error: Error) -> None:
        self.wrong.append(f"page error: {error}")
