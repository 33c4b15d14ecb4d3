"""Where a process stands in the cgroup hierarchies (version 1, 2, or both), and the limits it is under there."""

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tracekit.record.mounts import HERE as MOUNTS
from tracekit.record.mounts import unescaped

SELF = Path("/proc/self")


@dataclass(frozen=True)
class Place:
    """A process's cgroup in the hierarchy of one controller. `top` is the highest folder that can be seen from here."""

    version: int
    folder: Path
    top: Path

    @property
    def upward(self) -> list[Path]:
        """The cgroup and those around it, up to the top: a limit on any of them holds."""
        folders = [self.folder, *self.folder.parents]
        return folders[: folders.index(self.top) + 1]

    def quota(self) -> float | None:
        """The CPUs that the tightest limit grants; None where there is no limit."""
        return min((quota for quota in map(self._quota_of, self.upward) if quota is not None), default=None)

    def limited_folder(self) -> Path:
        """The folder whose quota is the tightest, hence the one that is throttled; the process's own without any."""
        quotas = [(quota, folder) for folder in self.upward if (quota := self._quota_of(folder)) is not None]
        return min(quotas, key=lambda pair: pair[0])[1] if quotas else self.folder

    def free_memory(self) -> int | None:
        """Bytes that the tightest limit still leaves; None where there is no limit."""
        return min((free for free in map(self._free_of, self.upward) if free is not None), default=None)

    def _free_of(self, folder: Path) -> int | None:
        names, cached = ("memory.max", "memory.current"), "inactive_file"
        if self.version == 1:
            names, cached = ("memory.limit_in_bytes", "memory.usage_in_bytes"), "total_inactive_file"
        try:
            limit, used = (int(_read(folder / name)) for name in names)
        except ValueError:  # "max", or no such file here
            return None
        # What it has read of files and not used lately counts as used, and is given up when memory is wanted.
        words = re.search(rf"^{cached} (\d+)$", _read(folder / "memory.stat"), re.MULTILINE)
        return max(limit - used + (int(words[1]) if words else 0), 0)

    def _quota_of(self, folder: Path) -> float | None:
        if self.version == 2:
            words = _read(folder / "cpu.max").split()
        else:
            words = [_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")]
        try:
            granted, period = (int(word) for word in words)
        except ValueError:  # "max", or no such file here
            return None
        return granted / period if granted > 0 and period > 0 else None


def find_place(controller: str, process: Path = SELF, mountinfo: Path = MOUNTS) -> Place | None:
    """Where the process (`/proc/<pid>`) stands in the hierarchy of a controller such as `cpu`; None without one.

    The mounts are those of the reader, who has to open the files, even if the process sees others. A controller that is
    mounted as version 1 is there and not in version 2, also on machines that mount both.
    """
    paths = _paths(_read(process / "cgroup"))
    mounts = _mounts(_read(mountinfo))
    if controller in paths:
        version, path = 1, paths[controller]
        mounts = [mount for mount in mounts if mount.version == 1 and controller in mount.controllers]
    elif "" in paths:
        version, path = 2, paths[""]
        mounts = [mount for mount in mounts if mount.version == 2]
    else:
        return None
    if not mounts:
        return None
    # A container sees its own cgroup as the root of the mount, or its host's path below a mount of part of the tree.
    inside = [mount for mount in mounts if _is_below(path, mount.root)]
    mount = max(inside or mounts, key=lambda mount: len(mount.root))
    folder = mount.point
    if inside and ".." not in PurePosixPath(path).parts:
        folder = mount.point / PurePosixPath(path).relative_to(mount.root)
    return Place(version, folder if folder.is_dir() else mount.point, mount.point)


def cpu_quota(process: Path = SELF, mountinfo: Path = MOUNTS) -> float | None:
    """The CPUs that the process's cgroups grant, the tightest limit from its own up to the root; None without limit."""
    place = find_place("cpu", process, mountinfo)
    return place.quota() if place else None


def free_memory(process: Path = SELF, mountinfo: Path = MOUNTS) -> int | None:
    """The bytes that the process's cgroups still leave it; None without limit."""
    place = find_place("memory", process, mountinfo)
    return place.free_memory() if place else None


@dataclass(frozen=True)
class _Mount:
    version: int
    controllers: frozenset[str]
    root: str
    point: Path


def _mounts(mountinfo: str) -> list[_Mount]:
    """The cgroup mounts of a `/proc/<pid>/mountinfo` (proc(5))."""
    mounts = []
    for line in mountinfo.splitlines():
        before, separator, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if separator and len(fields) >= 5 and kind[0] in ("cgroup", "cgroup2"):
            controllers = frozenset(kind[2].split(",")) if len(kind) > 2 else frozenset()
            mounts.append(
                _Mount(1 + (kind[0] == "cgroup2"), controllers, unescaped(fields[3]), Path(unescaped(fields[4])))
            )
    return mounts


def _paths(cgroup: str) -> dict[str, str]:
    """Controller → path of a `/proc/<pid>/cgroup`; version 2 is the entry with no controller, ''."""
    paths = {}
    for line in cgroup.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            paths[controller] = path
    return paths


def _is_below(path: str, root: str) -> bool:
    return PurePosixPath(path).is_relative_to(root)


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="surrogateescape")
    except OSError:
        return ""
