"""The numbers of what a group of ranks does together: the same on all of them, whatever some let go past."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.collectors import groups
from tracekit.collectors.groups import NO_SEQUENCE, Groups

WORLD = "world"


class Rank:
    """A rank whose backend counts what it begins."""

    def __init__(self) -> None:
        self.counted = 0
        self.is_seen = True
        self.groups = Groups(SimpleNamespace())  # type: ignore[arg-type]  # it names nothing
        self.groups.count_by(WORLD, lambda: self.counted)

    def let_past(self, these: bool) -> None:
        if these and self.is_seen:
            self.is_seen = self.groups.unseen_from_here(WORLD) is None
        elif not these and not self.is_seen:
            self.groups.seen_from_here(WORLD)
            self.is_seen = True

    def bucket(self) -> int | None:
        """Its number, where it does not go past."""
        number = self.groups.begin(WORLD, counted=1) if self.is_seen else None
        self.counted += 1
        return number

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


events = st.lists(
    st.one_of(
        st.tuples(st.just("bucket"), st.just(0)),
        st.tuples(st.just("call"), st.integers(0, 3)),
        st.tuples(st.just("of two"), st.integers(0, 2)),  # the rank that has no part in it
        st.tuples(st.just("turn"), st.integers(0, 2)),  # the rank that lets buckets past, or does not any more
    ),
    max_size=60,
)


@given(events)
def test_all_ranks_that_see_it_give_it_one_number(happening: list[tuple[str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "_SEEN_ENOUGH", 0)
        ranks = [Rank() for _ in range(3)]
        came = 0
        for what, detail in happening:
            if what == "turn":
                ranks[detail].let_past(ranks[detail].is_seen)
            elif what == "of two":
                for each in (rank for number, rank in enumerate(ranks) if number != detail):
                    each.send_to_one()
            else:
                numbers = [rank.bucket() if what == "bucket" else rank.call(detail) for rank in ranks]
                assert set(numbers) <= {came, None}
                came += 1


def test_where_something_is_counted_that_nobody_saw_nothing_may_go_past() -> None:
    """GIVEN what a program does that we do not see THEN it has no number, and no bucket goes past us before many have
    come without any such."""
    rank = Rank()
    assert rank.groups.unseen_from_here(WORLD) is None  # too few were seen
    numbers = []
    for number in range(100):
        numbers.append(rank.bucket())
        if number == 70:
            rank.counted += 1
        may = rank.groups.unseen_from_here(WORLD) is not None
        rank.groups.seen_from_here(WORLD)
        assert may is (63 <= number < 70)
    assert numbers == list(range(100))


def test_a_group_whose_backend_does_not_count_is_seen_as_a_whole() -> None:
    found = Groups(SimpleNamespace())  # type: ignore[arg-type]
    assert [found.begin("other") for _ in range(100)] == list(range(100))
    found.begun("other")
    assert found.unseen_from_here("other") is None and found.begin("") == NO_SEQUENCE
    found.start_anew()
    assert found.begin("other") == 0
