"""What the machine offers a program: CPUs, quota, GPUs. A few milliseconds, standard library and no torch."""

import math
import os
import resource
from collections.abc import Mapping
from typing import Any

from tracekit.record import topology
from tracekit.record.cgroup import cpu_quota, free_memory
from tracekit.record.nvml import Nvml
from tracekit.run.manifest import CPU, Memory
from tracekit.settings.affinity import choose_cpus, layouts_to_try
from tracekit.settings.catalogue import SettingsError
from tracekit.settings.exploration import thread_grid
from tracekit.settings.inside import mismatch


def describe_cpu() -> CPU:
    """The CPUs that a program started from here can use.

    Physical cores, sockets and NUMA nodes are those that the affinity allows; 0 where the kernel does not tell.
    """
    allowed = topology.affinity()
    cores = topology.core_leaders(allowed)
    return CPU(
        model=topology.cpu_model(),
        logical=os.cpu_count() or len(allowed),
        affinity=allowed,
        physical_cores=len(cores),
        sockets=topology.sockets(cores),
        numa_nodes=topology.numa_nodes(allowed),
        quota=cpu_quota(),
    )


def describe_memory() -> Memory:
    """The memory that a program started from here can still have."""
    limit, there = free_memory(), _available()
    known = [each for each in (limit, there) if each is not None]
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Memory(min(known, default=None), _shared(), None if files == resource.RLIM_INFINITY else files)


def _shared() -> int | None:
    """What /dev/shm has room for, bytes."""
    try:
        shared = os.statvfs("/dev/shm")
    except FileNotFoundError:
        return 0
    except OSError:
        return None
    return shared.f_bavail * shared.f_frsize


def _available() -> int | None:
    """MemAvailable of proc_meminfo(5), bytes."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError, IndexError):
        return None


def thread_budget(cpu: CPU) -> int:
    """How many CPUs a job may keep busy at once: those its affinity allows, and no more than its quota grants.

    A quota that is not whole is rounded up: with a quota of 2.5, three threads get all of it and are halted for a sixth
    of each period, while two leave a fifth of it unused whatever they do.
    """
    return cpu.allowed if cpu.quota is None else max(1, min(cpu.allowed, math.ceil(cpu.quota)))


def counts_here() -> list[int]:
    """The thread counts worth trying for a process started from here. Raises TracekitError where there is one CPU."""
    cpu = describe_cpu()
    return thread_grid(thread_budget(cpu), cpu.physical_cores)


def cpus_for(settings: Mapping[str, Any]) -> list[int] | None:
    """The CPUs that a setting `threads.affinity` means here; None without one. Raises SettingsError."""
    if "threads.affinity" not in settings:
        return None
    allowed = topology.affinity()
    nodes = topology.cores_by_node(allowed)
    return choose_cpus(settings["threads.affinity"], settings.get("threads.intra_op", len(allowed)), nodes, allowed)


def layouts_here(threads: int) -> list[str]:
    """The values of `threads.affinity` worth trying with so many threads: none on a machine of one node and no siblings
    on its cores, whose CPUs are all alike."""
    allowed = topology.affinity()
    nodes = topology.cores_by_node(allowed)
    alike = len(nodes) < 2 and sum(map(len, nodes)) in (0, len(allowed))
    return [] if alike else layouts_to_try(threads, nodes, allowed)


def refuse_elsewhere(settings: Mapping[str, Any]) -> None:
    """Raise SettingsError when the settings hold a plan that was measured on another machine, or with other CPUs."""
    cpu = describe_cpu()
    here = {"cpu": cpu.model, "affinity": topology.format_cpu_list(cpu.affinity)}
    here["quota"] = "none" if cpu.quota is None else f"{cpu.quota:g}"
    problem = mismatch(settings, here)
    if problem:
        raise SettingsError(f"the thread plan does not hold here: {problem}")


def gpus() -> list[str]:
    """The names of the GPUs that the NVIDIA driver shows, in its order; [] without driver."""
    try:
        nvml = Nvml()
        try:
            return [nvml.name(index) for index in range(len(nvml))]
        finally:
            nvml.close()
    except OSError:
        return []
