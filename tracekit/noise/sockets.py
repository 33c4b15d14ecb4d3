"""Noise on networks: bytes through the loopback interface, or to another host."""

import contextlib
import errno
import socket
import threading

from tracekit.noise.spec import NoiseError
from tracekit.noise.work import Work

_DISCARD = 9  # the port of RFC 863: nobody answers
# A datagram fills a frame, less its headers (IPv4 or IPv6, UDP); that of the frame itself counts too. The kernel cuts a
# larger send into such (udp(7)).
_IP_MTU, _IPV6_MTU, _UDP_SEGMENT, _PER_SEND = 14, 24, 103, 32  # in.h, in6.h, udp.h
_HEADERS, _FRAME = {socket.AF_INET: 28, socket.AF_INET6: 48}, 14
_LARGEST_DATAGRAM, _LARGEST_SEND = 8972, 65_000  # a loopback takes larger ones, and few of them
_SOCKET_BYTES = 256 << 10


class Stream(Work):
    """Sends to itself through the loopback interface, by TCP."""

    def __init__(self, interface: str) -> None:
        if interface not in ("", "lo"):
            raise NoiseError(f"{interface} leads to others: name one of them too, as in @{interface}@HOST")
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


class Datagrams(Work):
    """Sends datagrams to a host, which need not take them; their headers count."""

    def __init__(self, host: str, interface: str) -> None:
        try:
            family, _, _, _, address = socket.getaddrinfo(host, _DISCARD, type=socket.SOCK_DGRAM)[0]
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise NoiseError(f"{host} is neither an interface nor a host that is known here ({why})") from error
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        if interface:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
        self._socket.connect(address)
        level = socket.IPPROTO_IP if family == socket.AF_INET else socket.IPPROTO_IPV6
        mtu = self._socket.getsockopt(level, _IP_MTU if family == socket.AF_INET else _IPV6_MTU)
        self._datagram = min(mtu - _HEADERS[family], _LARGEST_DATAGRAM)
        self._frame = self._datagram + _HEADERS[family] + _FRAME
        self._at_once = min(_LARGEST_SEND // self._datagram, _PER_SEND)
        try:
            self._socket.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, self._datagram)
        except OSError:
            self._at_once = 1
        self._bytes = bytes(self._datagram * self._at_once)
        self._send(1)

    def _send(self, count: int) -> float:
        while True:
            try:
                self._socket.send(self._bytes[: count * self._datagram])
                return float(count * self._frame)
            except OSError as error:
                if error.errno in (errno.ENOBUFS, errno.EAGAIN):  # the interface is full
                    return 0.0
                if error.errno in (errno.EIO, errno.EINVAL) and self._at_once > 1:  # this interface does not cut
                    self._socket.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, 0)
                    self._at_once = count = 1
                elif error.errno != errno.ECONNREFUSED:  # that nobody takes them was to be expected
                    raise

    def do(self, amount: float) -> float:
        return self._send(max(1, min(round(amount / self._frame), self._at_once)))

    def close(self) -> None:
        self._socket.close()
