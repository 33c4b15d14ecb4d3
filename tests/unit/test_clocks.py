"""Clocks of several hosts: an offset and a drift that were planted are found again, and causes come before effects."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from ranks import ranks_run

from tracekit.analysis.clocks import aligned
from tracekit.analysis.meetings import PHASES, Meetings, find_meetings
from tracekit.run.reader import open_run

MEETINGS, STEP_NS, ONE_WAY_NS = 400, 20_000_000, 60_000
BEGIN_NS = 1_750_000_000_000_000_000


def met(hosts: list[str], seed: int = 0, transfer_ns: int = ONE_WAY_NS, last_late_ns: int = 0) -> Meetings:
    """Ranks that meet for a while; who comes last changes, unless the last rank is later by more, and each leaves when
    what the last one sent has come."""
    random = np.random.default_rng(seed)
    steps = BEGIN_NS + np.arange(MEETINGS) * STEP_NS
    entered = steps + random.integers(0, STEP_NS // 4, (len(hosts), MEETINGS))
    entered[-1] += last_late_ns
    left = entered.max(axis=0) + transfer_ns + random.exponential(30_000, entered.shape).astype(np.int64)
    own = np.full((*entered.shape, len(PHASES)), np.nan)
    sequence, ranks = np.arange(MEETINGS), list(range(len(hosts)))
    held, kept = np.zeros_like(entered), own[:, :, 0]
    besides = np.zeros((*entered.shape, len(PHASES) + 1))
    return Meetings(
        "world", 0, ranks, hosts, sequence, sequence > 0, entered, held, left, own, own, kept, held, own, besides
    )


def planted(meetings: Meetings, host: str, offset_ns: int, ppm: float) -> Meetings:
    """The same by a clock of one host that goes wrong."""
    own = np.array([each == host for each in meetings.hosts])
    entered, left = meetings.entered.copy(), meetings.left.copy()
    for times in (entered, left):
        times[own] += offset_ns + np.round((times[own] - BEGIN_NS) * ppm * 1e-6).astype(np.int64)
    return replace(meetings, entered=entered, left=left)


def test_of_several_hosts_those_with_several_ranks_tell_whether_all_count_alike() -> None:
    """GIVEN a rank that leaves at once, before others have come THEN that cannot be where both have the same clock."""
    for hosts, is_possible in ((["a", "a", "b"], False), (["a", "b", "b"], True), (["a", "b", "c"], True)):
        found = met(hosts)
        assert found.is_possible
        found.left[0] = found.entered[0]
        assert found.is_possible == is_possible


@given(st.integers(-2_000_000_000, 2_000_000_000), st.floats(-100, 100), st.integers(0, 1000))
def test_a_planted_clock_is_found_to_within_50_microseconds(offset_ns: int, ppm: float, seed: int) -> None:
    truth = met(["a", "a", "b", "b"], seed)
    found, (clock,) = aligned(planted(truth, "b", offset_ns, ppm))
    assert np.abs(found.entered - truth.entered).max() <= 50_000
    assert (found.left >= found.entered.max(axis=0)).all()  # nobody leaves before the last one has come
    assert clock.unsure_ns >= np.abs(found.entered - truth.entered).max() - 10
    assert abs(clock.drift * 1e6 - ppm) < 5


@pytest.mark.parametrize("seed", range(5))
def test_what_keeps_ranks_from_their_cpus_does_not_mislead(seed: int) -> None:
    """GIVEN ranks of which in every other meeting one or both leave milliseconds late, the second host's the later THEN
    its clock is still found to within 50 microseconds."""
    truth, random = met(["a", "b"], seed), np.random.default_rng(seed)
    late = random.exponential([[1e6], [3e6]], truth.left.shape) * (random.random(truth.left.shape) < 0.3)
    truth.left[:] += late.astype(np.int64)
    found, _ = aligned(planted(truth, "b", -1_000_000_000, 50))
    assert np.abs(found.entered - truth.entered).max() <= 50_000


def test_what_one_rank_always_has_first_tells_no_clock_where_other_meetings_do() -> None:
    """GIVEN as many meetings for a single number, which the first rank has 70 us before the other, as for gradients
    THEN the clock is told by those for gradients, and by the others only where there is nothing else."""
    truth = met(["a", "b"])
    of_one = np.arange(MEETINGS) % 2 == 0
    truth.left[1, of_one] = truth.left[0, of_one] + 70_000
    wrong = planted(replace(truth, bytes=np.where(of_one, 4, 4_000_000)), "b", 1_000_000, 50)
    found, _ = aligned(wrong)
    assert np.abs(found.entered - truth.entered).max() <= 15_000
    few, (unsure,) = aligned(replace(wrong, bytes=np.full(MEETINGS, 4)))
    assert 15_000 < np.abs(few.entered - truth.entered).max() <= unsure.unsure_ns + 10


def test_a_few_meetings_tell_how_little_they_tell() -> None:
    """GIVEN ten meetings, to which one host comes 100 ms late in the first half, and the other one in the second THEN a
    line that is wrong by much fits, and the clock is as unsure as that."""
    truth = met(["a", "b"])
    few = replace(truth, **{name: getattr(truth, name)[:, :10] for name in ("entered", "left", "beside")})
    for late, half in ((0, slice(0, 5)), (1, slice(5, 10))):
        few.entered[late, half] = few.entered[1 - late, half] + 100_000_000
    few.left[:] = few.entered.max(axis=0) + ONE_WAY_NS
    found, (clock,) = aligned(planted(few, "b", 1_000_000, 0))
    assert np.abs(found.entered - few.entered).max() <= clock.unsure_ns + 10


@pytest.mark.parametrize("waits_too", [0, 200])
def test_who_goes_on_beside_a_meeting_does_not_leave_it_with_the_others(waits_too: int) -> None:
    """GIVEN a host that goes on for 25 ms before it waits, but for some meetings THEN these tell its clock; without any
    it is as unsure as it is wrong."""
    truth = met(["a", "b"])
    beside = np.zeros_like(truth.entered)
    beside[1, waits_too:] = 25_000_000
    truth.left[1] = np.maximum(truth.left[1], truth.entered[1] + beside[1])
    found, (clock,) = aligned(replace(planted(truth, "b", 1_000_000, 0), beside=beside))
    wrong = np.abs(found.entered - truth.entered).max()
    assert wrong <= clock.unsure_ns + 10
    assert wrong < (100_000 if waits_too else 14_000_000)


@pytest.mark.parametrize("now_and_then", [0, 1, 40])
def test_a_host_that_is_always_late_does_not_mislead(now_and_then: int) -> None:
    """GIVEN a rank that comes 8 ms late to each meeting, or to all but some, THEN that is no part of its clock."""
    truth = met(["a", "b"], last_late_ns=8_000_000)
    early = np.linspace(0, MEETINGS - 1, now_and_then).astype(int)
    truth.entered[0, early] = truth.entered[1, early] + 100_000
    truth.left[:, early] = truth.entered[0, early] + ONE_WAY_NS
    found, (clock,) = aligned(planted(truth, "b", 1_000_000_000, 50))
    assert np.abs(found.entered - truth.entered).max() <= 50_000
    assert clock.unsure_ns >= 0


@pytest.mark.parametrize("slewed", [0.25, 0.4, 1.0])
def test_a_clock_that_runs_unevenly_is_followed(slewed: float) -> None:
    """GIVEN a clock that is set right at 500 ppm and less and less, for so much of the run, and then keeps to 20."""
    truth = met(["a", "b"])
    length = MEETINGS * STEP_NS

    def ahead(times: NDArray[np.int64]) -> NDArray[np.int64]:
        share = np.clip((times - BEGIN_NS) / length, 0, slewed) / slewed
        return np.round(500e-6 * length * slewed * (share - share**2 / 2) + 20e-6 * (times - BEGIN_NS)).astype(np.int64)

    entered, left = truth.entered.copy(), truth.left.copy()
    entered[1] += ahead(entered[1])
    left[1] += ahead(left[1])
    found, (clock,) = aligned(replace(truth, entered=entered, left=left))
    assert len(clock.at_ns) > 2 and clock.unsure_ns > 0
    assert np.abs(found.entered - truth.entered).max() <= min(2 * ONE_WAY_NS, clock.unsure_ns + 10)
    assert clock.unsure_ns < 8 * ONE_WAY_NS
    assert (found.left >= found.entered.max(axis=0)).all()


def test_several_hosts_have_a_clock_each_and_one_host_none() -> None:
    truth = met(["a", "b", "c"])
    wrong = planted(planted(truth, "b", 1_000_000_000, 50), "c", -500_000_000, -20)
    found, clocks = aligned(wrong)
    assert [each.host for each in clocks] == ["b", "c"]
    assert np.abs(found.entered - truth.entered).max() <= 50_000
    same, none = aligned(met(["a", "a"]))
    assert none == []
    np.testing.assert_array_equal(same.entered, met(["a", "a"]).entered)


def test_hosts_of_one_kernel_have_its_clock_though_one_always_comes_late() -> None:
    """GIVEN supervisors beside each other on two nodes, which have added unlike much for Unix time THEN those of a node
    are not apart by anything else, and only the nodes' clocks are unsure."""
    truth = met(["a", "a.2", "b", "b.2"], last_late_ns=8_000_000)
    truth = replace(truth, clocks=[("boot a", 7), ("boot a", 3_000_007), ("boot b", 0), ("boot b", -40)])
    wrong = planted(planted(truth, "b", 1_000_000_000, 50), "b.2", 1_000_000_000, 50)
    found, clocks = aligned(planted(planted(wrong, "a.2", 3_000_000, 0), "b.2", -40, 0))
    assert [each.host for each in clocks] == ["a.2", "b", "b.2"]
    assert (clocks[0].offset_ns, clocks[0].drift, clocks[0].unsure_ns) == (3_000_000, 0, 0)
    np.testing.assert_array_equal(found.entered[1], truth.entered[1])
    assert np.abs(found.entered - truth.entered).max() <= 50_000 <= clocks[1].unsure_ns == clocks[2].unsure_ns
    assert np.ptp((found.entered - truth.entered)[2:], axis=0).max() < 10  # rounded


@pytest.mark.parametrize("offset_ns", [1_000_000_000, -1_000_000_000])
def test_clocks_that_cannot_be_one_are_told_apart_whatever_the_kernel(offset_ns: int) -> None:
    """GIVEN a clock of its own beside that of the kernel, as in a time namespace."""
    truth = replace(met(["a", "b"]), clocks=[("boot", 0), ("boot", 0)])
    found, (clock,) = aligned(planted(truth, "b", offset_ns, 50))
    assert np.abs(found.entered - truth.entered).max() <= 50_000 and clock.unsure_ns > 0


def test_the_kernel_of_each_rank_s_clock_is_told_by_its_supervisor(tmp_path: Path) -> None:
    run = ranks_run(tmp_path / "run", 3, 20, hosts=3)
    for manifest, boot in zip(run.manifests, ("one", "one", ""), strict=True):
        manifest.boot = boot
        manifest.save(manifest.path_in(run.path))
    meetings = next(find_meetings(open_run(run.path)))
    assert meetings.clocks == [("one", 0), ("one", 0), ("", 0)]
    _, clocks = aligned(meetings)
    assert [each.unsure_ns > 0 for each in clocks] == [False, True]


def test_a_clock_that_jumps_fits_no_line_and_that_is_told() -> None:
    truth = met(["a", "b"])
    jumping = planted(truth, "b", 0, 0)
    jumping.entered[1, MEETINGS // 2 :] += 50_000_000
    jumping.left[1, MEETINGS // 2 :] += 50_000_000
    _, (clock,) = aligned(jumping)
    assert clock.unsure_ns < 0
