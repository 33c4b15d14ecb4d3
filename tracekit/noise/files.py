"""Noise on disks: bytes that are written, and files that are made.

Nothing is left of it: the file that is written to has no name, and the folder of the others goes with the process.
"""

import contextlib
import errno
import mmap
import os
import shutil
import tempfile
from pathlib import Path

from tracekit.noise.spec import NoiseError
from tracekit.noise.work import Work
from tracekit.record.mounts import file_system

_PAGE = 4096
_SMALLEST_WRITE, _LARGEST_WRITE = 16 * _PAGE, 1 << 20
_FILE_BYTES = 128 << 20
# What is left to others of a disk, always.
FREE_DISK, FREE_DISK_SHARE = 1 << 30, 0.02


class Write(Work):
    """Writes over a file without a name, past the page cache where the file system allows that."""

    def __init__(self, folder: str) -> None:
        self._size = room_to_write(folder)
        with tempfile.NamedTemporaryFile(prefix="tracekit-noise-", dir=folder) as file:
            self._file, self._direct = open_past_cache(file.name)
        with contextlib.suppress(OSError):  # not every file system can; the file then grows, up to this size
            os.posix_fallocate(self._file, 0, self._size)
        self._bytes = mmap.mmap(-1, _LARGEST_WRITE)  # a page's address, as a write past the cache wants it
        self._bytes.write(os.urandom(_LARGEST_WRITE))
        self._at = 0

    def do(self, amount: float) -> float:
        count = int(min(max(amount, _SMALLEST_WRITE), _LARGEST_WRITE, self._size - self._at)) // _PAGE * _PAGE
        done = os.pwrite(self._file, memoryview(self._bytes)[:count], self._at)
        if not self._direct:
            os.fdatasync(self._file)
        self._at = (self._at + count) % self._size
        return done

    def close(self) -> None:
        os.close(self._file)


class Files(Work):
    """Makes files, looks them up and removes them, in a folder of its own: three operations each."""

    def __init__(self, folder: str) -> None:
        refuse_memory(folder)
        self._folder = tempfile.mkdtemp(prefix="tracekit-noise-", dir=folder)

    def do(self, amount: float) -> float:
        path = f"{self._folder}/file"
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        os.stat(path)
        os.unlink(path)
        return 3.0

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def room_to_write(folder: str) -> int:
    """The bytes of a file to write over, over and over. Raises NoiseError where there is no room, or no disk."""
    refuse_memory(folder)
    size = min(_FILE_BYTES, spare_disk(folder))
    if size < _LARGEST_WRITE:
        raise NoiseError(f"{folder} has no space left that others do not need; name another folder")
    return size // _LARGEST_WRITE * _LARGEST_WRITE


def spare_disk(folder: str) -> int:
    """The bytes that noise may take of a folder's disk."""
    space = os.statvfs(folder)
    return int(space.f_bavail * space.f_frsize - max(FREE_DISK, FREE_DISK_SHARE * space.f_blocks * space.f_frsize))


def refuse_memory(folder: str) -> None:
    """Raise NoiseError where a folder lies in memory: it has no disk."""
    if file_system(Path(folder).resolve()) in ("tmpfs", "ramfs", "devtmpfs"):
        raise NoiseError(f"{folder} lies in memory; name a folder on a disk, as in disk=50MB/s@/scratch")


def open_past_cache(path: str) -> tuple[int, bool]:
    """A descriptor to write to, and whether it goes past the page cache."""
    try:
        return os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC), True
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(path, os.O_WRONLY | os.O_CLOEXEC), False
