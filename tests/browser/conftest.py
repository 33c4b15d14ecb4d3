"""A real server as a process, and a real Chromium."""

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from browsing import HOSTILE, ODD_NAME, Server, Watched, hostile_run
from playwright.sync_api import BrowserContext, expect, sync_playwright
from ranks import delay, ranks_run
from synthetic import Tape, make_manifest, make_run

from tracekit.analysis.report_schema import Guideline
from tracekit.run.folder import create_study
from tracekit.study.result import STUDY_VERSION, Study
from tracekit.study.statistics import compare, summarise

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def explored_run(path: Path, rounds: int = 8) -> None:
    """A run that tried 1, 2 and 4 threads in turn: one layer gains from them, one loses, with an attack as its name."""
    tape = Tape(thread=100)
    tape.gap(500)
    for number in range(3 * rounds):
        count = (1, 2, 4)[number % 3]
        columns = {"layer": number, "step": number // 3, "depth": 1, "watched": number < 3}
        with tape.span("block", f"threads.intra_op={count}", **columns):
            for step in range(5):
                with tape.layer("Model"):
                    tape.call("encoder.rnn", 8.0 / count + 0.05 * ((step + number // 3) % 4))
                    tape.call(HOSTILE, 0.5 * count)
                with tape.backward():
                    tape.call(HOSTILE, 0.7 * count, direction="backward")
                    tape.call("encoder.rnn", 10.0 / count, direction="backward")
                tape.optimizer(1.0)
    make_run(path, [tape], manifest=make_manifest(intra_op=4, command=["python", HOSTILE], condition="explore"))


def hostile_study(path: Path) -> None:
    """A study with attacks for names, and the run that it explored."""
    blocks = {"baseline": [10.0, 10.2, 9.9, 10.1], HOSTILE: [8.0, 8.3, 7.9, 8.1], "baseline again": [10.1, 10, 9.8, 10]}
    create_study(path)
    explored_run(path / "runs" / "001-explore")
    Study(
        schema=STUDY_VERSION,
        study="threads",
        path=str(path),
        command=["python", HOSTILE],
        conditions=[summarise(name, times) for name, times in blocks.items()],
        comparisons=[compare("baseline", name, blocks["baseline"], times, 0.02) for name, times in blocks.items()][1:],
        floor=0.02,
        level=0.95,
        stopped=HOSTILE,
        blocks_ms=blocks,
        guidelines=[Guideline(HOSTILE, 0.9, 27, HOSTILE)],
        explored=str(path / "runs" / "001-explore"),
        advice=HOSTILE,
    ).save(path)


@pytest.fixture(scope="session")
def chromium() -> str:
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    return path


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("runs")
    hostile_run(directory / ODD_NAME)
    make_run(directory / "empty")
    explored_run(directory / "explored")
    ranks_run(
        directory / "ranks", 2, longer=delay("forward", 4.0, lambda step: 1), computes=True, hosts=2, ahead_ms=50.0
    )
    hostile_study(directory / f"study {ODD_NAME}")
    command = [sys.executable, "-m", "tracekit", "dashboard", str(directory), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        yield Server(found[0], process)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) in (0, 130)


@pytest.fixture(scope="session")
def context(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrowserContext]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("profile"),
            executable_path=chromium,
            args=FLAGS,
            viewport={"width": 1280, "height": 900},
        )
        opened.set_default_timeout(60_000)  # the machine may be busy
        expect.set_options(timeout=60_000)
        yield opened
        opened.close()


@pytest.fixture
def watched(context: BrowserContext) -> Iterator[Watched]:
    """A fresh page that must end without errors, foreign requests or dialogs."""
    page = context.new_page()
    watched = Watched(page)
    page.on("console", watched.console)
    page.on("request", watched.request)
    page.on("pageerror", watched.error)
    page.on("dialog", watched.dialog)
    page.on("response", watched.response)
    yield watched
    page.close()
    assert watched.wrong == []
