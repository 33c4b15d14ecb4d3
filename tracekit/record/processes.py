"""The processes of a run: their numbers, roles and life spans, as far as they announced themselves or were seen."""

import contextlib
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from tracekit.record.pid_namespaces import NOT_SHOWN, OwnNumbers, own_numbers, shown, shown_as
from tracekit.record.spools import Spool, SpoolFolder
from tracekit.record.tree import parent_of
from tracekit.run.files import in_utf8
from tracekit.run.folder import process_started
from tracekit.run.schema import TABLES

# What launchers say of a rank's place on its node: torchrun, Slurm, Open MPI, MPICH and Intel MPI.
_LOCAL = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_DIGITS_OF_A_COUNT = 10  # what fits the tables' int32


@dataclass
class Process:
    """One process, by its number in the run."""

    number: int
    pid: int  # under which /proc shows it, as of all pids here
    parent_pid: int
    started: int  # CLOCK_MONOTONIC ns, as are all times here
    ended: int | None = None
    ticks: int | None = None  # its start in clock ticks: tells it from a later process with the same pid
    command: list[str] = field(default_factory=list)
    stem: str | None = None  # of its spool; None for a process that did not announce itself
    own_numbers: OwnNumbers | None = None  # where it has a PID namespace of its own, as in a container

    @property
    def own_pid(self) -> int:
        """Its pid as itself and its records say."""
        return self.pid if self.own_numbers is None else self.own_numbers.pid

    def is_alive(self) -> bool:
        if self.ended is not None or self.ticks is None:
            return False
        try:
            return process_started(self.pid) == self.ticks
        except OSError:  # taken for ended it would lose what it goes on to record
            return True


class Processes:
    """All processes of one recording on this host, by number; `known` are those of a ledger."""

    def __init__(self, spools: SpoolFolder, root_pid: int | None, known: list[Process] | None = None) -> None:
        self._spools = spools
        self._lock = threading.Lock()  # one thread meets processes in the tree, another those that announce themselves
        self.all = list(known or [])
        self._known = {process.stem: process for process in self.all}
        self._last = {process.pid: process for process in self.all}  # of each pid: those before it have ended
        if root_pid is not None and not self.all:
            self._add(root_pid, shown(os.getpid()), time.perf_counter_ns())

    def _add(self, pid: int, parent: int, started: int) -> Process:
        process = Process(len(self.all), pid, parent, started)
        with contextlib.suppress(OSError):
            process.ticks = process_started(pid)
        self.all.append(process)
        self._last[pid] = process
        return process

    def welcome(self) -> None:
        """Take in the processes that announced themselves since the last call."""
        with self._lock:
            self._take_in(self._spools.discover())

    def _take_in(self, spools: list[Spool]) -> None:
        for spool in spools:
            spool.process = (self._known.get(spool.stem) or self._announced(spool)).number

    def _announced(self, spool: Spool) -> Process:
        own, started = own_numbers(spool.facts), spool.facts["start"]
        pid = spool.pid if own is None else shown_as(own)
        parent = spool.facts["parent"] if own is None else parent_of(pid)
        process = self._living_as(pid)
        if process is None or process.stem is not None:
            if process is not None and pid != NOT_SHOWN:  # it is the same after an execv: what it was has ended
                process.ended = started
            process = self._add(pid, parent, started)
        process.stem, process.started, process.parent_pid, process.own_numbers = spool.stem, started, parent, own
        process.command = _readable(spool.facts.get("command", []))
        return process

    def see(self, pid: int, parent: int, now: int) -> None:
        """Note a process that was met in the process tree, whether or not it announces itself."""
        with self._lock:
            if self._living_as(pid) is None:
                self._add(pid, parent, now).command = _readable(_command_of(pid))

    def _living_as(self, pid: int) -> Process | None:
        process = self._last.get(pid)
        return process if process is not None and process.ended is None else None

    def check_alive(self, now: int) -> None:
        """Note which processes have ended."""
        for process in self.all:
            if process.ended is None and not process.is_alive():
                process.ended = now

    def of(self, spool: Spool) -> Process:
        return self.all[spool.process]

    def rank_of(self, process: Process) -> tuple[int, int, int]:
        """The rank of a process that communicates, its attempt and how many ranks there are; -1 what is not known."""
        told = self._identity(process, None, False)
        return told["rank"], told["attempt"], told["world_size"]

    def living(self) -> list[tuple[int, int]]:
        """(number, pid) of the processes that live."""
        return [(process.number, process.pid) for process in self.all if process.ended is None]

    def table(self, host: str, clock_offset_ns: int, now: int) -> pa.Table:
        """The rows of the `processes` table."""
        with self._lock:
            everybody = list(self.all)
        parents = _parents(everybody)
        launchers = {
            parents[process.number].number
            for process in everybody
            if process.number in parents and "LOCAL_RANK" in self._environment(process)
        }
        roles = {
            process.number: self._identity(process, parents.get(process.number), process.number in launchers)
            for process in everybody
        }
        _number_on_node(
            [
                roles[process.number]
                for process in everybody
                if roles[process.number]["rank"] >= 0
                and _number(self._environment(process).get("LOCAL_RANK", "")) < 0  # it is each one's own
            ]
        )
        rows = []
        for process in everybody:
            identity = roles[process.number]
            parent = parents.get(process.number)
            rows.append(
                {
                    "process": process.number,
                    "thread": process.own_pid,
                    "start_ns": process.started + clock_offset_ns,
                    "duration_ns": max((process.ended or now) - process.started, 0),
                    "pid": process.own_pid,
                    "parent": -1 if parent is None else parent.number,
                    "host": host,
                    "command": " ".join(process.command),
                    "recorded": process.stem is not None,
                    "clock_offset_ns": clock_offset_ns,
                    "clock_drift_ppm": 0.0,
                    **identity,
                }
            )
        return pa.Table.from_pylist(rows, schema=TABLES["processes"])

    def _identity(self, process: Process, parent: Process | None, is_launcher: bool) -> dict[str, Any]:
        facts = self._facts(process)
        environment = self._environment(process)
        rank = facts.get("rank", -1)
        if rank == -1 and "RANK" in environment and "torch" in facts:
            # Not that of its parent, nor one that a launcher was given for its node, whose children have their own.
            is_inherited = parent is not None and self._environment(parent).get("RANK") == environment["RANK"]
            if not is_inherited and ("LOCAL_RANK" in environment or not is_launcher):
                rank = _number(environment["RANK"])
        worker = facts.get("worker", -1)
        if worker >= 0:
            role = f"loader worker {worker}"
        elif rank >= 0:
            role = f"rank {rank}"
        else:
            role = "main" if process.pid == self.all[0].pid else "helper"
        return {
            "role": role,
            "rank": rank,
            "worker": worker,
            "local_rank": next((_number(environment[name]) for name in _LOCAL if name in environment), -1)
            if rank >= 0
            else -1,
            "world_size": facts.get("world_size", _number(environment.get("WORLD_SIZE", "-1"))) if rank >= 0 else -1,
            "attempt": max(_number(environment.get("TORCHELASTIC_RESTART_COUNT", "0")), 0),
        }

    def _spool(self, process: Process) -> Spool | None:
        return self._spools.spools.get(process.stem) if process.stem else None

    def _facts(self, process: Process) -> dict[str, Any]:
        spool = self._spool(process)
        facts = spool.status().get("facts", {}) if spool else {}
        return {name: fact for name, fact in facts.items() if name == "torch" or isinstance(fact, int)}

    def _environment(self, process: Process) -> dict[str, str]:
        spool = self._spool(process)
        return dict(spool.facts.get("environment", {})) if spool else {}


def _parents(processes: list[Process]) -> dict[int, Process]:
    """The parent of each process that has one here, by number: of several with its pid, one after another, the last
    that started before the child.

    One that was only seen may have started before it was: it is better than none.
    """
    met: dict[tuple[int | None, int], list[Process]] = {}  # by the number in /proc, or a namespace and the one there
    for process in processes:
        own = process.own_numbers
        for key in [(None, process.pid), *([(own.namespace, own.pid)] if own else [])]:
            met.setdefault(key, []).append(process)
    parents = {}
    for process in processes:
        own = process.own_numbers
        candidates = met.get((None, process.parent_pid), []) if process.parent_pid != NOT_SHOWN else []
        candidates = candidates + (met.get((own.namespace, own.parent), []) if own else [])
        found = [other for other in candidates if other is not process and _is_child(process, other)]
        if found:
            parents[process.number] = max(found, key=lambda other: (other.started <= process.started, other.number))
    return parents


def _is_child(process: Process, parent: Process) -> bool:
    """Whether one has the other's pid for its parent's, by what they say themselves where they have a namespace of
    their own: /proc shows none of who has ended."""
    own, other = process.own_numbers, parent.own_numbers
    if own is not None and other is not None and own.namespace == other.namespace:
        return own.parent == other.pid
    return process.parent_pid == parent.pid != NOT_SHOWN


def _command_of(pid: int) -> list[str]:
    """The words of a living process's command; [] of one that is gone."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return [os.fsdecode(word) for word in words.removesuffix(b"\0").split(b"\0")] if words else []


def _readable(words: list[Any]) -> list[str]:
    """Command lines may hold any bytes, which Python shows as lone surrogates and no file takes."""
    return [in_utf8(str(word)) for word in words]


def _number(text: str) -> int:
    """A count that torchrun or a user put into the environment; -1 for what can be none."""
    return int(text) if text.isdecimal() and len(text) < _DIGITS_OF_A_COUNT else -1


def _number_on_node(ranks: list[dict[str, Any]]) -> None:
    """The place of each rank on its node, where no launcher has said it, or only that of a task that has started all of
    them (`mp.spawn` in a job of Slurm): in their order, of those that were started together. Workers have their rank's.
    """
    together: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for each in ranks:
        if each["worker"] < 0:
            together.setdefault((each["attempt"], each["world_size"]), []).append(each)
    found = {}
    for members in together.values():
        places = {rank: place for place, rank in enumerate(sorted({each["rank"] for each in members}))}
        if len(places) > len({each["local_rank"] for each in members}):
            for each in members:
                each["local_rank"] = found[each["attempt"], each["rank"]] = places[each["rank"]]
    for each in ranks:
        if each["worker"] >= 0:
            each["local_rank"] = found.get((each["attempt"], each["rank"]), each["local_rank"])
