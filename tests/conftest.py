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


class _Turn:
    """Tests run beside others; those marked `alone` do not, for they measure time. This file is the lock; and a door
    before it, as nobody is to begin while one waits to be alone. Tests that are alone follow each other in one turn:
    between two of them a worker would wait for what the other began meanwhile."""

    def __init__(self) -> None:
        self._lock: int | None = None

    def take(self, alone: bool) -> None:
        if self._lock is None:
            self._lock = os.open(__file__, os.O_RDONLY)
            with open(REPOSITORY / "pyproject.toml") as door:
                fcntl.flock(door, fcntl.LOCK_EX)
                fcntl.flock(self._lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)

    def give_back(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


_turn = _Turn()


def _is_alone(item: pytest.Item | None) -> bool:
    return item is not None and item.get_closest_marker("alone") is not None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """In a turn of its own, or together with the test before."""
    _turn.take(_is_alone(item))
    try:
        return (yield)
    finally:
        if not (_is_alone(item) and _is_alone(nextitem)):
            _turn.give_back()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Modules with tests that run alone come first, so that in the end there are others to share out, and of each those
    tests. What measures time on a machine that others share may err: it gets a second try, which the summary tells."""
    module = {path: number for number, path in enumerate(dict.fromkeys(item.path for item in items))}
    with_lone_tests = {item.path for item in items if _is_alone(item)}
    items.sort(key=lambda item: (item.path not in with_lone_tests, module[item.path], not _is_alone(item)))
    for item in items:
        alone = item.get_closest_marker("alone")
        if alone and alone.kwargs.get("again", True) and not config.option.usepdb:  # which stops at the first failure
            item.add_marker(pytest.mark.flaky(reruns=1))
            item.add_marker(pytest.mark.timeout(func_only=True))  # of both tries together nothing bounds the second


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
