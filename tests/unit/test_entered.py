"""Which communication a rank came to last, as the supervisor finds it."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tracekit.collectors import entered
from tracekit.collectors.engine import is_in_backward
from tracekit.collectors.entered import Entered
from tracekit.collectors.groups import Numbers
from tracekit.record.wire import RECORD

PASSED, CALL, WORDS = 7, 8, 9
IN_IT, OVER = 0, 1


class Rank:
    """A rank whose buckets go past us, and whose thread that looks is asked here to look."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.is_in_backward, self.before = 0, False, -1
        monkeypatch.setattr(entered, "is_in_backward", lambda frame: self.is_in_backward)
        monkeypatch.setattr(entered, "start_new_thread", lambda *_: None)
        self.file = folder / "1.entered"
        agent: Any = SimpleNamespace(
            folder=str(folder), stem="1", note_missing=pytest.fail, governor=SimpleNamespace(steps=0)
        )
        self.governor = agent.governor
        self.entered = Entered(agent)
        self.numbers = Numbers(count=lambda: self.begun, is_seen=False)
        self.entered.passes(PASSED, WORDS, self.numbers)

    def look(self) -> tuple[int, int, int]:
        """The op, the number and the state that are told then."""
        self.before = self.entered._look(PASSED, WORDS, self.numbers, self.before, 0)
        return self.told()

    def told(self) -> tuple[int, int, int]:
        record = RECORD.unpack(self.file.read_bytes())
        return record[0], record[5], record[9]


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rank:
    return Rank(tmp_path, monkeypatch)


def test_a_rank_is_in_a_bucket_when_no_more_begin_within_a_backward_pass(rank: Rank) -> None:
    rank.begun, rank.is_in_backward = 5, True
    assert rank.look() == (PASSED, 4, OVER)  # there may be more by the next look
    assert rank.look() == (PASSED, 4, IN_IT)
    rank.begun = 6
    assert rank.look() == (PASSED, 5, OVER)
    rank.is_in_backward = False
    assert rank.look() == rank.look() == (PASSED, 5, OVER)


def test_who_leaves_is_in_none(rank: Rank) -> None:
    """GIVEN a pass that took long enough to be looked at twice THEN a process that ends behind it is not in it."""
    rank.begun, rank.is_in_backward = 5, True
    rank.look()
    assert rank.look() == (PASSED, 4, IN_IT)
    rank.governor.steps += 1
    rank.entered.leaves()
    assert rank.told() == (PASSED, 4, OVER)


def test_who_leaves_from_within_a_pass_was_in_it(rank: Rank) -> None:
    """GIVEN a pass that fails, as another rank never comes, THEN the process that it ends is told to be in it."""
    rank.begun, rank.is_in_backward = 5, True
    rank.look()
    rank.look()
    rank.entered.leaves()
    assert rank.told() == (PASSED, 4, IN_IT)


@pytest.mark.parametrize(("goes_on", "state"), [(True, True), (False, False)])
def test_what_an_exception_ended_does_not_go_on(goes_on: bool, state: bool, rank: Rank) -> None:
    rank.entered.begin(CALL, WORDS, 5)
    rank.entered.left(goes_on)
    assert rank.entered.goes_on is state and rank.told() == (CALL, 5, IN_IT)
    rank.entered.end()
    assert not rank.entered.goes_on and rank.told() == (CALL, 5, OVER)


def test_what_the_program_calls_is_not_written_over_while_it_is_in_it(rank: Rank) -> None:
    rank.begun = 5
    rank.look()
    rank.numbers.catch_up()
    rank.entered.begin(CALL, WORDS, 5)
    rank.begun, rank.is_in_backward = 6, True
    rank.look()
    assert rank.look() == (CALL, 5, IN_IT)
    rank.entered.end()
    rank.entered.left()
    assert rank.told() == (CALL, 5, OVER)
    rank.begun = 8
    assert rank.look()[0] == PASSED


def test_what_the_program_may_be_waiting_for_is_not_written_over(rank: Rank) -> None:
    """GIVEN an asynchronous call that a rank has come back from, and may wait for THEN it is told to be in it until
    more has begun."""
    rank.begun = 5
    rank.numbers.catch_up()
    rank.entered.begin(CALL, WORDS, rank.numbers.next)
    rank.numbers.next, rank.numbers.counted, rank.begun = 6, 6, 6
    rank.entered.left()
    rank.look()
    assert rank.look() == (CALL, 5, IN_IT)
    rank.begun = 7
    assert rank.look() == (PASSED, 6, OVER)


def test_a_frame_below_the_engine_is_in_a_backward_pass() -> None:
    seen: list[bool] = []

    class Looks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
            seen.append(is_in_backward(sys._getframe()))
            return value.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            seen.append(is_in_backward(sys._getframe()))
            return gradient

    value: Any = Looks.apply(torch.ones(1, requires_grad=True))
    value.sum().backward()
    assert seen == [False, True]
