"""Reading what recorded processes leave in the spool folder; the files are described in `wire`."""

import json
import os
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tracekit.record.wire import (
    NAME_LENGTH,
    RECORD,
    RECORD_FIELDS,
    RECORD_FORMATS,
    WORKER_BEGUN,
    WORKERS_HEAD,
    WORKERS_RECORDS,
    WorkersLayout,
)
from tracekit.settings.inside import WRAPPED_MODELS

_RECORD_TYPE = np.dtype({"names": RECORD_FIELDS, "formats": RECORD_FORMATS})
LOST = "?"  # a name that is not to be found
# One call takes at most 16 MiB of one process, so that memory stays bounded however far behind we are.
_MOST_SEGMENTS_AT_ONCE = 16


@dataclass
class WorkersFile:
    """Where the workers of a loader begin that are forked together; not all of them may be there yet."""

    path: Path
    layout: WorkersLayout
    facts: dict[str, Any]  # that they have in common
    unmet: set[int]
    unread: set[int]

    @classmethod
    def open(cls, path: Path) -> "WorkersFile | None":
        """None where it is not there in full yet."""
        try:
            with path.open("rb") as file:
                layout = WorkersLayout(*WORKERS_HEAD.unpack(file.read(WORKERS_HEAD.size)))
                if not layout.length or layout.segments > os.fstat(file.fileno()).st_size:
                    return None
                facts = json.loads(file.read(layout.length))
        except (OSError, ValueError, struct.error, RecursionError):
            return None
        workers = range(layout.workers)
        return cls(path, layout, facts, set(workers), set(workers)) if isinstance(facts, dict) else None

    def meet(self) -> "list[Spool]":
        """The spools of those that have begun since the last call."""
        if not self.unmet:
            return []
        try:
            with self.path.open("rb") as file:
                file.seek(self.layout.begun)
                data = file.read(self.layout.workers * WORKER_BEGUN.size)
                data = data[: len(data) // WORKER_BEGUN.size * WORKER_BEGUN.size]  # of one that somebody cut short
        except OSError:
            return []
        met = []
        for worker, (pid, parent, start) in enumerate(WORKER_BEGUN.iter_unpack(data)):
            if worker in self.unmet and start:
                self.unmet.remove(worker)
                facts = {**self.facts, "pid": pid, "parent": parent, "start": start, "worker": worker}
                met.append(Spool(self.path.parent, f"{pid}-{start:x}", facts, began_in=self))
        return met

    def segment(self, worker: int, offset: int) -> np.ndarray:
        """What a worker began with, from that offset on, committed or not; nothing where it was read and cut off."""
        count = WORKERS_RECORDS - offset // RECORD.size
        try:
            return np.fromfile(self.path, dtype=_RECORD_TYPE, offset=self.layout.segment(worker) + offset, count=count)
        except OSError:
            return np.empty(0, dtype=_RECORD_TYPE)

    def forget(self, worker: int) -> None:
        """All that this worker began with has been read. When that is so of all, only who they were is kept, in another
        file: whoever lives on, although he seemed to have ended, has the old one mapped, and would not survive to write
        where it ends no more."""
        self.unread.discard(worker)
        if not self.unread:
            with suppress(OSError):  # it takes its space until the end, or is gone
                kept = self.path.with_suffix(".kept")
                with self.path.open("rb") as file:
                    kept.write_bytes(file.read(self.layout.segments))
                kept.replace(self.path)


@dataclass
class Spool:
    """The files of one process. `segment` and `offset` say where reading goes on."""

    folder: Path
    stem: str
    facts: dict[str, Any]
    process: int = -1
    names: list[str] = field(default_factory=list)
    segment: int = 0
    offset: int = 0
    began_in: WorkersFile | None = None  # its segment 0 is there
    _names_read: int = 0

    @property
    def pid(self) -> int:
        return int(self.facts["pid"])

    def read(self, ended: bool) -> tuple[np.ndarray, int, int]:
        """The committed records not read yet, and the segment and offset behind them.

        While the process lives, reading stops at the first record that is not committed: it may be under way. Such
        holes are skipped when the process has ended, or has since filled a whole further segment: the write was cut
        short by an exception. One call takes a bounded number of records.
        """
        batches: list[np.ndarray] = []
        segment, offset = self.segment, self.offset
        while len(batches) < _MOST_SEGMENTS_AT_ONCE:
            # Looked for before reading: a segment that fills up meanwhile is taken for the open one that we read.
            is_full, is_settled = (self._path(segment + further).exists() for further in (1, 2))
            try:
                data = self._records(segment, offset)
            except OSError:
                break
            holes = np.flatnonzero(data["kind"] == 0)
            if ended or is_settled or (is_full and not len(holes)):
                batches.append(data[data["kind"] != 0])
                segment, offset = segment + 1, 0
            else:
                committed = int(holes[0]) if len(holes) else len(data)
                batches.append(data[:committed])
                offset += committed * RECORD.size
                break
        self._read_names()
        return np.concatenate(batches) if batches else np.empty(0, dtype=_RECORD_TYPE), segment, offset

    def _records(self, segment: int, offset: int) -> np.ndarray:
        """Those of a segment, from an offset on, committed or not. Raises OSError where it is not there."""
        if segment == 0 and self.began_in is not None:
            return self.began_in.segment(self.facts["worker"], offset)
        return np.fromfile(self._path(segment), dtype=_RECORD_TYPE, offset=offset)

    def entered(self) -> np.ndarray:
        """The communication that the process came to last, a record or none; to be converted with its names."""
        self._read_names()
        try:
            data = np.fromfile(self.folder / f"{self.stem}.entered", dtype=_RECORD_TYPE)
        except OSError:
            return np.empty(0, dtype=_RECORD_TYPE)
        return data[data["kind"] != 0]

    def go_on_from(self, segment: int, offset: int) -> None:
        """Forget what lies before: its segments are deleted."""
        for number in range(self.segment, segment):
            if number == 0 and self.began_in is not None:
                self.began_in.forget(self.facts["worker"])
            else:
                self._path(number).unlink(missing_ok=True)
        self.segment, self.offset = segment, offset

    def has_more(self) -> bool:
        """Whether there is a segment to go on with."""
        return (self.segment == 0 and self.began_in is not None) or self._path(self.segment).exists()

    def forget_names(self) -> None:
        """Until they are read again: they are for converting records alone."""
        self.names, self._names_read = [], 0

    def _path(self, segment: int) -> Path:
        return self.folder / f"{self.stem}.{segment:06d}.spool"

    def window(self, number: int) -> Path:
        """The raw trace of a profiler window."""
        return self.folder / f"{self.stem}.{number:06d}.window"

    def _read_names(self) -> None:
        """Take in the names that were added since. A forked process has its parent's, and does not write them again."""
        if not self.names:
            for stem, count in self.facts.get("names_of", []):
                names = _names_in(self.folder / f"{stem}.names", 0)[0]
                self.names += [*names, *[LOST] * count][: count - len(self.names)]
        fresh, self._names_read = _names_in(self.folder / f"{self.stem}.names", self._names_read)
        self.names += fresh

    def status(self) -> dict[str, Any]:
        """The last status that the process wrote, with what it said when it was forked; empty when it said nothing."""
        status = _read_json(self.folder / f"{self.stem}.status") or {}
        if "worker" in self.facts:
            status["facts"] = {"worker": self.facts["worker"], **status.get("facts", {})}
        return status

    def failure(self) -> str | None:
        """Why the process could not be recorded at all."""
        try:
            return (self.folder / f"{self.stem}.failure").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None


class SpoolFolder:
    """The spool folder of one recording; finds processes as they announce themselves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spools: dict[str, Spool] = {}
        # The stems of those that had segments when `discover` was called last, and of those that communicate.
        self.in_segments: set[str] = set()
        self._communicate: set[str] = set()
        self._workers: dict[str, WorkersFile] = {}

    def discover(self) -> list[Spool]:
        """Spools of processes that announced themselves since the last call, in the order of their start."""
        fresh: list[Spool] = []
        self.in_segments = set()
        for name in os.listdir(self.folder):
            stem, _, kind = name.rpartition(".")
            if kind == "process" and stem not in self.spools:
                facts = _read_json(self.folder / name)
                if facts and all(isinstance(facts.get(number), int) for number in ("pid", "parent", "start")):
                    fresh.append(Spool(self.folder, stem, facts))
            elif kind == "spool":
                self.in_segments.add(stem.partition(".")[0])
            elif kind == "entered":
                self._communicate.add(stem)
            elif kind == "workers":
                fresh += self._began_in(name)
        fresh.sort(key=lambda spool: (spool.facts["start"], spool.stem))
        self.spools.update({spool.stem: spool for spool in fresh})
        return fresh

    def that_communicate(self) -> list[Spool]:
        """Those of processes that say what communication they came to last."""
        return [self.spools[stem] for stem in sorted(self._communicate & self.spools.keys())]

    def _began_in(self, name: str) -> list[Spool]:
        """The workers that have begun in this file since the last call."""
        file = self._workers.get(name) or WorkersFile.open(self.folder / name)
        if file is None:
            return []
        self._workers[name] = file
        return file.meet()


def settings_taken(status: dict[str, Any]) -> set[str]:
    """The names under which the settings stand that the loaders of a process were given, and its wrapped models, by its
    status."""
    facts = status.get("facts", {})
    loaders = facts.get("loaders")
    told = loaders.values() if isinstance(loaders, dict) else ()
    names = {str(each["settings"]) for each in told if isinstance(each, dict) and "settings" in each}
    return names | ({WRAPPED_MODELS} if WRAPPED_MODELS in facts else set())


def _names_in(path: Path, offset: int) -> tuple[list[str], int]:
    """The names in a file behind an offset, and where the next one will stand."""
    names: list[str] = []
    try:
        data = path.read_bytes()
    except OSError:
        return names, offset
    while offset + NAME_LENGTH.size <= len(data):
        (length,) = NAME_LENGTH.unpack_from(data, offset)
        start = offset + NAME_LENGTH.size
        if start + length > len(data):
            break
        names.append(data[start : start + length].decode("utf-8", "replace"))
        offset = start + length
    return names, offset


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
