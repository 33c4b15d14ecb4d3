"""Noise by tools that are installed: its dose by who knows nothing of it, and that nothing is left of it."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from recording import ENVIRONMENT, TRACEKIT

from tracekit.noise.generators import Generators
from tracekit.noise.spec import parse

CPU = max(os.sched_getaffinity(0))
LASTS_S = 2.0
CLOSE = 0.1  # of the dose


def sent(tools: list[psutil.Process]) -> float:
    return float(psutil.net_io_counters(pernic=True)["lo"].bytes_sent)


def computed(tools: list[psutil.Process]) -> float:
    return sum(1e9 * sum(each.cpu_times()[:2]) for each in tools)


def wrote(tools: list[psutil.Process]) -> float:
    return float(sum(each.io_counters().write_bytes for each in tools))


def are_gone(tools: list[psutil.Process]) -> bool:
    """Within 5 s: one that has ended stays a zombie until the first process of the machine takes note."""
    until = time.monotonic() + 5
    while any(runs(each) for each in tools):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def runs(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.alone
@pytest.mark.parametrize(
    ("asked", "tool", "account"),
    [
        (f"cpu=0.4@{CPU}", "stress-ng", computed),
        pytest.param(f"busy=0.4@{CPU}", "stress-ng", computed, marks=pytest.mark.long),
        ("disk=20MB/s@{folder}", "fio", wrote),
        ("network=400Mb/s", "iperf3", sent),
    ],
)
def test_a_tool_does_what_is_asked_and_ends(
    asked: str, tool: str, account: Callable[[list[psutil.Process]], float], tmp_path: Path
) -> None:
    """GIVEN noise by a tool WHEN it is on, off, and its generator is killed THEN its dose is right, it rests, and no
    process and no file is left."""
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    folder = tmp_path / "a:b"  # fio reads a colon as the end of a name
    folder.mkdir()
    spec = parse(f"{asked.format(folder=folder)}@{tool}")
    noise = Generators([spec])
    try:
        (pid,) = noise.pids
        tools = psutil.Process(pid).children(recursive=True)
        assert tools and list(tmp_path.iterdir()) == [folder] and not list(folder.iterdir())
        noise.set([spec.label])
        time.sleep(0.3)
        began, said, before = time.monotonic(), noise.done()[spec.label], account(tools)
        time.sleep(LASTS_S)
        lasted, did = time.monotonic() - began, account(tools) - before
        assert noise.done()[spec.label] - said == pytest.approx(lasted * spec.rate, rel=CLOSE)
        assert did == pytest.approx(lasted * spec.rate, rel=CLOSE)
        noise.set([])
        time.sleep(0.3)
        rest = noise.done()
        time.sleep(0.3)
        assert noise.done() == rest
        os.kill(pid, signal.SIGKILL)
        assert are_gone(tools)
    finally:
        noise.close()


def test_a_tool_that_is_not_installed_is_said() -> None:
    command = [*TRACEKIT, "noise", "cpu=0.2", "--backend", "stress-ng", "--for", "1s"]
    without = {**ENVIRONMENT, "PATH": "/nonexistent"}
    done = subprocess.run(command, capture_output=True, text=True, env=without, timeout=60)
    assert done.returncode == 2 and done.stdout == ""
    assert "stress-ng is not installed here" in done.stderr and len(done.stderr.splitlines()) == 1
