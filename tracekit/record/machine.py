"""What the machine offers a program: CPUs, quota, GPUs. A few milliseconds, standard library and no torch."""

import math
import os

from tracekit.record import topology
from tracekit.record.cgroup import cpu_quota
from tracekit.record.nvml import Nvml
from tracekit.run.manifest import CPU


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


def thread_budget(cpu: CPU) -> int:
    """How many CPUs a job may keep busy at once: those its affinity allows, and no more than its quota grants.

    A quota that is not whole is rounded up: with a quota of 2.5, three threads get all of it and are halted for a sixth
    of each period, while two leave a fifth of it unused whatever they do.
    """
    allowed = len(cpu.affinity) or cpu.logical or 1
    return allowed if cpu.quota is None else max(1, min(allowed, math.ceil(cpu.quota)))


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
