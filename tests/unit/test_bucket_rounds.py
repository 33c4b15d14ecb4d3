"""Which caps a round of an exploration of gradient buckets tries."""

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tracekit.collectors.bucket_rounds import OWN, Rounds


def tried(step_ns: list[float], rounds: int, noise: float = 0.1) -> list[list[int]]:
    """The conditions of each round, where blocks take so long, more or less, on a machine that slows down at times."""
    random = Random(3)
    chooser, found = Rounds(len(step_ns), random), []
    for number in range(rounds):
        found.append(chooser.begin())
        for condition in found[-1]:
            chooser.add(condition, round(step_ns[condition] * (1 + number % 5) * random.lognormvariate(0, noise)))
    return found


@given(
    st.integers(2, 7).flatmap(
        lambda count: st.lists(st.lists(st.integers(0, 10**12), min_size=count, max_size=count), max_size=20)
    )
)
def test_every_round_compares_others_with_the_own(blocks: list[list[int]]) -> None:
    chooser = Rounds(len(blocks[0]) if blocks else 2, Random(0))
    for times in blocks:
        conditions = chooser.begin()
        assert OWN in conditions and len(conditions) >= 2
        assert len(set(conditions)) == len(conditions) and set(conditions) <= set(range(len(times)))
        for each in conditions:
            chooser.add(each, times[each])


def test_what_may_be_the_best_is_tried_most_and_all_are_tried() -> None:
    """GIVEN two that are 7 and 6 % faster than the own, one as fast and two much slower THEN the two have most rounds,
    the slow ones those in which all are tried, and one that is a third of them."""
    rounds = tried([100e6, 93e6, 94e6, 100e6, 130e6, 150e6], 90)
    count = Counter(condition for each in rounds for condition in each)
    assert count[OWN] == 90
    assert count[1] > 70 and count[2] > 60
    assert 30 <= count[4] <= 40 and 30 <= count[5] <= 36
    assert all(len(each) == 6 for each in (*rounds[:4], *rounds[6::3]))


def test_where_none_is_faster_the_next_best_is_compared() -> None:
    rounds = tried([100e6, 120e6, 150e6], 40, noise=0.01)
    assert all(sorted(each) == [OWN, 1] for each in rounds if len(each) < 3)
    assert any(len(each) < 3 for each in rounds)


def test_what_the_first_rounds_told_wrong_is_mended() -> None:
    """GIVEN the best cap, unlucky in all first rounds THEN it is among those tried between, in the end."""
    random = Random(1)
    chooser, last = Rounds(3, random), []
    for number in range(200):
        last = chooser.begin()
        for each in last:
            unlucky = 1.5 if each == 2 and number < 4 else 1.0
            chooser.add(each, round([100e6, 98e6, 90e6][each] * unlucky * random.lognormvariate(0, 0.05)))
    assert 2 in last
