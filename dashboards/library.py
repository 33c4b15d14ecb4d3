"""The runs that the dashboard shows: what there is, what is open, and what was computed about it, once."""

import os
import shutil
import tempfile
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import TypeVar, cast

import msgspec
import pandas as pd

from tracekit.advice import analyze
from tracekit.analysis.completeness import all_missing, unfinished_steps
from tracekit.analysis.layers import layer_times
from tracekit.analysis.phases import step_phases
from tracekit.analysis.report import summarize_steps
from tracekit.analysis.report_schema import REPORT_VERSION, Report, StepSummary
from tracekit.analysis.steps import Steps, find_steps
from tracekit.dashboards.index import Index, build_index, extent_of
from tracekit.dashboards.sources import KINDS, OUTLINE
from tracekit.dashboards.studies import StudyEntry, explored_run, runs_inside, study_entries, study_paths
from tracekit.errors import RunError, TracekitError
from tracekit.run.folder import PROBE, is_run, list_runs
from tracekit.run.manifest import Manifest, Missing
from tracekit.run.reader import Run, open_run
from tracekit.study.result import Study

T = TypeVar("T")

_FINDINGS = "findings.json"

# Runs kept open: enough to compare a few; each holds its index, about 20 bytes per event, on disk.
_OPEN = 4
# What is being created as the library goes: by its index builders and by those who wait for pages, a file each.
_IN_FLIGHT = 16


class Once:
    """Values made on first use, each by one thread while the others wait for it. A failure is tried anew."""

    def __init__(self) -> None:
        self._values: dict[Hashable, object] = {}
        self._locks: dict[Hashable, Lock] = {}
        self._one_at_a_time = Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        with self._one_at_a_time:
            lock = self._locks.setdefault(key, Lock())
        with lock:
            if key not in self._values:
                self._values[key] = make()
            return cast(T, self._values[key])


class OpenRun:
    """A run and what was computed about it. `name` is what the library calls it; `folder` takes its scratch files;
    `builders` make its index."""

    def __init__(self, name: str, run: Run, folder: Path, builders: Executor) -> None:
        self.name = name
        self.run = run
        self._builders = builders
        self._folder = folder
        self._once = Once()

    def report(self) -> Report:
        """What is known about the run; as `tracekit analyze` left it in findings.json when nothing has changed
        since."""
        return self._once.get("report", lambda: _kept_report(self.run) or analyze(self.run))

    def step_summary(self) -> StepSummary:
        return self._once.get("step summary", lambda: summarize_steps(self.run, self.steps()))

    def missing(self) -> list[Missing]:
        """What was not captured or cannot be read."""
        return self._once.get("missing", self._all_missing)

    def _all_missing(self) -> list[Missing]:
        steps = self.steps()
        return all_missing(self.run, steps.main is not None, unfinished_steps(steps))

    def steps(self) -> Steps:
        return self._once.get("steps", lambda: find_steps(self.run))

    def phases(self) -> pd.DataFrame:
        return self._once.get("phases", lambda: step_phases(self.run, self.steps()))

    def main_steps(self) -> pd.DataFrame:
        """The steps of the process that stands for the run."""
        return self.steps().of(self.steps().main)

    def main_phases(self) -> pd.DataFrame:
        return self.phases()[self.phases()["process"] == self.steps().main]

    def extent(self) -> tuple[int, int]:
        """The time from the first to the last thing that was recorded, ns; time axes count from its begin."""
        return self._once.get("extent", lambda: extent_of(self.run, self.steps()))

    def once(self, name: str, make: Callable[[], T]) -> T:
        """What a page makes of the run on its first view, and shows again on the next ones."""
        return self._once.get(("page", name), make)

    def layers(self) -> pd.DataFrame:
        return self._once.get("layers", lambda: layer_times(self.run, self.steps()))

    def processes(self) -> pd.DataFrame:
        """One row per process, in the order of their numbers."""
        query = "SELECT * FROM processes ORDER BY process, attempt"
        return self._once.get("processes", lambda: self.run.sql(query).drop_duplicates("process"))

    def outline(self) -> Index:
        """The index without operators."""
        return self._once.get("outline", lambda: self._build(OUTLINE))

    def index(self, patience: float | None = None) -> Index:
        """The index. After `patience` seconds of waiting for it, the outline instead; it is made in the background."""
        # First what is quick: two builders at once would each be slower than one after the other.
        outline = self.outline()
        coming = self._once.get("index", lambda: self._builders.submit(self._build, KINDS))
        try:
            return coming.result(patience)
        except TimeoutError:
            return outline

    def _build(self, kinds: Sequence[str]) -> Index:
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        return build_index(self.run, self.steps(), self.extent(), folder, kinds)

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


@dataclass(frozen=True)
class Entry:
    """A run in the list: its manifests, the first started one first; or why it cannot be opened."""

    name: str
    manifests: list[Manifest]
    problem: str = ""


class Library:
    """The runs and studies of a directory, or one of them. Raises RunError when there is none. Use it in a `with`
    block: it removes its scratch files at the end."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        if not self._paths() and not self._studies():
            raise RunError(f"no run in {directory}/; record one with: tracekit record -- python your_script.py")
        self._scratch = Path(tempfile.mkdtemp(prefix="tracekit-dashboard-"))
        # Apart, because who prepares a run waits for its index.
        self._builders = ThreadPoolExecutor(2, thread_name_prefix="index")
        self._preparing = ThreadPoolExecutor(1, thread_name_prefix="prepare")
        self._open: dict[str, tuple[Hashable, OpenRun]] = {}
        self._one_at_a_time = Lock()

    def __enter__(self) -> "Library":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pool in (self._builders, self._preparing):
            pool.shutdown(wait=False, cancel_futures=True)
        # Under another name first: an index that is still being made would put files into folders just emptied.
        leaving = self._scratch.rename(f"{self._scratch}-leaving")
        # Who had found the folder under its old name may still put one into it: then it is not empty.
        for _ in range(_IN_FLIGHT):
            shutil.rmtree(leaving, ignore_errors=True)
            if not leaving.exists():
                break

    def _paths(self) -> dict[str, Path]:
        """The runs by name, newest first. Only these can be asked for: a name in a URL is never made into a path."""
        directory = Path(self._directory)
        paths = [directory.resolve()] if is_run(directory) else list_runs(directory)
        return {path.name: path for path in paths}

    def _studies(self) -> dict[str, Path]:
        return study_paths(Path(self._directory))

    def names(self) -> list[str]:
        return list(self._paths())

    def newest(self) -> str:
        """The name of the newest run. Raises RunError when there are only studies."""
        names = self.names()
        if not names:
            raise RunError(f"{self._directory}/ holds studies only; open one on the page Runs")
        return names[0]

    def study_names(self) -> list[str]:
        return list(self._studies())

    def study_entries(self) -> list[StudyEntry]:
        """All studies, newest first."""
        return study_entries(self._studies())

    def study(self, name: str) -> tuple[Study, str | None]:
        """A study by its name, and what the run is called that its settings come from. Raises RunError when there is no
        such study."""
        path = self._studies().get(name)
        if path is None:
            raise RunError(f"no study of this name in {self._directory}/")
        study = Study.load(path)
        return study, explored_run(name, path, study)

    def entries(self) -> list[Entry]:
        """All runs, newest first."""
        entries = []
        for name, path in self._paths().items():
            try:
                entries.append(Entry(name, open_run(path).manifests))
            except RunError as error:
                entries.append(Entry(name, [], str(error)))
        return entries

    def open(self, name: str) -> OpenRun:
        """A run by its name, one inside a study as `<study>/<run>`; opened anew when its files have changed. Raises
        RunError when there is no such run."""
        path = self._paths().get(name) or runs_inside(self._studies()).get(name)
        if path is None:
            raise RunError(f"no run of this name in {self._directory}/")
        state = _state(path)
        with self._one_at_a_time:
            known = self._open.pop(name, None)
            if known is not None and known[0] != state:
                known[1].close()
                known = None
            if known is None:
                known = state, OpenRun(name, open_run(path), Path(tempfile.mkdtemp(dir=self._scratch)), self._builders)
            self._open[name] = known  # the last one used goes to the end
            while len(self._open) > _OPEN:
                _, forgotten = self._open.pop(next(iter(self._open)))
                forgotten.close()
        return known[1]

    def warm(self, name: str | None = None) -> None:
        """Begin in the background to make what the first look at a run needs; without a name, the newest."""

        def make() -> None:
            with suppress(TracekitError):  # the page that shows the run will say it
                opened = self.open(name or self.newest())
                opened.index()
                opened.report()

        self._preparing.submit(make)


def _kept_report(run: Run) -> Report | None:
    """The report in findings.json; None when there is none, the run's files are newer, or another version wrote it."""
    file = run.path / _FINDINGS
    try:
        written = file.stat().st_mtime_ns
        if any(_stamp(other)[1] > written for other in _files(run.path)):
            return None
        report = msgspec.json.decode(file.read_bytes(), type=Report)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    # One that was moved since names commands that do not work any more.
    is_here = os.path.abspath(report.path) == os.path.abspath(run.path)
    return report if report.schema == REPORT_VERSION and is_here else None


def _files(path: Path) -> list[Path]:
    return [*path.glob("manifest/*.json"), *path.glob("tables/*/*.parquet"), *path.glob(f"{PROBE}/*.json")]


def _state(path: Path) -> Hashable:
    """What changes when the files of a run do, or what was found of it: their names, sizes and times."""
    return tuple(sorted((str(file), *_stamp(file)) for file in [*_files(path), path / _FINDINGS]))


def _stamp(file: Path) -> tuple[int, int]:
    try:
        facts = file.stat()
    except FileNotFoundError:
        return 0, 0  # compacted away since
    return facts.st_size, facts.st_mtime_ns
