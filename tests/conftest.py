"""What every test stands on: an environment without the developer's own settings, and the place of the repository."""

import fcntl
import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

REPOSITORY = Path(__file__).parent.parent

# A shell without job control starts background jobs with SIGINT ignored, and every child would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes depends on the machine and its neighbours: no deadline.
settings.register_profile("tracekit", deadline=None, derandomize=True)
settings.load_profile("tracekit")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Tests run beside others; those marked `alone` do not, for they measure time. This file is the lock; and a door
    before it, as nobody is to begin while one waits to be alone."""
    with open(__file__) as turns, open(REPOSITORY / "pyproject.toml") as door:
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(turns, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        return (yield)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Modules with tests that run alone come first, so that in the end there are others to share out. What measures
    time on a machine that others share may err: it gets a second try, which the summary tells of."""
    with_lone_tests = {item.path for item in items if item.get_closest_marker("alone")}
    items.sort(key=lambda item: item.path not in with_lone_tests)
    for item in items:
        if item.get_closest_marker("alone") and not config.option.usepdb:  # which stops at the first failure
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No `TRACEKIT_*`, no thread counts, no injected paths; help texts wrap at a fixed width."""
    for name in list(os.environ):
        if name.startswith(("TRACEKIT_", "OMP_", "MKL_")) or name in ("PYTHONPATH", "PYTHONSTARTUP"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout that is tested."""
    return REPOSITORY
