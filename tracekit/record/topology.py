"""Which CPUs there are and how they hang together, from /proc and /sys. `sys` and `cpuinfo` can be planted by tests."""

import os
import platform
from collections.abc import Iterable
from pathlib import Path

SYS = Path("/sys/devices/system")
CPUINFO = Path("/proc/cpuinfo")
# x86 and s390, POWER, and the two names ARM kernels have used; a current ARM server names no model at all.
_MODEL_KEYS = ("model name", "cpu", "Model", "Processor")


def parse_cpu_list(text: str) -> list[int]:
    """The numbers of a kernel list such as `0-3,8,10-11`, in order. Raises ValueError when it is not one."""
    numbers: list[int] = []
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            numbers += range(int(first), int(last or first) + 1)
    return numbers


def format_cpu_list(numbers: Iterable[int]) -> str:
    """The kernel's way of writing a set of CPUs: `0-3,8`."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def affinity() -> list[int]:
    """The CPUs this process may run on, in order."""
    return sorted(os.sched_getaffinity(0))


def cpu_model(cpuinfo: Path = CPUINFO) -> str:
    """The processor's name; the architecture where the kernel gives none."""
    try:
        with open(cpuinfo, "rb", buffering=0) as file:
            # The kernel makes only what is read: one page holds the first CPU, all of it takes long on many.
            head = file.read(4096).decode("utf-8", "replace")
    except OSError:
        head = ""
    pairs = (line.partition(":") for line in head.splitlines())
    values = {key.strip(): value.strip() for key, _, value in reversed([*pairs])}
    return next((values[key] for key in _MODEL_KEYS if values.get(key)), platform.machine())


def core_leaders(cpus: list[int], sys: Path = SYS) -> list[int]:
    """One CPU of each physical core that the CPUs lie on; [] where the kernel does not tell."""
    leaders: list[int] = []
    seen: set[int] = set()
    for cpu in cpus:
        if cpu in seen:
            continue
        siblings = _cpu_list(sys / f"cpu/cpu{cpu}/topology/thread_siblings_list")
        if not siblings:
            return []
        seen.update(siblings, [cpu])
        leaders.append(cpu)
    return leaders


def sockets(leaders: list[int], sys: Path = SYS) -> int:
    """How many sockets the cores (given by one CPU each) lie on; 0 where the kernel does not tell."""
    numbers = {_text(sys / f"cpu/cpu{cpu}/topology/physical_package_id") for cpu in leaders}
    return 0 if "" in numbers else len(numbers)


def numa_nodes(cpus: list[int], sys: Path = SYS) -> int:
    """How many NUMA nodes the CPUs lie on; 0 where the kernel does not tell."""
    allowed = set(cpus)
    return sum(not allowed.isdisjoint(_cpu_list(file)) for file in sys.glob("node/node*/cpulist"))


def cores_by_node(cpus: list[int], sys: Path = SYS) -> list[list[int]]:
    """One CPU of each physical core, by NUMA node; [] where the kernel does not tell."""
    leaders = core_leaders(cpus, sys)
    nodes = [_cpu_list(file) for file in sorted(sys.glob("node/node*/cpulist"))]
    found = [[cpu for cpu in leaders if cpu in node] for node in nodes]
    return [node for node in found if node] or ([leaders] if leaders else [])


def _cpu_list(file: Path) -> list[int]:
    try:
        return parse_cpu_list(_text(file))
    except ValueError:
        return []


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
