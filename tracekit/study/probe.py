"""The probe: the command of a run once more, for some seconds of its loop, with as many workers as are ever advised.

One run cannot know how storage answers more readers than it had. The probe sees it; it is ended when it has seen it.
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tracekit.analysis.loading import loader_costs
from tracekit.analysis.steps import find_steps
from tracekit.analysis.words import shell_line
from tracekit.models.loading import fits, worker_counts
from tracekit.record.machine import describe_cpu, thread_budget
from tracekit.run.folder import PROBE
from tracekit.run.reader import Run
from tracekit.settings.file import Entry, write_settings
from tracekit.study.recording import Recording, StudyError
from tracekit.study.turns import Turns

SECONDS = 10.0
_LOOK_EVERY_S = 0.05
_PREFETCH = 2  # torch's default
_LIGHTLY = ["--collectors", "steps,loading", "--profile", "off"]


def probe(run: Run, say: Callable[[str], None]) -> None:
    """Record the run's command again, in its directory, into the folder `probe` of the run, with as many workers as
    are ever advised and fit into memory.

    Raises StudyError when there is no loader that may have workers, or when the command fails before its loop.
    """
    counts = worker_counts(thread_budget(describe_cpu()))
    most = {
        costs.loader: max(count for count in counts if fits(costs, count, _PREFETCH))
        for costs in loader_costs(run, find_steps(run))
        if not costs.settings.iterable
    }
    values = [
        Entry(f"loader.{name}.{key}", value)
        for name, workers in most.items()
        if workers
        for key, value in (("num_workers", workers), ("prefetch_factor", _PREFETCH))
    ]
    if not values:
        raise StudyError(f"{run.path}: no loader was seen that may have workers, so there is nothing to probe")
    folder = Path(os.path.abspath(run.path)) / PROBE
    command = shell_line(run.manifest.command)
    say(f"running {command} for up to {SECONDS:.0f} s of its loop with {max(most.values())} workers; then it is ended")
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "settings.toml"
        write_settings(file, values, "A probe of storage.")
        shutil.rmtree(folder, ignore_errors=True)
        words = [sys.executable, "-m", "tracekit", "record", "-q", "-o", str(folder), "--condition", PROBE, *_LIGHTLY]
        directory = run.manifest.directory
        launch = Recording(
            PROBE, [*words, "--settings", str(file), "--", *run.manifest.command], folder, folder,
            directory if os.path.isdir(directory) else None,
        )  # fmt: skip
        with _running(launch) as turns:
            _await(lambda: launch.in_loop() or turns.process.poll() is not None)
            ended = time.monotonic() + SECONDS
            _await(lambda: time.monotonic() > ended or turns.process.poll() is not None)
            failed = turns.process.poll()
        if failed:
            launch.opened(failed)


@contextmanager
def _running(launch: Recording) -> Iterator[Turns]:
    """The launched process, which does not outlive this."""
    turns = Turns(launch.start())
    try:
        yield turns
    finally:
        turns.end()


def _await(done: Callable[[], bool]) -> None:
    while not done():
        time.sleep(_LOOK_EVERY_S)
