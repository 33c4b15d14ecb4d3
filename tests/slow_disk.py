"""A slow disk, emulated in the kernel: a file system on a loop device, whose readers in a control group are throttled.

Needs root, loop devices and the block I/O controller of control groups, version 1 or 2.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_IMAGE_BYTES = 64 << 20


@dataclass(frozen=True)
class SlowDisk:
    """Where it is mounted, and the control group whose processes read it slowly."""

    folder: Path
    group: Path

    def throttled(self, command: list[str]) -> list[str]:
        """The command, in the group with all that it starts."""
        return ["sh", "-ec", 'echo $$ > "$1"; shift; exec "$@"', "sh", str(self.group / "cgroup.procs"), *command]


@contextmanager
def slow_disk(scratch: Path, bytes_per_s: int) -> Iterator[SlowDisk]:
    """A disk of 64 MiB that gives its readers so many bytes per second, all together. Raises OSError or
    CalledProcessError where this is not allowed."""
    image, folder = scratch / "disk", scratch / "mounted"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(_IMAGE_BYTES)
    _run("mkfs.ext4", "-q", "-F", str(image))
    with ExitStack() as stack:
        device = _run("losetup", "--find", "--show", str(image))
        stack.callback(_run, "losetup", "--detach", device)
        _run("mount", device, str(folder))
        stack.callback(_run, "umount", str(folder))
        group = _group(stack)
        number = Path("/sys/block", Path(device).name, "dev").read_text().strip()
        v1 = group / "blkio.throttle.read_bps_device"
        if v1.exists():
            v1.write_text(f"{number} {bytes_per_s}")
        else:
            (group / "io.max").write_text(f"{number} rbps={bytes_per_s}")
        yield SlowDisk(folder, group)


def _group(stack: ExitStack) -> Path:
    """A control group of our own, for block I/O."""
    above = _GROUPS / "blkio" if (_GROUPS / "blkio").is_dir() else _GROUPS
    group = above / f"slow-disk-{os.getpid()}"
    group.mkdir()
    stack.callback(_remove, group)
    return group


def _remove(group: Path) -> None:
    """With what is still in it, of a test that was cut short."""
    for _ in range(100):
        left = [int(pid) for pid in (group / "cgroup.procs").read_text().split()]
        if not left:
            break
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    group.rmdir()


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
