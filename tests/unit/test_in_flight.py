"""What goes on beside the program, until it is found done."""

from types import SimpleNamespace
from typing import Any

import pytest

from tracekit.collectors.in_flight import InFlight, Sent
from tracekit.record.wire import BUCKET


class Work:
    """As one of torch: it is done, and counts how often it was asked."""

    def __init__(self, sent: Sent) -> None:
        self.sent, self.is_done, self.asked = sent, False, 0

    def is_completed(self) -> bool:
        self.asked += 1
        return self.is_done


def begun(count: int, how: int = 1) -> tuple[InFlight, list[Work], list[int]]:
    """So many that go on, and the numbers of those that were noted."""
    noted: list[int] = []
    agent: Any = SimpleNamespace(spool=SimpleNamespace(note=lambda row: noted.append(row[5])))
    works = [Work(Sent(0, 0, 0, 0, number, 0, how)) for number in range(count)]
    in_flight = InFlight(agent)
    for work in works:
        in_flight.look()
        in_flight.add(work.sent, work.is_completed)
    return in_flight, works, noted


def test_what_many_calls_ask_does_not_grow_with_what_goes_on() -> None:
    _, works, _ = begun(400)
    assert sum(work.asked for work in works) <= 4 * 400


def test_who_is_done_is_noted_in_order_and_the_rest_keeps_its_place() -> None:
    in_flight, works, noted = begun(6)
    for number in (0, 1, 3):
        works[number].is_done = True
    in_flight.look()
    assert noted == [0, 1, 3] and in_flight.oldest is works[2].sent
    assert in_flight.of(works[2]) is works[2].sent and in_flight.of(works[3]) is None and in_flight.is_newest(works[5])
    for work in works:
        work.is_done = True
    in_flight.look()
    assert noted == [0, 1, 3, 2, 4, 5] and in_flight.is_over


def test_a_signal_in_between_loses_nothing() -> None:
    """GIVEN a handler of the program's that raises while we look THEN all that goes on is still there, in its order."""
    in_flight, works, noted = begun(4)
    works[0].is_done = True

    def interrupted() -> bool:
        raise TimeoutError

    in_flight.forget()
    for number, work in enumerate(works):
        in_flight.add(work.sent, interrupted if number == 2 else work.is_completed)
    with pytest.raises(TimeoutError):
        in_flight.look()
    assert noted == [0] and in_flight.oldest is works[1].sent
    in_flight.give_up()
    assert noted == [0, 1, 2, 3]


def test_all_buckets_are_noted_where_the_reducer_has_them() -> None:
    in_flight, _, noted = begun(20, BUCKET)
    in_flight.look(have_buckets=True)
    assert noted == list(range(20)) and in_flight.is_empty
