"""One process of a noise: does its work at the rate that it is told, and ends when it is told no more.

    python -m tracekit.noise.generator LABEL NUMBER PROCESSES LEDGER

Its standard input is a pipe of rates (a float of 8 bytes each, 0: nothing) that closes when whoever started it has
ended, however that was. LEDGER is the descriptor of a file with a place for each process: what it has done, or holds,
and whether it is ready.
"""

import contextlib
import mmap
import os
import select
import signal
import struct
import sys
import time

import psutil

from tracekit.errors import TracekitError
from tracekit.noise.spec import IO_IDLE, NoiseError, Spec, parse
from tracekit.noise.work import Work
from tracekit.noise.works import work_of

ORDER = struct.Struct("<d")
PLACE = struct.Struct("<qq")  # done, 1 when it is ready
# Work comes in pieces of so long: those that wait for a CPU meanwhile wait no longer, and an order waits for one.
_PIECE_S = 0.005
# What it could not do in time is made up for so long, then forgotten.
_DEBT_S = 0.05
_LOOK_AT_MEMORY_S = 0.02


class Ledger:
    """The place of one process in the file of them all."""

    def __init__(self, descriptor: int, number: int) -> None:
        self._map = mmap.mmap(descriptor, 0)
        self._at = number * PLACE.size
        self._done = 0.0

    def ready(self) -> None:
        PLACE.pack_into(self._map, self._at, 0, 1)

    def add(self, amount: float) -> None:
        self._done += amount
        PLACE.pack_into(self._map, self._at, int(self._done), 1)

    def hold(self, amount: float) -> None:
        PLACE.pack_into(self._map, self._at, int(amount), 1)


def ordered(orders: int, wait: float | None) -> float | None:
    """The next order, if one comes within so many seconds (None: however long it takes). Raises EOFError when there
    will be none."""
    if not select.select([orders], [], [], wait)[0]:
        return None
    order = os.read(orders, ORDER.size)
    if len(order) < ORDER.size:
        raise EOFError
    return float(ORDER.unpack(order)[0])


def work_at(rates: int, work: Work, ledger: Ledger) -> None:
    """Work at the rates that come from a descriptor. Raises EOFError when it closes."""
    rate, began, done, wait = 0.0, 0.0, 0.0, None
    while True:
        if wait != 0:
            work.rest()
        if (order := ordered(rates, wait)) is not None:
            rate, began, done, wait = order, time.monotonic(), 0.0, 0.0 if order else None
            continue
        piece = work.do(rate * _PIECE_S)
        ledger.add(piece)
        done += piece
        ahead = done / rate - (time.monotonic() - began)
        began += max(-ahead - _DEBT_S, 0)
        wait = max(ahead, 0)


def hold(amounts: int, work: Work, ledger: Ledger) -> None:
    """Hold the amounts that come from a descriptor. Raises EOFError when it closes."""
    amount, held, wait = 0.0, 0.0, None
    while True:
        order = ordered(amounts, wait)
        amount, before = amount if order is None else order, held
        held = work.do(amount)
        ledger.hold(held)
        # As fast as it grows; then others may want some of it.
        wait = (0.0 if held > before else _LOOK_AT_MEMORY_S) if amount else None


def _settle(spec: Spec, number: int) -> None:
    """Go where the noise has its place, and be the first to go when memory runs out."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's: whoever started us decides
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    if cpus := spec.cpus_of(number):
        os.sched_setaffinity(0, cpus)
    os.nice(spec.nice)
    if spec.io_idle:
        try:
            psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)
        except (psutil.Error, OSError) as error:
            raise NoiseError(f"its disk cannot be given to others first ({error}); leave out @{IO_IDLE}") from error
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def main() -> int:
    """Do the work; 1 with a line on stderr where it cannot be done."""
    label, number, place, descriptor = sys.argv[1], *map(int, sys.argv[2:5])
    spec = parse(label)
    try:
        _settle(spec, number)
        work = work_of(spec, spec.processes)
        ledger = Ledger(descriptor, place)
        try:
            ledger.ready()
            with contextlib.suppress(EOFError):  # nobody wants it any more
                (work_at if spec.kind.rate else hold)(sys.stdin.fileno(), work, ledger)
        finally:
            work.close()
    except (TracekitError, OSError, MemoryError) as error:
        print(str(error) or type(error).__name__, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
