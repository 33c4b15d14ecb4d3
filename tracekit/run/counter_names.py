"""What every counter is: its meaning, its unit, and whether a row holds an increase or a level.

Names end in their unit. `*` stands for a device: a disk, a network interface, a GPU, a CPU; or for a
noise, as it was asked for. Standard library only.
"""

from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Counter:
    """One counter. `level`: a row's value held at the end of its interval; otherwise it is the increase during it."""

    name: str
    scope: str  # thread | process | machine: what `process` and `thread` of a row stand for
    unit: str  # ns | bytes | count | percent
    meaning: str
    level: bool = False


def _counter(name: str, scope: str, meaning: str, level: bool = False) -> Counter:
    suffix = name.rpartition("_")[2]
    return Counter(name, scope, suffix if suffix in ("ns", "bytes", "percent") else "count", meaning, level)


COUNTERS: tuple[Counter, ...] = (
    _counter("thread.cpu_ns", "thread", "time on a CPU"),
    _counter("thread.run_delay_ns", "thread", "time ready to run, waiting for a CPU"),
    _counter("thread.slices", "thread", "times put on a CPU"),
    _counter("thread.voluntary_switches", "thread", "times it gave up its CPU to wait for something"),
    _counter("thread.involuntary_switches", "thread", "times its CPU was taken away"),
    _counter("perf.task_clock_ns", "thread", "time on a CPU, from the moment of attaching"),
    _counter("perf.page_faults", "thread", "page faults"),
    _counter("perf.context_switches", "thread", "context switches"),
    _counter("perf.migrations", "thread", "moves from one CPU to another"),
    _counter("perf.cycles", "thread", "CPU cycles"),
    _counter("perf.instructions", "thread", "instructions retired"),
    _counter("perf.cache_misses", "thread", "misses of the last-level cache"),
    _counter("perf.branch_misses", "thread", "mispredicted branches"),
    # More than the sum of `thread.cpu_ns` where threads came and went between two looks, or ended unread.
    _counter("process.cpu_ns", "process", "CPU time of all threads, ended ones included"),
    _counter("process.user_ns", "process", "CPU time in user mode, in clock ticks"),
    _counter("process.system_ns", "process", "CPU time in the kernel, in clock ticks"),
    _counter("process.rss_bytes", "process", "resident memory", level=True),
    _counter("process.threads", "process", "threads alive", level=True),
    _counter("process.read_bytes", "process", "bytes fetched from storage"),
    _counter("process.written_bytes", "process", "bytes sent to storage"),
    _counter("process.read_call_bytes", "process", "bytes got by read calls, from caches, pipes and sockets too"),
    _counter("process.write_call_bytes", "process", "bytes given to write calls"),
    _counter("host.cpu_busy_ns", "machine", "CPU time spent by anyone, all CPUs together"),
    _counter("host.iowait_ns", "machine", "idle CPU time while storage was awaited"),
    _counter("host.steal_ns", "machine", "CPU time that the hypervisor gave to other machines"),
    _counter("cpu.*.busy_ns", "machine", "time this CPU was busy, for anyone"),
    _counter("cpu.*.steal_ns", "machine", "time this CPU was taken by the hypervisor"),
    _counter("psi.cpu.some_ns", "machine", "time in which some task waited for a CPU"),
    _counter("psi.memory.some_ns", "machine", "time in which some task waited for memory"),
    _counter("psi.memory.full_ns", "machine", "time in which all tasks waited for memory"),
    _counter("psi.io.some_ns", "machine", "time in which some task waited for storage"),
    _counter("psi.io.full_ns", "machine", "time in which all tasks waited for storage"),
    _counter("cgroup.cpu_ns", "machine", "CPU time of the job's cgroup"),
    _counter("cgroup.periods", "machine", "quota periods in which the cgroup ran"),
    _counter("cgroup.throttled_periods", "machine", "quota periods in which the cgroup was halted"),
    _counter("cgroup.throttled_ns", "machine", "time the cgroup was halted by its CPU quota"),
    _counter("disk.*.read_bytes", "machine", "bytes read from the disk"),
    _counter("disk.*.written_bytes", "machine", "bytes written to the disk"),
    _counter("disk.*.busy_ns", "machine", "time the disk had requests in flight"),
    _counter("net.*.received_bytes", "machine", "bytes received by the interface"),
    _counter("net.*.sent_bytes", "machine", "bytes sent by the interface"),
    _counter("noise.*.asked_ns", "machine", "CPU time that a noise was asked to spend"),
    _counter("noise.*.done_ns", "machine", "CPU time that it spent"),
    _counter("noise.*.asked_bytes", "machine", "bytes that a noise was asked to move"),
    _counter("noise.*.done_bytes", "machine", "bytes that it moved"),
    _counter("noise.*.asked_operations", "machine", "operations that a noise was asked for"),
    _counter("noise.*.done_operations", "machine", "operations that it did"),
    _counter("noise.*.wanted_bytes", "machine", "memory that a noise was asked to hold", level=True),
    _counter("noise.*.held_bytes", "machine", "memory that it held", level=True),
    _counter("gpu.*.utilisation_percent", "machine", "share of the time a kernel ran on the GPU", level=True),
    _counter("gpu.*.memory_bytes", "machine", "GPU memory in use", level=True),
)

_BY_NAME = {counter.name: counter for counter in COUNTERS}


@lru_cache(maxsize=4096)
def describe(name: str) -> Counter:
    """The counter a recorded name belongs to, its own name in place of the `*`. Raises KeyError for an unknown name."""
    exact = _BY_NAME.get(name)
    if exact is not None:
        return exact
    family, _, rest = name.partition(".")
    device, _, quantity = rest.rpartition(".")  # an interface may be called eth0.100
    found = _BY_NAME[f"{family}.*.{quantity}"] if device else _BY_NAME[name]
    return Counter(name, found.scope, found.unit, found.meaning, found.level)
