"""CPUs, quota and GPUs, read from planted trees."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tracekit.record import topology
from tracekit.record.cgroup import cpu_quota, find_place, free_memory
from tracekit.record.machine import describe_cpu, describe_memory, thread_budget
from tracekit.record.mounts import file_system
from tracekit.run.manifest import CPU


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0-3,8,10-11\n", [0, 1, 2, 3, 8, 10, 11]), ("5", [5]), ("", []), ("\n", [])],
)
def test_cpu_lists(text: str, numbers: list[int]) -> None:
    assert topology.parse_cpu_list(text) == numbers
    assert topology.parse_cpu_list(topology.format_cpu_list(reversed(numbers))) == numbers


@pytest.fixture
def two_sockets(tmp_path: Path) -> Path:
    """Two sockets and NUMA nodes of two cores with two hardware threads each: siblings are n and n + 4."""
    files = {}
    for cpu in range(8):
        core = cpu % 4
        files[f"cpu/cpu{cpu}/topology/thread_siblings_list"] = f"{core},{core + 4}\n"
        files[f"cpu/cpu{cpu}/topology/physical_package_id"] = f"{core // 2}\n"
    files["node/node0/cpulist"] = "0-1,4-5\n"
    files["node/node1/cpulist"] = "2-3,6-7\n"
    return plant(tmp_path, files)


@pytest.mark.parametrize(
    ("allowed", "cores", "sockets", "nodes"),
    [(list(range(8)), 4, 2, 2), ([0, 4], 1, 1, 1), ([0, 1, 4], 2, 1, 1), ([1, 2], 2, 2, 2)],
)
def test_only_what_the_affinity_allows_counts(
    two_sockets: Path, allowed: list[int], cores: int, sockets: int, nodes: int
) -> None:
    leaders = topology.core_leaders(allowed, two_sockets)
    assert len(leaders) == cores
    assert topology.sockets(leaders, two_sockets) == sockets
    assert topology.numa_nodes(allowed, two_sockets) == nodes


def test_a_kernel_that_does_not_tell_gives_zero_not_one(tmp_path: Path) -> None:
    assert topology.core_leaders([0, 1], tmp_path) == []
    assert topology.sockets([0], tmp_path) == 0
    assert topology.numa_nodes([0], tmp_path) == 0


def test_the_model_is_that_of_the_first_cpu(tmp_path: Path) -> None:
    cpuinfo = (
        plant(tmp_path, {"cpuinfo": "processor\t: 0\nmodel name\t: Fast: One\n\nmodel name\t: Other\n"}) / "cpuinfo"
    )
    assert topology.cpu_model(cpuinfo) == "Fast: One"


def test_without_a_model_the_architecture_stands_in(tmp_path: Path) -> None:
    cpuinfo = plant(tmp_path, {"cpuinfo": "processor\t: 0\nCPU implementer\t: 0x41\n"}) / "cpuinfo"
    assert topology.cpu_model(cpuinfo) == os.uname().machine
    assert topology.cpu_model(tmp_path / "absent") == os.uname().machine


Tree = Callable[[str, str, dict[str, str]], Path]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Plants /proc/<pid>/cgroup, a mountinfo ({top} is where the cgroup folders lie), and cgroup files."""

    def make(cgroup: str, mountinfo: str, files: dict[str, str]) -> Path:
        top = tmp_path / "sys"
        top.mkdir()
        plant(top, files)
        escaped = str(top).replace(" ", r"\040")
        return plant(tmp_path / "proc", {"cgroup": cgroup, "mountinfo": mountinfo.format(top=escaped)})

    return make


def quota(process: Path) -> float | None:
    return cpu_quota(process, process / "mountinfo")


V2 = "30 20 0:26 / {top} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def test_version_2_takes_the_tightest_limit_up_to_the_root(tree: Tree) -> None:
    files = {
        "job/cpu.max": "300000 100000\n",
        "job/step/cpu.max": "max 100000\n",
        "job/step/task/cpu.max": "500000 100000\n",
    }
    process = tree("0::/job/step/task\n", V2, files)
    assert quota(process) == 3.0
    place = find_place("cpu", process, process / "mountinfo")
    assert place is not None
    assert place.version == 2
    assert place.limited_folder() == place.top / "job"


def test_no_limit_is_none(tree: Tree) -> None:
    process = tree("0::/job\n", V2, {"job/cpu.max": "max 100000\n"})
    assert quota(process) is None
    place = find_place("cpu", process, process / "mountinfo")
    assert place is not None
    assert place.limited_folder().name == "job"


def test_version_2_in_a_container_whose_mount_is_its_own_cgroup(tree: Tree) -> None:
    mounts = "30 20 0:26 /docker/abc {top} rw - cgroup2 cgroup rw\n"
    process = tree("0::/docker/abc/inner\n", mounts, {"cpu.max": "150000 100000\n", "inner/cpu.max": "max 100000\n"})
    assert quota(process) == 1.5


@pytest.mark.parametrize("path", ["/docker/abc", "/../..", "/../other"])
def test_a_path_that_cannot_be_seen_is_the_root_of_the_mount(tree: Tree, path: str) -> None:
    process = tree(f"0::{path}\n", V2, {"cpu.max": "50000 100000\n"})
    assert quota(process) == 0.5


V1 = "32 31 0:29 / {top}/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"


def test_version_1(tree: Tree) -> None:
    files = {
        "cpu/slurm/cpu.cfs_quota_us": "400000\n",
        "cpu/slurm/cpu.cfs_period_us": "100000\n",
        "cpu/slurm/step/cpu.cfs_quota_us": "-1\n",
        "cpu/slurm/step/cpu.cfs_period_us": "100000\n",
    }
    process = tree("4:memory:/x\n3:cpu,cpuacct:/slurm/step\n", V1, files)
    assert quota(process) == 4.0


def test_hybrid_the_controller_is_where_version_1_has_it(tree: Tree) -> None:
    mounts = V1 + "41 31 0:38 / {top}/unified rw - cgroup2 cgroup2 rw\n"
    files = {
        "cpu/cpu.cfs_quota_us": "250000\n",
        "cpu/cpu.cfs_period_us": "100000\n",
        "unified/cpu.max": "100000 100000\n",
    }
    process = tree("3:cpu,cpuacct:/\n1:name=systemd:/\n0::/\n", mounts, files)
    assert quota(process) == 2.5


@pytest.mark.parametrize(
    ("cgroup", "mountinfo"), [("", ""), ("0::/\n", ""), ("garbage\n", "garbage\n"), ("0::/\n", "1 2 3 - cgroup2\n")]
)
def test_without_cgroups_there_is_no_quota(tree: Tree, cgroup: str, mountinfo: str) -> None:
    assert quota(tree(cgroup, mountinfo, {})) is None


@pytest.mark.parametrize("text", ["", "max\n", "fast please\n", "0 100000\n", "100000 0\n"])
def test_a_quota_that_is_none(tree: Tree, text: str) -> None:
    assert quota(tree("0::/\n", V2, {"cpu.max": text})) is None


def test_the_memory_left_is_that_below_the_tightest_limit(tree: Tree) -> None:
    files = {
        "job/memory.max": "1000\n", "job/memory.current": "900\n",
        "job/step/memory.max": "300\n", "job/step/memory.current": "250\n",
        "job/step/task/memory.max": "max\n", "job/step/task/memory.current": "250\n",
    }  # fmt: skip
    process = tree("0::/job/step/task\n", V2, files)
    assert free_memory(process, process / "mountinfo") == 50


@pytest.mark.parametrize("version", [1, 2])
def test_files_that_were_read_leave_their_memory(tree: Tree, version: int) -> None:
    """GIVEN a job that is at its limit because it has read files THEN what they hold can be had."""
    limit, used, cached = (
        ("memory.max", "memory.current", "inactive_file")
        if version == 2
        else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    )
    files = {
        f"job/{limit}": "1000\n", f"job/{used}": "1000\n",
        "job/memory.stat": f"anon 300\nactive_file 7\n{cached} 600\n",
    }  # fmt: skip
    mounts = V2 if version == 2 else "31 20 0:27 / {top} rw - cgroup cgroup rw,memory\n"
    process = tree("0::/job\n" if version == 2 else "5:memory:/job\n", mounts, files)
    assert free_memory(process, process / "mountinfo") == 600


def test_the_memory_left_of_version_1(tree: Tree) -> None:
    """Used memory that is over the limit leaves none; version 1 says "no limit" by a very large one."""
    mounts = "31 20 0:27 / {top} rw - cgroup cgroup rw,memory\n"
    files = {
        "memory.limit_in_bytes": "9223372036854771712\n", "memory.usage_in_bytes": "5000\n",
        "job/memory.limit_in_bytes": "100\n", "job/memory.usage_in_bytes": "150\n",
    }  # fmt: skip
    process = tree("5:memory:/job\n", mounts, files)
    assert free_memory(process, process / "mountinfo") == 0


@pytest.mark.parametrize(
    ("affinity", "limit", "budget"),
    [([0, 1, 2, 3], None, 4), ([0, 1, 2, 3], 2.5, 3), ([0, 1, 2, 3], 2.0, 2), ([0, 1], 8.0, 2), ([0, 1], 0.25, 1)],
)
def test_thread_budget(affinity: list[int], limit: float | None, budget: int) -> None:
    assert thread_budget(CPU(logical=64, affinity=affinity, quota=limit)) == budget


def test_thread_budget_of_an_old_manifest_without_affinity() -> None:
    assert thread_budget(CPU(logical=6)) == 6
    assert thread_budget(CPU()) == 1


def test_this_machine() -> None:
    cpu = describe_cpu()
    assert set(cpu.affinity) == os.sched_getaffinity(0)
    assert cpu.logical >= len(cpu.affinity) >= cpu.physical_cores >= cpu.sockets
    assert 1 <= thread_budget(cpu) <= len(cpu.affinity)
    memory = describe_memory()
    assert memory.free is None or 0 < memory.free < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_the_file_system_of_a_path_is_that_of_its_deepest_last_mount(tmp_path: Path) -> None:
    mountinfo = (
        plant(
            tmp_path,
            {
                "mountinfo": "1 0 0:1 / / rw - ext4 /dev/sda rw\n"
                r"2 1 0:2 / /my\040data rw - nfs4 server:/x rw"
                "\n3 1 0:3 / /tmp rw - ext4 x rw\n4 1 0:4 / /tmp rw shared:2 - tmpfs x rw\n"
            },
        )
        / "mountinfo"
    )
    assert file_system(Path("/my data/tmp"), mountinfo) == "nfs4"
    assert file_system(Path("/tmp/x"), mountinfo) == "tmpfs"
    assert file_system(Path("/tmpfoo"), mountinfo) == "ext4"
    assert file_system(Path("/tmp"), tmp_path / "absent") == ""
