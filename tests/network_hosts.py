"""Several hosts on one machine: network namespaces that a bridge connects, each with an address of its own.

Needs root, iproute2 and a kernel with namespaces, veth and bridges.
"""

import itertools
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

_NUMBERS = itertools.count()


@dataclass(frozen=True)
class NetworkHost:
    """A namespace, and what it is called by the others."""

    namespace: str
    address: str
    interface: str = "eth0"

    def on_it(self, command: list[str]) -> list[str]:
        """The command, on this host."""
        return ["ip", "netns", "exec", self.namespace, *command]

    def limited_to(self, mbit: float) -> None:
        """From now on it sends so many million bits a second at most."""
        limit = ["root", "tbf", "rate", f"{mbit}mbit", "burst", "256kb", "latency", "400ms"]
        _run(*self.on_it(["tc", "qdisc", "replace", "dev", self.interface, *limit]))


@contextmanager
def network_hosts(count: int) -> Iterator[list[NetworkHost]]:
    """So many hosts. Raises OSError or CalledProcessError where that is not allowed."""
    tag = f"tk{os.getpid()}x{next(_NUMBERS)}"  # the kernel takes its time to remove what had a name
    bridge = f"{tag}b"[:15]
    with ExitStack() as stack:
        _run("ip", "link", "add", bridge, "type", "bridge")
        stack.callback(_run, "ip", "link", "del", bridge)
        _run("ip", "link", "set", bridge, "up")
        hosts = []
        for number in range(count):
            host = NetworkHost(f"{tag}n{number}", f"10.231.0.{number + 1}")
            outside = f"{tag}v{number}"[:15]
            _run("ip", "netns", "add", host.namespace)
            stack.callback(_run, "ip", "netns", "del", host.namespace)
            _run("ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", host.namespace)
            _run("ip", "link", "set", outside, "master", bridge, "up")
            for words in (
                ["ip", "addr", "add", f"{host.address}/24", "dev", "eth0"],
                ["ip", "link", "set", "eth0", "up"],
                ["ip", "link", "set", "lo", "up"],
            ):
                _run(*host.on_it(words))
            hosts.append(host)
        yield hosts


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=30)
