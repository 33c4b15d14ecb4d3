"""The loop of a generator: it ends with its pipe, and what it cannot have it does not ask for all the time."""

import os
import threading

import pytest

from tracekit.noise.generator import ORDER, PLACE, Ledger, hold, ordered


class Stingy:
    """Gives so much, whatever it is asked for."""

    def __init__(self, most: float) -> None:
        self.most, self.asked, self.silent = most, 0, threading.Event()

    def do(self, amount: float) -> float:
        self.asked += 1
        if not amount:
            self.silent.set()
        return min(amount, self.most)

    def close(self) -> None:
        pass


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
