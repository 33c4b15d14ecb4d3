"""Whether ranks agree to change their gradient buckets together."""

from torch.distributed import HashStore

from tracekit.collectors.agreement import Agreement


def agreements(ranks: int) -> list[Agreement]:
    store = HashStore()
    return [Agreement(store, "all", ranks) for _ in range(ranks)]


def test_ranks_agree_when_all_have_offered_for_the_same_pass() -> None:
    """GIVEN a rank that offers twice, as it runs the engine for itself before THEN that counts once."""
    ranks = agreements(3)
    assert not any(each.is_reached() for each in ranks)
    for each in (*ranks[:2], ranks[0]):
        each.offer(block=4, counted=77)
    assert not any(each.is_reached() for each in ranks)
    ranks[2].offer(block=4, counted=77)
    assert all(each.is_reached() for each in ranks)


def test_a_rank_that_goes_on_offering_within_a_pass_stands_by_its_first_offer() -> None:
    """GIVEN a pass that is of two runs of the engine in one rank, and buckets are reduced in both THEN either all ranks
    find that they agree, or none does."""
    ranks = agreements(2)
    for each, runs in zip(ranks, ((100, 102), (100,)), strict=True):
        for counted in runs:
            each.offer(4, counted)
    assert [each.is_reached() for each in ranks] == [True, True]


def test_a_rank_at_another_pass_lets_nobody_change() -> None:
    """GIVEN a rank that is a pass ahead, or behind THEN no rank believes that all agree, whichever asks first."""
    for block, counted in ((4, 80), (5, 77)):
        ranks = agreements(2)
        ranks[0].offer(4, 77)
        assert not ranks[0].is_reached()
        ranks[1].offer(block, counted)
        assert not any(each.is_reached() for each in ranks)


def test_one_agreement_is_not_the_next() -> None:
    ranks = agreements(2)
    for block in range(3):
        ranks[0].offer(block, 10 * block)
        assert not ranks[0].is_reached()
        ranks[1].offer(block, 10 * block)
        assert all(each.is_reached() for each in ranks)


def test_what_comes_next_is_told_before_all_agree() -> None:
    """GIVEN a rank that chooses, and a pass of two runs of the engine THEN all are told the same."""
    ranks = agreements(3)
    for block, chosen in ((7, [2, 0, 1]), (9, [0, 1])):
        for counted in (77, 78):
            for each in (ranks[1], ranks[0], ranks[2]):
                each.offer(block, counted, chosen if each is ranks[0] else None)
        assert all(each.is_reached() for each in ranks)
        assert [each.told() for each in ranks] == [chosen] * 3
