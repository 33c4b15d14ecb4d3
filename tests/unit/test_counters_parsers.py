"""The texts of /proc and cgroups as counters."""

import os

import pytest

from tracekit.collectors import host, procfs
from tracekit.run.counter_names import COUNTERS, describe

TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
HOSTILE = ["python", "a b", ") R 1 (", "((", "))", "\n\t%s", "1 2 3 4 5"]


def stat(name: str) -> bytes:
    """A /proc/<pid>/stat with the process's name, 70 and 8 ticks of CPU time, started 5000 ticks after boot."""
    fields = [
        "S",
        "1",
        "2",
        "3",
        "0",
        "-1",
        "4194560",
        "11",
        "0",
        "0",
        "0",
        "70",
        "8",
        "0",
        "0",
        "20",
        "0",
        "5",
        "0",
        "5000",
    ]
    return f"42 ({name}) {' '.join(fields)} 99 99\n".encode()


@pytest.mark.parametrize("name", HOSTILE)
def test_stat_whatever_the_name(name: str) -> None:
    assert procfs.parse_stat(stat(name)) == {"process.user_ns": 70 * TICK, "process.system_ns": 8 * TICK}
    assert procfs.parse_thread_stat(stat(name)) == {"thread.cpu_ns": 78 * TICK}
    now, boot = 10**18, 6000 * TICK
    assert procfs.parse_start_ns(stat(name), now, boot) == now - 1000 * TICK


def test_a_start_is_never_after_now() -> None:
    assert procfs.parse_start_ns(stat("x"), 10**18, 4999 * TICK) == 10**18


def test_schedstat_of_many_threads_at_once() -> None:
    decoded = procfs.SCHEDSTAT.decode([b"123 45 6\n", b"0 0 0", b"9223372036854775807 0 1\n"])
    assert decoded.value.tolist() == [123, 45, 6, 0, 0, 0, 2**63 - 1, 0, 1]
    assert decoded.reading.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_resident_memory_is_in_bytes() -> None:
    assert procfs.MEMORY.decode([b"900 25 7 1 0 80 0\n"]).value.tolist() == [25 * os.sysconf("SC_PAGE_SIZE")]


def test_io() -> None:
    text = b"rchar: 8258\nwchar: 12\nsyscr: 14\nsyscw: 2\nread_bytes: 4096\nwrite_bytes: 0\ncancelled_write_bytes: 0\n"
    assert procfs.parse_io(text) == {
        "process.read_bytes": 4096,
        "process.written_bytes": 0,
        "process.read_call_bytes": 8258,
        "process.write_call_bytes": 12,
    }


def test_switches_are_the_last_lines_whatever_the_name() -> None:
    text = b"Name:\tvoluntary_ctxt_switches: 9\nState:\tR\n"
    text += b"voluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t545\n"
    assert procfs.parse_switches(text) == {"thread.voluntary_switches": 150, "thread.involuntary_switches": 545}


def test_machine_cpu_time() -> None:
    text = (
        "cpu  100 10 50 900 7 1 2 30 100 0\ncpu0 60 0 25 400 3 0 1 10 0 0\ncpu1 40 10 25 500 4 1 1 20 0 0\nintr 1 2\n"
    )
    assert host.parse_stat(text, {1}) == {
        "host.cpu_busy_ns": 163 * TICK,
        "host.iowait_ns": 7 * TICK,
        "host.steal_ns": 30 * TICK,
        "cpu.1.busy_ns": 77 * TICK,
        "cpu.1.steal_ns": 20 * TICK,
    }


def test_pressure() -> None:
    text = "some avg10=0.03 avg60=0.18 avg300=0.49 total=7184082\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=12\n"
    assert host.parse_pressure("io", text) == {"psi.io.some_ns": 7184082000, "psi.io.full_ns": 12000}
    assert host.parse_pressure("cpu", text) == {"psi.cpu.some_ns": 7184082000}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("nr_periods 9\nnr_throttled 2\nthrottled_time 345\nnr_bursts 0\n", [9, 2, 345]),
        ("usage_usec 7\nuser_usec 5\nnr_periods 9\nnr_throttled 2\nthrottled_usec 3\n", [7000, 9, 2, 3000]),
        ("usage_usec 7\nuser_usec 5\nsystem_usec 2\n", [7000]),
    ],
)
def test_cgroup_use_and_throttling(text: str, values: list[int]) -> None:
    found = host.parse_cpu_stat(text)
    assert list(found.values()) == values
    assert ("cgroup.throttled_ns" in found) == (len(values) > 1)


def test_disks_without_partitions_and_unused_loop_devices() -> None:
    text = (
        " 254 0 vda 72579 15739 8 33828 23568 58070 16 15775 0 14128 51658 8477 22 493336 1992 3069 61\n"
        " 254 1 vda1 72579 15739 8 33828 23568 58070 16 15775 0 14128 51658\n"
        "   7 0 loop0 0 0 0 0 0 0 0 0 0 0 0\n   7 1 loop1 3 0 2 0 0 0 0 0 0 1 0\n"
    )
    found = host.parse_disks(text, {"vda", "loop0", "loop1"})
    assert found["disk.vda.read_bytes"] == 8 * 512
    assert found["disk.vda.written_bytes"] == 16 * 512
    assert found["disk.vda.busy_ns"] == 14_128_000_000
    assert {name.split(".")[1] for name in found} == {"vda", "loop1"}


def test_network() -> None:
    heading = "Inter-|   Receive\n face |bytes    packets\n"
    text = heading + "    lo:    3193      29    0    0    0     0          0         0     77      29 0 0 0 0 0 0\n"
    text += "eth0.100:1 1 0 0 0 0 0 0 2 1 0 0 0 0 0 0\n"
    assert host.parse_network(text) == {
        "net.lo.received_bytes": 3193,
        "net.lo.sent_bytes": 77,
        "net.eth0.100.received_bytes": 1,
        "net.eth0.100.sent_bytes": 2,
    }


@pytest.mark.parametrize(
    ("name", "unit", "level"),
    [
        ("thread.cpu_ns", "ns", False),
        ("process.rss_bytes", "bytes", True),
        ("net.eth0.100.sent_bytes", "bytes", False),
        ("disk.<b>%s</b>.busy_ns", "ns", False),
        ("gpu.3.utilisation_percent", "percent", True),
        ("perf.migrations", "count", False),
    ],
)
def test_every_recorded_name_is_described(name: str, unit: str, level: bool) -> None:
    counter = describe(name)
    assert (counter.name, counter.unit, counter.level) == (name, unit, level)


@pytest.mark.parametrize("name", ["", "thread", "net.sent_bytes", "gpu.0.fans", "made.up.name"])
def test_a_name_that_is_none(name: str) -> None:
    with pytest.raises(KeyError):
        describe(name)


def test_names_are_told_once() -> None:
    assert len({counter.name for counter in COUNTERS}) == len(COUNTERS)
