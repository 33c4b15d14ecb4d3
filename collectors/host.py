"""Counters of the whole machine and of the job's cgroup: CPU and steal, pressure, quota, disks, network."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tracekit.record.cgroup import find_place
from tracekit.record.rungs import Rung

from .readings import Fields, Raw, Reader

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_SECTOR_BYTES = 512  # of /proc/diskstats, whatever the disk's own sectors are (Documentation/admin-guide/iostats.rst)
_FEW_LINES, _MANY_LINES = 4096, 1 << 18  # how much to read: /proc/stat grows with CPUs and interrupts
# Devices that a machine has by the dozen, most of them never used.
_MOSTLY_UNUSED = ("loop", "ram", "zram")


def parse_stat(text: str, cpus: set[int]) -> dict[str, int]:
    """Busy, waiting and stolen time from `/proc/stat` (proc(5)): of all CPUs, and of each of `cpus`."""
    values: dict[str, int] = {}
    for line in text.splitlines():
        name, *fields = line.split()
        if not name.startswith("cpu"):
            break
        user, nice, system, _idle, waiting, interrupts, soft_interrupts, stolen = (int(word) for word in fields[:8])
        busy = user + nice + system + interrupts + soft_interrupts  # guests are part of `user`
        if name == "cpu":
            values["host.cpu_busy_ns"] = busy * _TICK_NS
            values["host.iowait_ns"] = waiting * _TICK_NS
            values["host.steal_ns"] = stolen * _TICK_NS
        elif int(name[3:]) in cpus:
            values[f"cpu.{name[3:]}.busy_ns"] = busy * _TICK_NS
            values[f"cpu.{name[3:]}.steal_ns"] = stolen * _TICK_NS
    return values


def parse_pressure(resource: str, text: str) -> dict[str, int]:
    """The totals of a `/proc/pressure/<resource>`. `full` of the CPU means nothing for a whole machine: always 0."""
    values = {}
    for line in text.splitlines():
        word, *fields = line.split()
        if (resource, word) != ("cpu", "full"):
            values[f"psi.{resource}.{word}_ns"] = int(dict(field.split("=") for field in fields)["total"]) * 1000
    return values


def parse_cpu_stat(text: str) -> dict[str, int]:
    """Use and throttling from a cgroup's `cpu.stat`, of version 1 or 2; what the file does not have is not there."""
    units = {
        "usage_usec": ("cgroup.cpu_ns", 1000),
        "nr_periods": ("cgroup.periods", 1),
        "nr_throttled": ("cgroup.throttled_periods", 1),
        "throttled_usec": ("cgroup.throttled_ns", 1000),
        "throttled_time": ("cgroup.throttled_ns", 1),
    }
    pairs = (line.split() for line in text.splitlines())
    return {units[key][0]: int(value) * units[key][1] for key, value in pairs if key in units}


def parse_disks(text: str, disks: set[str]) -> dict[str, int]:
    """Bytes moved and time busy of `disks`, from `/proc/diskstats`."""
    values = {}
    for line in text.splitlines():
        _, _, name, *fields = line.split()
        reads, _, sectors_read, _, writes, _, sectors_written, _, _, busy_ms = (int(field) for field in fields[:10])
        if name in disks and (reads or writes or not name.startswith(_MOSTLY_UNUSED)):
            values[f"disk.{name}.read_bytes"] = sectors_read * _SECTOR_BYTES
            values[f"disk.{name}.written_bytes"] = sectors_written * _SECTOR_BYTES
            values[f"disk.{name}.busy_ns"] = busy_ms * 1_000_000
    return values


def parse_network(text: str) -> dict[str, int]:
    """Bytes received and sent by interface, from `/proc/net/dev`."""
    values = {}
    for line in text.splitlines()[2:]:
        name, _, fields = line.rpartition(":")
        numbers = fields.split()
        values[f"net.{name.strip()}.received_bytes"] = int(numbers[0])
        values[f"net.{name.strip()}.sent_bytes"] = int(numbers[8])
    return values


class Host:
    """The machine's readers, and the rungs of them that are there. `process`: whose cgroup, network and CPUs."""

    def __init__(self, process: int, cpus: set[int], proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> None:
        self.rungs: list[Rung] = []
        self.often: list[Reader] = []
        self.seldom: list[Reader] = []
        own = proc / str(process)
        self._add_pressure(proc / "pressure")
        self._add_cgroup(own)
        disks = _whole_disks(sys / "block")
        self._add("CPU busy and steal time", proc / "stat", "/proc/stat", lambda text: parse_stat(text, cpus))
        self._add("disks", proc / "diskstats", "/proc/diskstats", lambda text: parse_disks(text, disks))
        self._add("network interfaces", own / "net" / "dev", "/proc/net/dev", parse_network)

    def close(self) -> None:
        for reader in self.often + self.seldom:
            reader.close()

    def _add(self, rung: str, file: Path, source: str, parse: Callable[[str], dict[str, int]]) -> None:
        try:
            self.seldom.append(_text_reader(file, source, parse, _MANY_LINES))
            self.rungs.append(Rung(rung, True))
        except OSError as error:
            self.rungs.append(Rung(rung, False, f"{source}: {error.strerror}"))

    def _add_pressure(self, folder: Path) -> None:
        name = "pressure (PSI)"
        try:
            for resource in ("cpu", "memory", "io"):
                parse = partial(parse_pressure, resource)
                self.often.append(_text_reader(folder / resource, "/proc/pressure", parse))
            self.rungs.append(Rung(name, True))
        except OSError as error:
            why = f"/proc/pressure: {error.strerror}"
            self.rungs.append(Rung(name, False, why, "a kernel since 4.20 with CONFIG_PSI, started with psi=1"))

    def _add_cgroup(self, process: Path) -> None:
        """The cgroup that is throttled, and its CPU time: one file in version 2, two controllers in version 1."""
        name = "cgroup CPU use and throttling"
        place = find_place("cpu", process)
        if place is None:
            self.rungs.append(Rung(name, False, "the process is in no cgroup that is mounted here"))
            return
        source = f"cgroup v{place.version}"
        try:
            self.often.append(_text_reader(place.limited_folder() / "cpu.stat", source, parse_cpu_stat))
            if place.version == 1:
                self._add_cpuacct(process, source)
        except OSError as error:
            self.rungs.append(Rung(name, False, f"{source} cpu.stat: {error.strerror}"))
            return
        quota = place.quota()
        limit = "no CPU quota is set, so nothing is throttled" if quota is None else f"the quota is {quota:g} CPUs"
        self.rungs.append(Rung(name, True, f"{source}; {limit}"))

    def _add_cpuacct(self, process: Path, source: str) -> None:
        place = find_place("cpuacct", process)
        if place is not None:
            usage = place.folder / "cpuacct.usage"
            self.often.append(_text_reader(usage, source, lambda text: {"cgroup.cpu_ns": int(text)}))


def _whole_disks(folder: Path) -> set[str]:
    """The disks, without their partitions, which would count everything twice."""
    try:
        return {name.replace("!", "/") for name in os.listdir(folder)}
    except OSError:
        return set()


def _text_reader(file: Path, source: str, parse: Callable[[str], dict[str, int]], size: int = _FEW_LINES) -> Reader:
    """A reader of a text file that is kept open. Raises OSError when it cannot be read."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    read = partial(os.pread, descriptor, size, 0)
    try:
        read()
    except OSError:
        os.close(descriptor)
        raise
    return Reader(Fields(source, partial(_parse_text, parse)), -1, 0, read, release=partial(os.close, descriptor))


def _parse_text(parse: Callable[[str], dict[str, int]], raw: Raw) -> dict[str, int]:
    assert isinstance(raw, bytes)
    return parse(raw.decode("utf-8", "replace"))
