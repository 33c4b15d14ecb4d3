"""What ends the processes of a tool with the one that has them."""

import contextlib
import os
import signal
import struct

_GROUP = struct.Struct("<q")


class Guard:
    """A process that kills process groups when whoever has it closes it or ends, in whatever way: who is stopped heeds
    no other signal that its parent has ended."""

    def __init__(self) -> None:
        reading, self._told = os.pipe()
        self._pid = os.fork()
        if self._pid:
            os.close(reading)
            return
        try:
            os.close(self._told)
            _watch(reading)
        finally:
            os._exit(0)

    def add(self, group: int) -> None:
        """This group too."""
        os.write(self._told, _GROUP.pack(group))

    def close(self) -> None:
        """Kill them now."""
        os.close(self._told)
        os.waitpid(self._pid, 0)


def _watch(reading: int) -> None:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("0")  # not the first to go, as the noise is
    nowhere = os.open(os.devnull, os.O_RDWR)
    for each in (0, 1, 2):
        os.dup2(nowhere, each)
    groups = b""
    while said := os.read(reading, _GROUP.size):
        groups += said
    for (group,) in _GROUP.iter_unpack(groups):
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
