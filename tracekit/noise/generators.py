"""The processes of some noises: started, told what to do, asked what they have done, and ended."""

import contextlib
import mmap
import os
import subprocess
import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from tracekit.noise.generator import ORDER, PLACE
from tracekit.noise.spec import ON_CPUS, NoiseError, Spec
from tracekit.record.launch import words_to_run

# A Python, numpy and a file of a hundred MiB on a busy node.
_READY_WITHIN_S = 60.0
_ENDS_WITHIN_S = 5.0
# numpy's own threads have nothing to do here.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass
class _Team:
    """The processes of noises that differ in their dose alone, from place `first` of the ledger on."""

    specs: list[Spec]
    first: int
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    on: list[Spec] = field(default_factory=list)
    counted: int = 0  # of what they have done, what is credited to a noise

    @property
    def largest(self) -> Spec:
        """The one that takes the most processes, and of these the largest."""
        return max(self.specs, key=lambda spec: (spec.processes, spec.dose))

    def shares(self) -> list[float]:
        """What each process is to do: as few CPUs as do, one after the other; else all alike."""
        rate, count = sum(spec.rate for spec in self.on), len(self.processes)
        if self.largest.kind.name not in ON_CPUS:
            return [rate / count] * count
        cpu = self.largest.kind.per_dose
        return [min(max(rate - number * cpu, 0.0), cpu) for number in range(count)]


class Generators:
    """The processes of some noises. All end when this does, and when the process that has it ends."""

    def __init__(self, specs: Sequence[Spec]) -> None:
        """Start them, all silent. Raises NoiseError where one cannot be made here."""
        self.specs = list(specs)
        self._teams: list[_Team] = []
        self._done = {spec.label: 0 for spec in specs}
        self._ledger = tempfile.TemporaryFile(prefix="tracekit-noise-")  # noqa: SIM115 closed with the rest
        try:
            places = 0
            for alike in _alike(specs):
                self._teams.append(team := _Team(alike, places))
                places += team.largest.processes
            self._ledger.truncate(PLACE.size * places)
            self._map = mmap.mmap(self._ledger.fileno(), 0)
            for team in self._teams:
                for number in range(team.largest.processes):
                    team.processes.append(self._start(team.largest, number, team.first + number))
            self._await_all(places)
        except BaseException:
            self.close()
            raise

    def _start(self, spec: Spec, number: int, place: int) -> subprocess.Popen[bytes]:
        descriptor = self._ledger.fileno()
        words = [*words_to_run("tracekit.noise.generator"), spec.label, str(number), str(place), str(descriptor)]
        return subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            pass_fds=[descriptor], env=os.environ | _ONE_THREAD,
        )  # fmt: skip

    def _await_all(self, places: int) -> None:
        deadline = time.monotonic() + _READY_WITHIN_S
        while not all(self._place(place)[1] for place in range(places)):
            for label, why in self.failed().items():
                raise NoiseError(f"noise {label}: {why}")
            if time.monotonic() > deadline:
                raise NoiseError(f"noise: its processes were not ready within {_READY_WITHIN_S:.0f} s; try again")
            time.sleep(0.01)

    def _place(self, place: int) -> tuple[int, int]:
        done, is_ready = PLACE.unpack_from(self._map, place * PLACE.size)
        return done, is_ready

    def set(self, on: Collection[str]) -> None:
        """Let the noises with these labels be on, and no others, at once."""
        self._credit()
        for team in self._teams:
            team.on = [spec for spec in team.specs if spec.label in on]
            for process, rate in zip(team.processes, team.shares(), strict=True):
                assert process.stdin is not None
                with contextlib.suppress(OSError):  # it has ended: `failed` says why
                    os.write(process.stdin.fileno(), ORDER.pack(rate))

    def done(self) -> dict[str, int]:
        """What each has done until now, or holds."""
        self._credit()
        return dict(self._done)

    @property
    def pids(self) -> list[int]:
        """Those of all processes."""
        return [process.pid for team in self._teams for process in team.processes]

    def work(self) -> int:
        """What all processes have done since they began, whatever it was."""
        return sum(self._place(team.first + n)[0] for team in self._teams for n in range(len(team.processes)))

    def _credit(self) -> None:
        """Credit what was done since the last time to the noises that were on."""
        for team in self._teams:
            done = sum(self._place(team.first + number)[0] for number in range(len(team.processes)))
            new = done - (team.counted if team.largest.kind.rate else 0)
            team.counted = done
            for spec in team.specs:
                rate = spec.rate / sum(each.rate for each in team.on) if spec in team.on else 0.0
                self._done[spec.label] = round(new * rate) + (self._done[spec.label] if spec.kind.rate else 0)

    def failed(self) -> dict[str, str]:
        """Those of which a process has ended, and why."""
        found: dict[str, str] = {}
        for team in self._teams:
            for process in team.processes:
                if process.poll() is not None and team.specs[0].label not in found:
                    found |= dict.fromkeys([spec.label for spec in team.specs], _why(process))
        return found

    def close(self) -> None:
        """End all processes."""
        everyone = [process for team in self._teams for process in team.processes]
        for process in everyone:
            for pipe in (process.stdin, process.stderr):
                if pipe is not None:
                    pipe.close()
        deadline = time.monotonic() + _ENDS_WITHIN_S
        for process in everyone:
            try:
                process.wait(max(deadline - time.monotonic(), 0.01))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._teams.clear()
        self._ledger.close()


def _alike(specs: Sequence[Spec]) -> list[list[Spec]]:
    teams: dict[Spec, list[Spec]] = {}
    for spec in specs:
        teams.setdefault(spec.without_dose(), []).append(spec)
    return list(teams.values())


def _why(process: subprocess.Popen[bytes]) -> str:
    assert process.stderr is not None
    lines = process.stderr.read().decode("utf-8", "replace").strip().splitlines() if process.returncode else []
    return lines[-1] if lines else f"one of its processes ended with code {process.returncode}"
