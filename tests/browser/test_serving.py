"""The server as a process: how it starts, whom it serves, how it ends. Needs no browser."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from browsing import Server
from synthetic import training_run


def dashboard(*arguments: str, scratch: Path | None = None) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tracekit", "dashboard", *arguments]
    environment = os.environ | ({"TMPDIR": str(scratch)} if scratch else {})
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)


def status(url: str, **headers: str) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def refused(*arguments: str) -> str:
    """What is said on stderr by a dashboard that does not start."""
    process = dashboard(*arguments)
    out, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert out == ""
    assert said.startswith("tracekit: ")
    assert said.count("\n") == 1
    return said


def test_a_directory_without_runs_is_one_line(tmp_path: Path) -> None:
    assert "record one with" in refused(str(tmp_path))
    assert "record one with" in refused(str(tmp_path / "absent"))


def test_a_port_that_is_taken_is_one_line(tmp_path: Path) -> None:
    training_run(tmp_path / "run", steps=2)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = refused(str(tmp_path), "--port", str(taken.getsockname()[1]))
    assert "choose another --port" in said


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM])
def test_it_ends_at_once_and_leaves_nothing_behind(number: signal.Signals, tmp_path: Path) -> None:
    training_run(tmp_path / "run", steps=2000)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    process = dashboard(str(tmp_path), "--port", "0", scratch=scratch)
    assert process.stdout is not None
    assert "http://127.0.0.1:" in process.stdout.readline()
    assert "Ctrl-C" in process.stdout.readline()
    process.send_signal(number)  # while the run is being indexed
    _, said = process.communicate(timeout=60)
    assert process.returncode in (0, 130, 143)
    assert said == ""
    assert list(scratch.iterdir()) == []


def test_only_the_printed_address_is_answered(server: Server) -> None:
    parts = urlsplit(server.url)
    assert re.fullmatch(r"/[\w-]{20,}/", parts.path)
    assert parts.hostname == "127.0.0.1"
    origin = f"http://{parts.netloc}"
    assert status(server.url) == 200
    assert status(f"{server.url}_dash-layout", Origin=origin) == 200
    assert status(f"{origin}/") == 403
    assert status(f"{origin}/_dash-layout") == 403
    assert status(f"{server.url}_dash-layout", Host="evil.example") == 403
    assert status(f"{server.url}_dash-layout", Origin="https://evil.example") == 403


def test_nothing_comes_from_elsewhere(server: Server) -> None:
    """The page names no other host: it works on a machine without a network."""
    with urllib.request.urlopen(server.url, timeout=60) as answer:
        policy, page = answer.headers["Content-Security-Policy"], answer.read().decode()
    assert re.findall(r"(?:src|href)=\"(?:https?:)?//", page) == []
    assert "default-src 'self'" in policy
    assert "unsafe-eval" not in policy


def test_settings_of_other_dash_apps_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training_run(tmp_path / "run", steps=2)
    for name in ("DASH_DEBUG", "DASH_UI", "DASH_HOT_RELOAD", "DASH_MCP_ENABLED"):
        monkeypatch.setenv(name, "true")
    monkeypatch.setenv("DASH_URL_BASE_PATHNAME", "/elsewhere/")
    process = dashboard(str(tmp_path), "--port", "0")
    assert process.stdout is not None
    found = re.search(r"http://\S+", process.stdout.readline())
    assert found is not None
    with urllib.request.urlopen(found[0], timeout=60) as answer:
        config = re.search(r'id="_dash-config"[^>]*>(.*?)</script>', answer.read().decode())
    assert config is not None
    settings = json.loads(config[1])
    assert settings["ui"] is False
    assert "hot_reload" not in settings
    assert "/elsewhere/" not in config[1]
    process.terminate()
    process.communicate(timeout=60)
