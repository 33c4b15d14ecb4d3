"""Noise by tools that are installed: stress-ng computes, fio writes and iperf3 sends, each as fast as it can.

The kernel's accounts tell what a tool has done. It is stopped and let go on so that this is what was asked for: so
doses, patterns and logs are those of our own noise, whoever makes it.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tracekit.noise.files import open_past_cache, room_to_write
from tracekit.noise.guard import Guard
from tracekit.noise.spec import NoiseError, Spec
from tracekit.noise.work import Work

# A look at what was done takes some 20 us. A tool that is behind goes on, as where others want its CPU: who is stopped
# loses its place in the queue. An order waits for so long.
_LOOK_EVERY_S, _PIECE_S = 0.0005, 0.005
_STARTS_WITHIN_S = 10.0
_FOR_EVER = "86400"  # s
# Who has done so much has begun with its work, and does not prepare for it any more.
_BEGUN_NS, _BEGUN_BYTES = 1e8, float(1 << 20)
_PAGE, _LARGEST_WRITE = 4096, 256 << 10


class Tool(Work):
    """Some processes of a tool, which do as much as they are let."""

    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        account: Callable[[int], float],
        least: float,
        kept: Sequence[int] = (),
    ) -> None:
        """Start them, with the descriptors that they `kept`; the last one does the work, itself or by its children,
        which has begun when they have done the `least`. Raises NoiseError where they do not."""
        self._account = account
        self._processes: list[subprocess.Popen[bytes]] = []
        self._workers: list[int] = []
        self._goes_on = True
        self._guard = Guard()
        try:
            for command in commands:
                self._processes.append(_start(command, kept))
                self._guard.add(self._processes[-1].pid)
            self._await(least)
        except BaseException:
            self.close()
            raise
        self.rest()
        self._counted = self._done()

    def _await(self, least: float) -> None:
        worker = self._processes[-1].pid
        deadline = time.monotonic() + _STARTS_WITHIN_S
        while self._done() < least:
            self._refuse_ended()
            self._workers = [worker, *_children(worker)]
            if time.monotonic() > deadline:
                raise NoiseError(f"{_name(self._processes[-1])} did nothing for {_STARTS_WITHIN_S:.0f} s")
            time.sleep(0.01)

    def do(self, amount: float) -> float:
        self._refuse_ended()
        if not self._goes_on:
            self._let(signal.SIGCONT)
            self._goes_on = True
        until = time.monotonic() + _PIECE_S
        while (done := self._done()) < self._counted + amount and time.monotonic() < until:
            time.sleep(_LOOK_EVERY_S)
        done, self._counted = done - self._counted, done
        return max(done, 0.0)

    def rest(self) -> None:
        if self._goes_on:
            self._let(signal.SIGSTOP)
            self._goes_on = False

    def close(self) -> None:
        self._guard.close()
        for process in self._processes:
            with contextlib.suppress(OSError):  # it has been killed, unless the guard was
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stderr is not None
            process.stderr.close()

    def _let(self, order: signal.Signals) -> None:
        for pid in self._workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, order)

    def _done(self) -> float:
        return sum(self._account(pid) for pid in self._workers)

    def _refuse_ended(self) -> None:
        for process in self._processes:
            if process.poll() is not None:
                assert process.stderr is not None
                said = (process.stderr.read() or b"").decode("utf-8", "replace").strip().splitlines()
                why = said[-1] if said else f"it ended with code {process.returncode}"
                name = _name(process)
                raise NoiseError(f"{name}: {why.removeprefix(f'{name}: ').removeprefix('error - ')}")


def tool_of(spec: Spec) -> Tool:
    """The tool that a noise asks for. Raises NoiseError where it is not installed, or does not work."""
    path = shutil.which(spec.backend)
    if path is None:
        raise NoiseError(f"{spec.backend} is not installed here; install it, or leave out its name")
    if spec.backend == "stress-ng":
        method = "loop" if spec.kind.name == "busy" else "matrixprod"
        words = ["--cpu", "1", "--cpu-method", method, "--timeout", "0", "--temp-path", tempfile.gettempdir()]
        return Tool([[path, *words]], cpu_time, _BEGUN_NS)
    return _writer(path, spec) if spec.backend == "fio" else _sender(path, spec)


def _writer(fio: str, spec: Spec) -> Tool:
    """It writes over a file that has no name, which it gets as a descriptor."""
    folder = spec.folder or os.getcwd()
    size = room_to_write(folder)
    with tempfile.TemporaryFile(prefix="tracekit-noise-", dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, size)
        name = f"/proc/self/fd/{file.fileno()}"
        descriptor, is_direct = open_past_cache(name)
        os.close(descriptor)
        at_once = min(max(round(spec.rate * _PIECE_S) // _PAGE * _PAGE, _PAGE), _LARGEST_WRITE)
        words = ["--name=noise", f"--filename={name}", f"--size={size}", "--rw=write", f"--bs={at_once}", "--thread"]
        lasting = ["--time_based", f"--runtime={_FOR_EVER}", "--fallocate=none", "--ioengine=psync", "--overwrite=1"]
        past_cache = "--direct=1" if is_direct else "--fdatasync=1"
        return Tool([[fio, *words, *lasting, past_cache]], bytes_written, _BEGUN_BYTES, [file.fileno()])


def _sender(iperf: str, spec: Spec) -> Tool:
    """It sends by TCP to a server of its own through the loopback interface, or to one that a host has."""
    client = [iperf, "--client", spec.host or "127.0.0.1", "--time", _FOR_EVER]
    if spec.interface:
        client += ["--bind-dev", spec.interface]
    if spec.host:
        return Tool([client], bytes_sent, _BEGUN_BYTES)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    server = [iperf, "--server", "--one-off", "--bind", "127.0.0.1", "--port", port]
    told = subprocess.run([iperf, "--help"], capture_output=True).stdout
    server += ["--rcv-timeout", f"{_FOR_EVER}000"] if b"--rcv-timeout" in told else []
    return Tool([server, [sys.executable, "-c", _WHEN_THERE, port, *client, "--port", port]], bytes_sent, _BEGUN_BYTES)


# A server takes some milliseconds to listen; a connection of ours would be its only one.
_WHEN_THERE = """
import os, sys, time
port = f":{int(sys.argv[1]):04X} "
until = time.monotonic() + 5
while time.monotonic() < until and not any(port in line and " 0A " in line for line in open("/proc/net/tcp")):
    time.sleep(0.01)
os.execv(sys.argv[2], sys.argv[2:])
"""


def cpu_time(pid: int) -> float:
    """The CPU time of a process of one thread, ns."""
    return _number(f"/proc/{pid}/schedstat", 0)


def bytes_written(pid: int) -> float:
    """What a process has given to disks."""
    return _number(f"/proc/{pid}/io", 11)


def bytes_sent(pid: int) -> float:
    """What a process has written, to sockets too."""
    return _number(f"/proc/{pid}/io", 3)


def _number(path: str, word: int) -> float:
    try:
        return float(Path(path).read_bytes().split()[word])
    except (OSError, IndexError, ValueError):
        return 0.0


def _children(pid: int) -> list[int]:
    try:
        found = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_bytes().split()]
    except (OSError, ValueError):
        return []
    return [each for child in found for each in (child, *_children(child))]


def _start(command: Sequence[str], kept: Sequence[int]) -> "subprocess.Popen[bytes]":
    """In a group of its own, which no key of a terminal reaches, and in our session: Linux shares out CPUs between
    sessions first, and `nice` says nothing to another one (sched_autogroup, sched(7))."""
    process = subprocess.Popen(
        list(command), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        process_group=0, pass_fds=kept,
    )  # fmt: skip
    assert process.stderr is not None
    os.set_blocking(process.stderr.fileno(), False)  # who is left of it may have it open still
    return process


def _name(process: "subprocess.Popen[bytes]") -> str:
    assert isinstance(process.args, list)
    return Path(process.args[0]).name
