"""A real server as a process, and a real Chromium."""

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from browsing import ODD_NAME, Server, Watched, hostile_run
from playwright.sync_api import BrowserContext, sync_playwright
from synthetic import make_run

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


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
