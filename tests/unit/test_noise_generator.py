"""The loop of a generator: it ends with its pipe, and what it cannot have it does not ask for all the time."""

import os
import threading
import time
from pathlib import Path

import pytest

from tracekit.noise.generator import ORDER, PLACE, Ledger, hold, ordered, work_at
from tracekit.noise.work import Work


class Stingy(Work):
    """Gives so much, whatever it is asked for."""

    def __init__(self, most: float) -> None:
        self.most, self.asked, self.silent = most, 0, threading.Event()

    def do(self, amount: float) -> float:
        self.asked += 1
        if not amount:
            self.silent.set()
        return min(amount, self.most)


@pytest.mark.parametrize("wanted", [100.0, 1000.0])
def test_what_cannot_be_held_is_asked_for_now_and_then(wanted: float, tmp_path) -> None:
    """GIVEN as much as is wanted, and less THEN it sleeps between its looks, and the pipe's end is its end."""
    file = tmp_path / "ledger"
    file.write_bytes(bytes(PLACE.size))
    orders, ours = os.pipe()
    work, ended = Stingy(100.0), threading.Event()

    def run() -> None:
        with open(file, "r+b") as ledger, pytest.raises(EOFError):
            hold(orders, work, Ledger(ledger.fileno(), 0))
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    os.write(ours, ORDER.pack(wanted))
    assert not work.silent.wait(0.3)
    assert 2 <= work.asked < 100  # one that does not sleep asks some hundred thousand times
    assert PLACE.unpack(file.read_bytes())[0] == 100
    os.write(ours, ORDER.pack(0.0))
    assert work.silent.wait(10)
    os.close(ours)
    assert ended.wait(10)
    os.close(orders)


def test_an_order_comes_or_does_not() -> None:
    orders, ours = os.pipe()
    assert ordered(orders, 0.0) is None
    os.write(ours, ORDER.pack(2.5))
    assert ordered(orders, None) == 2.5
    os.close(ours)
    with pytest.raises(EOFError):
        ordered(orders, None)
    os.close(orders)


class Tireless(Work):
    """Does what it is asked in no time, or a tenth of it, and notes when it may rest."""

    def __init__(self, share: float) -> None:
        self.share, self.pieces, self.rests = share, 0, threading.Event()

    def do(self, amount: float) -> float:
        self.pieces += 1
        time.sleep(0.001)
        return self.share * amount

    def rest(self) -> None:
        self.rests.set()


@pytest.mark.parametrize(("share", "rests"), [(1.0, True), (0.01, False)])
def test_who_is_behind_does_not_rest_until_it_is_told(share: float, rests: bool, tmp_path: Path) -> None:
    """GIVEN a work that keeps its rate, and one that does not, THEN the one rests in between, and both at the end."""
    file = tmp_path / "ledger"
    file.write_bytes(bytes(PLACE.size))
    orders, ours = os.pipe()
    work = Tireless(share)

    def run() -> None:
        with open(file, "r+b") as ledger, pytest.raises(EOFError):
            work_at(orders, work, Ledger(ledger.fileno(), 0))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert work.rests.wait(10)  # nothing is to be done yet
    os.write(ours, ORDER.pack(1000.0))
    while not work.pieces:
        time.sleep(0.001)
    work.rests.clear()
    assert work.rests.wait(0.3) == rests
    os.write(ours, ORDER.pack(0.0))
    assert work.rests.wait(10)
    os.close(ours)
    thread.join(10)
    assert not thread.is_alive()
    os.close(orders)
