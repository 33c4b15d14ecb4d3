"""What the processes of noise do: one class per kind, each of which does an amount at a time and says how much it was.

Amounts are ns of CPU time, bytes or operations. A work does less than it was asked for where that would take long: what
controls it must have its turn every few milliseconds. What it made on a disk goes when it ends, and a file that it
writes to has no name, so that nothing is left of it, whatever ends it.
"""

import contextlib
import errno
import math
import mmap
import os
import shutil
import socket
import tempfile
import threading
import time
from pathlib import Path
from typing import Protocol

import numpy as np

from tracekit.noise.spec import NoiseError, Spec
from tracekit.record.machine import describe_memory
from tracekit.record.mounts import file_system

# STREAM's rule: arrays of at least four times the last-level cache.
_TIMES_OF_CACHE = 4
_USUAL_CACHE = 32 << 20
_PAGE = 4096
_SMALLEST_WRITE, _LARGEST_WRITE = 16 * _PAGE, 1 << 20
_FILE_BYTES = 128 << 20
# What is left to others, always: of a disk and of the memory.
FREE_DISK, FREE_DISK_SHARE = 1 << 30, 0.02
FREE_MEMORY, FREE_MEMORY_SHARE = 512 << 20, 0.1
_HELD_AT_ONCE = 16 << 20
_DISCARD = 9  # the port of RFC 863: nobody answers
# A datagram of an Ethernet frame, and its headers down to the frame; the kernel cuts a larger send into such (udp(7)).
_DATAGRAM, _HEADERS, _UDP_SEGMENT, _PER_SEND = 1472 - 20, 28 + 14, 103, 32
_SOCKET_BYTES = 256 << 10


class Work(Protocol):
    """Something to do, in amounts."""

    def do(self, amount: float) -> float:
        """Do about so much, or less; what was done. Of what is held: hold so much from now on; what is held."""

    def close(self) -> None:
        """Remove what it made."""


def work_of(spec: Spec, processes: int) -> Work:
    """The work of one of so many processes of a noise. Raises NoiseError or OSError where it cannot be done here."""
    match spec.kind.name:
        case "cpu":
            return Compute()
        case "busy":
            return BusyWait()
        case "memory":
            return Copy(_TIMES_OF_CACHE * last_level_cache())
        case "cache":
            return Copy(last_level_cache() // 4 // processes)
        case "capacity":
            return Hold()
        case "disk":
            return Write(spec.folder or os.getcwd())
        case "metadata":
            return Files(spec.folder or os.getcwd())
        case "network" if spec.host:
            return Datagrams(spec.host, spec.interface)
        case _:
            return Stream(spec.interface)


class OnCPU:
    """Has the CPU for some time; all the CPU time of the process counts, that of its control too."""

    def __init__(self) -> None:
        self._counted = time.process_time_ns()

    def do(self, amount: float) -> float:
        until = self._counted + amount
        while (now := time.process_time_ns()) < until:
            self._spend()
        done, self._counted = now - self._counted, now
        return done

    def _spend(self) -> None:
        """Some ten microseconds of it."""
        raise NotImplementedError

    def close(self) -> None:
        pass


class Compute(OnCPU):
    """Multiplies small matrices, which stay in the first-level cache."""

    def __init__(self) -> None:
        super().__init__()
        self._matrix = np.full((40, 40), 0.5)
        self._out = np.empty_like(self._matrix)

    def _spend(self) -> None:
        for _ in range(4):
            np.matmul(self._matrix, self._matrix, out=self._out)


class BusyWait(OnCPU):
    """Looks at the clock, as a thread that spins does."""

    def _spend(self) -> None:
        for _ in range(100):
            time.perf_counter_ns()


class Copy:
    """Copies from one array to another, over and over: what is read and what is written count, as STREAM has it."""

    _LARGEST = 4 << 20  # some milliseconds at most

    def __init__(self, size: int) -> None:
        self._from = np.ones(max(size, _PAGE) // 8)
        self._to = np.ones_like(self._from)
        self._at = 0

    def do(self, amount: float) -> float:
        count = int(min(max(amount / 16, 512), self._LARGEST // 8, len(self._from) - self._at))
        np.copyto(self._to[self._at : self._at + count], self._from[self._at : self._at + count])
        self._at = (self._at + count) % len(self._from)
        return 16.0 * count

    def close(self) -> None:
        pass


class Hold:
    """Holds memory, as far as enough is left to others."""

    def __init__(self) -> None:
        self._held: list[mmap.mmap] = []

    def do(self, amount: float) -> float:
        spare = free_memory() - floor_of_memory()
        if spare < 0 and self._held:
            self._held.pop().close()
        elif self.bytes + _HELD_AT_ONCE <= amount and spare > _HELD_AT_ONCE:
            block = mmap.mmap(-1, _HELD_AT_ONCE)
            for page in range(0, _HELD_AT_ONCE, _PAGE):
                block[page] = 1
            self._held.append(block)
        elif self.bytes > amount:
            self.close()
        return self.bytes

    @property
    def bytes(self) -> int:
        return len(self._held) * _HELD_AT_ONCE

    def close(self) -> None:
        for block in self._held:
            block.close()
        self._held.clear()


class Write:
    """Writes over a file without a name, past the page cache where the file system allows that."""

    def __init__(self, folder: str) -> None:
        refuse_memory(folder)
        size = min(_FILE_BYTES, spare_disk(folder))
        if size < _LARGEST_WRITE:
            raise NoiseError(f"disk noise: {folder} has no space left that others do not need; name another folder")
        with tempfile.NamedTemporaryFile(prefix="tracekit-noise-", dir=folder) as file:
            self._file, self._direct = _open_past_cache(file.name)
        self._size = size // _LARGEST_WRITE * _LARGEST_WRITE
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


class Files:
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


class Stream:
    """Sends to itself through the loopback interface, by TCP."""

    def __init__(self, interface: str) -> None:
        if interface not in ("", "lo"):
            raise NoiseError(f"network noise on {interface}: name a host that it leads to, as in @{interface}@HOST")
        with socket.create_server(("127.0.0.1", 0)) as server:
            self._sender = socket.create_connection(server.getsockname())
            self._receiver, _ = server.accept()
        for each in (self._sender, self._receiver):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        self._bytes = bytes(_SOCKET_BYTES)
        threading.Thread(target=self._receive, daemon=True).start()

    def _receive(self) -> None:
        room = bytearray(4 * _SOCKET_BYTES)
        with contextlib.suppress(OSError):
            while self._receiver.recv_into(room):
                pass

    def do(self, amount: float) -> float:
        return self._sender.send(self._bytes[: int(min(max(amount, 1024), _SOCKET_BYTES))])

    def close(self) -> None:
        self._sender.close()
        self._receiver.close()


class Datagrams:
    """Sends datagrams to a host, which need not take them; their headers count."""

    def __init__(self, host: str, interface: str) -> None:
        try:
            family, _, _, _, self._to = socket.getaddrinfo(host, _DISCARD, type=socket.SOCK_DGRAM)[0]
        except (OSError, UnicodeError) as error:
            raise NoiseError(f"network noise: {host} is no host that is known here ({error})") from error
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        if interface:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
        self._at_once = _PER_SEND
        try:
            self._socket.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, _DATAGRAM)
        except OSError:
            self._at_once = 1
        self._bytes = bytes(_DATAGRAM * _PER_SEND)
        self._send(1)

    def _send(self, count: int) -> float:
        while True:
            try:
                self._socket.sendto(self._bytes[: count * _DATAGRAM], self._to)
                return float(count * (_DATAGRAM + _HEADERS))
            except OSError as error:
                if error.errno in (errno.ENOBUFS, errno.EAGAIN):  # the interface is full
                    return 0.0
                if error.errno == errno.EIO and self._at_once > 1:  # this interface does not cut
                    self._socket.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, 0)
                    self._at_once = count = 1
                elif error.errno != errno.ECONNREFUSED:
                    raise

    def do(self, amount: float) -> float:
        return self._send(max(1, min(round(amount / (_DATAGRAM + _HEADERS)), self._at_once)))

    def close(self) -> None:
        self._socket.close()


def last_level_cache() -> int:
    """The size of this CPU's largest cache, bytes; a usual one where the kernel does not tell."""
    sizes = [_size(file) for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max(sizes, default=0) or _USUAL_CACHE


def _size(file: Path) -> int:
    try:
        text = file.read_text(encoding="ascii").strip()
        return int(text.rstrip("KMG")) << {"K": 10, "M": 20, "G": 30}.get(text[-1:], 0)
    except (OSError, ValueError):
        return 0


def free_memory() -> float:
    """What this process can still have, bytes, by the machine and by its cgroup."""
    free = describe_memory().free
    return math.inf if free is None else free


def floor_of_memory() -> float:
    """The free memory that noise leaves alone, bytes."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        total = 0
    return max(FREE_MEMORY, FREE_MEMORY_SHARE * total)


def spare_disk(folder: str) -> int:
    """The bytes that noise may take of a folder's disk."""
    space = os.statvfs(folder)
    return int(space.f_bavail * space.f_frsize - max(FREE_DISK, FREE_DISK_SHARE * space.f_blocks * space.f_frsize))


def refuse_memory(folder: str) -> None:
    """Raise NoiseError where a folder lies in memory: it has no disk."""
    if file_system(Path(folder).resolve()) in ("tmpfs", "ramfs", "devtmpfs"):
        raise NoiseError(f"disk noise: {folder} lies in memory; name a folder on a disk, as in disk=50MB/s@/scratch")


def _open_past_cache(path: str) -> tuple[int, bool]:
    """A descriptor to write to, and whether it goes past the page cache."""
    try:
        return os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC), True
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(path, os.O_WRONLY | os.O_CLOEXEC), False
