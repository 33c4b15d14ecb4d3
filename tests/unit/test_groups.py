"""The numbers of what a group of ranks does together: the same on all of them, whatever some let go past."""

from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tracekit.collectors import groups
from tracekit.collectors.groups import NO_SEQUENCE, Groups, Numbers

WORLD = "world"


def test_who_lets_one_group_go_counts_for_the_others() -> None:
    """GIVEN two groups beside all ranks, of which the program destroys one THEN that one is not counted any more; none,
    where it destroys all."""
    both = Groups(SimpleNamespace(GroupMember=SimpleNamespace(WORLD=None)))  # type: ignore[arg-type]
    for name in (WORLD, "1", "2"):
        both.count_by(name, lambda: 0)
    both.stop_counting(SimpleNamespace(group_name="1"))
    assert [both._of(name).count is None for name in (WORLD, "1", "2")] == [False, True, False]
    both.stop_counting()
    assert [both._of(name).count is None for name in (WORLD, "1", "2")] == [True] * 3


class Rank:
    """A rank whose backend counts what it begins."""

    def __init__(self) -> None:
        self.counted = 0
        self.past: Numbers | None = None  # where buckets go past
        self.groups = Groups(SimpleNamespace())  # type: ignore[arg-type]  # it names nothing
        self.groups.count_by(WORLD, lambda: self.counted)

    def turn(self) -> None:
        past, self.past = self.past, None
        if past:
            past.turn(is_seen=True)
        elif numbers := self.groups.numbers_for_unseen(WORLD):
            self.past = numbers
            numbers.turn(is_seen=False)

    def passes(self, buckets: int) -> list[int | None]:
        """The numbers of the buckets of a step, where they do not go past."""
        if self.past:
            self.counted += buckets
            return [None] * buckets
        numbers: list[int | None] = []
        for _ in range(buckets):
            numbers.append(self.groups.begin(WORLD, counted=1))
            self.counted += 1
        return numbers

    def call(self, counts: int) -> int:
        """A call of the program, which the backend counts as so many."""
        number = self.groups.begin(WORLD)
        self.counted += counts
        self.groups.begun(WORLD)
        return number

    def send_to_one(self) -> None:
        assert self.groups.begin_apart(WORLD) == NO_SEQUENCE
        self.counted += 1
        self.groups.begun(WORLD)


PASS = st.tuples(st.just("pass"), st.integers(0, 3))
CALL = st.tuples(st.just("call"), st.integers(0, 3))
OF_TWO = st.tuples(st.just("of two"), st.integers(0, 2))  # the rank that has no part in it
UNSEEN = st.tuples(st.just("of two, unseen"), st.integers(0, 2))  # where all look
TURN = st.tuples(st.just("turn"), st.integers(0, 2))  # the rank that lets buckets past, or does not any more


@given(st.lists(st.one_of(PASS, CALL, OF_TWO, UNSEEN, TURN), max_size=60))
@example([("pass", 1), ("turn", 0), ("pass", 2), ("turn", 0), ("call", 0)])  # the passes of one that looks away differ
def test_all_ranks_that_see_it_give_it_one_number(happening: list[tuple[str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "_SEEN_ENOUGH", 0)
        ranks = [Rank() for _ in range(3)]
        came = 0
        for what, detail in happening:
            others = [rank for number, rank in enumerate(ranks) if number != detail]
            if what == "turn":
                ranks[detail].turn()
            elif what == "of two":
                for each in others:
                    each.send_to_one()
            elif what == "of two, unseen":
                for each in ranks:
                    if each.past:
                        each.turn()
                for each in others:
                    each.counted += 1
            elif what == "call":
                assert {rank.call(detail) for rank in ranks} == {came}
                came += 1
            else:
                for rank in ranks:
                    assert rank.passes(detail) in ([None] * detail, list(range(came, came + detail)))
                came += detail


def test_where_something_is_counted_that_nobody_saw_nothing_may_go_past() -> None:
    """GIVEN what a program does that we do not see THEN it has no number, and no bucket goes past us before many have
    come without any such."""
    rank = Rank()
    numbers: list[int | None] = []
    for number in range(100):
        assert (rank.groups.numbers_for_unseen(WORLD) is not None) is (64 <= number <= 70)
        if number == 70:
            rank.counted += 1
        numbers += rank.passes(1)
    assert numbers == list(range(100))


def test_a_group_whose_backend_does_not_count_is_seen_as_a_whole() -> None:
    found = Groups(SimpleNamespace())  # type: ignore[arg-type]
    assert [found.begin("other") for _ in range(100)] == list(range(100))
    found.begun("other")
    assert found.numbers_for_unseen("other") is None and found.begin("") == NO_SEQUENCE
    found.start_anew()
    assert found.begin("other") == 0
