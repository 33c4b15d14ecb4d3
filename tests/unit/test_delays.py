"""Whose delay the ranks waited for: planted in each phase, of one rank or in turns, among noise; none without any."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import BACKWARD, FORWARD, LOADING, OPTIMIZER, STEP_MS, TRANSFER, Longer, both, delay, noise, ranks_run
from synthetic import Tape, make_run, ns

from tracekit.analysis.accounts import Account
from tracekit.analysis.delays import NOISE, THROUGHOUT, causes, find_delays
from tracekit.analysis.efficiency import _on_path, critical_path, efficiency
from tracekit.analysis.meetings import GARBAGE, PHASES, Meetings, chosen, find_meetings, find_ways, with_parts
from tracekit.analysis.meetings import meetings_of as meetings_of_all
from tracekit.analysis.people import Person, _in_one_attempt, find_people, jobs_of
from tracekit.analysis.ranks import rank_groups
from tracekit.analysis.recurring import in_stretches, in_turns
from tracekit.analysis.report import analyze
from tracekit.analysis.steps import find_steps
from tracekit.analysis.text import text_report
from tracekit.run.reader import Run, open_run

SHARE = 0.05  # of a step, that a delay takes
STEP_NS = STEP_MS * 1e6
RANDOM = np.random.default_rng(0).integers(1 << 20, size=1000)


def meetings_of(run: Run) -> Meetings:
    (found,) = find_meetings(run)
    return found


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("phase", ["loading", "forward", "backward", "optimizer"])
def test_a_rank_that_is_always_late_is_named_with_its_phase(phase: str, ranks: int, tmp_path: Path) -> None:
    late = delay(phase, SHARE * STEP_MS, lambda step: ranks - 1)
    run = ranks_run(tmp_path / "run", ranks, longer=both(late, noise(0.003)))
    (named,) = find_delays(meetings_of(run), STEP_NS).delays
    assert (named.rank, named.phase) == (ranks - 1, phase)
    assert named.always and named.by == "blocked"
    assert named.step_share[0] < SHARE * 1.1 and named.step_share[2] > SHARE * 0.8


@pytest.mark.parametrize("late", [0, 1])
def test_who_waits_for_buffers_of_another_one_is_not_late(late: int, tmp_path: Path) -> None:
    """GIVEN ranks that wait for the buffers of rank 0 before the forward pass, and one whose loading is late THEN it is
    named alone, with all that it cost the other; nobody, where none is late."""
    planted = delay("loading", SHARE * STEP_MS, lambda step: late)
    found = find_delays(
        meetings_of(ranks_run(tmp_path / "run", 2, longer=both(planted, noise(0.003)), gives=True)), STEP_NS
    )
    assert [(each.rank, each.phase) for each in found.delays] == [(late, "loading")]
    assert found.delays[0].cost_s == pytest.approx(SHARE * STEP_MS * 200 / 1e3, rel=0.15)
    clean = ranks_run(tmp_path / "clean", 2, longer=noise(0.003), gives=True)
    assert find_delays(meetings_of(clean), STEP_NS).delays == []


def test_who_waits_in_a_way_that_nobody_sees_is_not_late(tmp_path: Path) -> None:
    """GIVEN a rank whose loading is late, and another one that waits for it already before they meet, as for a file or
    by asking for a future THEN only the late one is named."""
    late = delay("loading", SHARE * STEP_MS, lambda step: 1)
    waits = delay("forward", SHARE * STEP_MS, lambda step: 0)
    run = ranks_run(tmp_path / "run", 2, longer=both(both(late, waits), noise(0.0005)))
    assert find_delays(meetings_of(run), STEP_NS).delays == []
    run = ranks_run(tmp_path / "more", 2, longer=both(both(late, late), both(waits, noise(0.0005))))
    assert [(each.rank, each.phase) for each in find_delays(meetings_of(run), STEP_NS).delays] == [(1, "loading")]


@pytest.mark.parametrize("from_then", [0, 120])
def test_ranks_that_count_unlike_are_told_nothing(from_then: int, tmp_path: Path) -> None:
    """GIVEN a rank that has not seen something that all did together, and is one behind from then on."""
    run = ranks_run(tmp_path / "run", 2, longer=noise(0.003))
    people = find_people(run)
    ways = [way for who in people for way in find_ways(run.of(who.process), who)]
    a_step = ways[1].sequence[1] - ways[1].sequence[0]
    unlike = ways[1].sequence + a_step * (ways[1].sequence >= from_then)
    assert rank_groups(ways, people, find_steps(run))[1] == []
    groups, missing = rank_groups([ways[0], replace(ways[1], sequence=unlike)], people, find_steps(run))
    assert groups == [] and "was not seen on each" in missing[0].why

    def each(function: Callable[..., Any], *items: Iterable[Any]) -> Iterator[Any]:
        for of_process in map(function, *items):
            is_late = isinstance(of_process, Account) and of_process.person.rank == 1
            yield replace(of_process, ways=[replace(ways[1], sequence=unlike)]) if is_late else of_process

    report = analyze(run, each=each)
    assert report.ranks == [] and missing[0] in report.missing and analyze(run).ranks


def test_turns_are_told_by_the_steps_whatever_else_is_communicated(tmp_path: Path) -> None:
    """GIVEN ranks that are late in turns, and one more meeting of all behind every tenth step."""
    late = both(delay("forward", SHARE * STEP_MS, lambda step: step % 2), noise(0.003))
    (group,) = analyze(ranks_run(tmp_path / "run", 2, longer=late, extra=lambda step: step % 10 == 9)).ranks
    assert {(each.rank, each.phase, each.always) for each in group.delays} == {
        (rank, "forward", False) for rank in (0, 1)
    }


def test_ranks_of_another_world_are_not_met(tmp_path: Path) -> None:
    """GIVEN a program that starts two ranks, and then three THEN these are two groups."""
    two, three = (ranks_run(tmp_path / str(ranks), ranks) for ranks in (2, 3))
    ranks = [(rank, world) for world in (2, 3) for rank in range(world)]
    people = [Person(process, rank=rank, world=world) for process, (rank, world) in enumerate(ranks)]
    ways = [
        replace(way, who=people[first + way.who.rank])
        for run, first in ((two, 0), (three, 2))
        for who in find_people(run)
        for way in find_ways(run.of(who.process), who)
    ]
    assert [each.ranks for each in meetings_of_all(ways, people)] == [[0, 1, 2], [0, 1]]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("phase", ["loading", "forward", "backward", "optimizer"])
def test_ranks_that_are_late_in_turns_are_all_named(phase: str, ranks: int, tmp_path: Path) -> None:
    run = ranks_run(
        tmp_path / "run", ranks, longer=both(delay(phase, SHARE * STEP_MS, lambda step: step % ranks), noise(0.003))
    )
    named = find_delays(meetings_of(run), STEP_NS).delays
    assert {each.rank for each in named} == set(range(ranks))
    assert {each.phase for each in named} == {phase}
    assert not any(each.always for each in named)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    ("persistence", "computes", "whose"),
    [
        ("stretches", True, lambda step: step // 10),
        ("stretches", False, lambda step: step // 7),
        ("random", False, lambda step: int(RANDOM[step])),
    ],
)
def test_ranks_that_are_late_in_another_order_are_all_named(
    persistence: str, computes: bool, whose: Callable[[int], int], ranks: int, tmp_path: Path
) -> None:
    """GIVEN ranks that are late for some steps in succession, or now one and now another."""
    late = delay("forward", 0.1 * STEP_MS, lambda step: whose(step) % ranks)
    kept = noise(0.0001)  # where hosts do not tell of that, being kept from a CPU is taken for blocked
    run = ranks_run(tmp_path / "run", ranks, longer=both(late, noise(0.003)), kept=kept, computes=computes)
    report = analyze(run)
    found = [(each.rank, each.phase, each.persistence) for each in report.ranks[0].delays]
    assert sorted(found) == [(rank, "forward", persistence) for rank in range(ranks)]
    words = {"stretches": "in stretches of steps", "random": "now and then"}[persistence]
    assert all(words in each.title for each in report.findings if each.id == "delay.root_cause")


@pytest.mark.parametrize(("phase", "whose", "computes", "threads", "cpus", "is_named"), [
    ("backward", lambda step: step // 10, True, 2, 2, False),
    ("backward", lambda step: step // 10, True, 2, 6, True),
    ("backward", lambda step: step // 10, True, 1, 2, True),
    ("backward", lambda step: int(RANDOM[step]), False, 4, 2, False),
    ("loading", lambda step: int(RANDOM[step]), False, 4, 2, True),
    ("backward", lambda step: 0, False, 4, 2, True),
])  # fmt: skip
def test_threads_that_wait_for_each_other_make_no_rank_late_now_and_then(
    phase: str,
    whose: Callable[[int], int],
    computes: bool,
    threads: int,
    cpus: int,
    is_named: bool,
    tmp_path: Path,
) -> None:
    """GIVEN ranks that are longer in a phase for some steps, as where the threads that share an operator have too few
    CPUs THEN these name nobody for a phase of operators, but who is late in the mean over all steps; it is told."""
    late = both(delay(phase, 0.1 * STEP_MS, lambda step: whose(step) % 2), noise(0.003))
    kept = noise(0.0001)
    run = ranks_run(tmp_path / "run", longer=late, kept=kept, computes=computes, cpus=cpus, threads=threads)
    report = analyze(run)
    assert {each.phase for each in report.ranks[0].delays} == {phase} if is_named else not report.ranks[0].delays
    is_told = any(note.what == "who is late now and then in forward, backward, optimizer" for note in report.missing)
    assert is_told == (threads > 1 and cpus == 2)


@pytest.mark.parametrize(("phase", "share", "is_named"), [
    ("backward", 0.012, None), ("backward", 0.03, "undecided"), ("backward", 0.05, "root_cause"),
    ("forward", 0.012, None), ("forward", 0.03, "root_cause"),
])  # fmt: skip
def test_computing_longer_is_named_where_it_is_more_than_machines_do_by_chance(
    phase: str, share: float, is_named: str | None, tmp_path: Path
) -> None:
    """GIVEN a rank that computes a phase longer in all steps THEN it is the cause where that is more than one
    start of a process differs from the next; undecided where it is as much."""
    late = delay(phase, share * STEP_MS, lambda step: 0)
    run = ranks_run(tmp_path / "run", 2, longer=both(late, noise(0.003)), computes=True)
    report = analyze(run)
    named = report.ranks[0].delays
    assert [(each.rank, each.phase, each.by) for each in named] == [(0, phase, "computing")] * bool(is_named)
    told = [each for each in report.findings if each.id.startswith("delay.")]
    assert [each.id for each in told] == [f"delay.{is_named}"] * bool(is_named)
    assert all(("another recording" in each.title) == (is_named == "undecided") for each in told)


def test_a_phase_that_is_longer_in_few_steps_is_the_rank_s_doing(tmp_path: Path) -> None:
    """GIVEN a rank that computes for another 30 % of a step in every tenth one, as to validate THEN it is certain."""
    late = delay("forward", 0.3 * STEP_MS, lambda step: 0 if step % 10 == 9 else -1)
    run = ranks_run(tmp_path / "run", 2, longer=both(late, noise(0.003)), computes=True)
    (named,) = find_delays(meetings_of(run), STEP_NS).delays
    assert (named.rank, named.phase, named.undecided) == (0, "forward", False)


def test_who_is_slower_for_a_while_is_undecided_or_nobody(tmp_path: Path) -> None:
    """GIVEN a rank that computes 3 % of a step longer in the first half of a run, and the other one in the second."""
    for seed in range(3):
        late = delay("backward", 0.03 * STEP_MS, lambda step: step // 100)
        run = ranks_run(tmp_path / str(seed), 2, longer=both(late, noise(0.01, seed)), computes=True)
        assert all(each.undecided for each in find_delays(meetings_of(run), STEP_NS).delays)


def test_who_is_late_by_a_phase_and_kept_from_its_cpu_then_is_late_by_the_phase_first(tmp_path: Path) -> None:
    """GIVEN a rank that is late by little in a phase, and kept for longer as it goes on THEN the phase is the first
    cause; the noise is, where another rank has it."""
    late = delay("loading", 0.06 * STEP_MS, lambda step: 1)
    of_itself, of_another = (delay("forward", 0.2 * STEP_MS, whose) for whose in (lambda step: 1, lambda step: 0))
    for kept, first in ((of_itself, "loading"), (of_another, NOISE)):
        run = ranks_run(tmp_path / first, 2, longer=both(late, noise(0.003)), kept=both(kept, noise(0.0001)))
        named = find_delays(meetings_of(run), STEP_NS).delays
        assert named[0].phase == first and any(each.phase == NOISE for each in named)


def test_what_is_undecided_is_told_behind_what_is_certain(tmp_path: Path) -> None:
    """GIVEN ranks that are late in turns, and one that computes longer in all steps, which costs the others more."""
    turns = delay("loading", SHARE * STEP_MS, lambda step: step % 2)
    start = delay("backward", 0.04 * STEP_MS, lambda step: 0)
    run = ranks_run(tmp_path / "run", 2, longer=both(both(turns, start), noise(0.003)), computes=True)
    named = find_delays(meetings_of(run), STEP_NS).delays
    assert [each.undecided for each in named] == [False, False, True]
    assert {(each.rank, each.phase) for each in named[:2]} == {(0, "loading"), (1, "loading")}
    assert (named[2].rank, named[2].phase) == (0, "backward") and named[2].cost_s > named[1].cost_s


PASSES = ["forward", "backward"]
TAKES = {"loading": LOADING, "forward": FORWARD, "backward": BACKWARD, "optimizer": OPTIMIZER}


def slower(share: float, of_rank: int) -> Longer:
    """Everything takes that rank longer."""
    return lambda rank, step, phase: share * TAKES[phase] if rank == of_rank else 0.0


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("share", "is_named"), [(0.04, False), (0.08, True)])
def test_who_is_slower_throughout_is_named_with_no_phase(
    share: float, is_named: bool, ranks: int, tmp_path: Path
) -> None:
    """GIVEN a rank whose CPU is slower THEN no phase of it is a cause, however little is computed in the others."""
    late = both(slower(share, ranks - 1), noise(0.003))
    report = analyze(ranks_run(tmp_path / "run", ranks, longer=late, computes=True))
    named = [(each.rank, each.phase, each.by, each.always) for each in report.ranks[0].delays]
    assert named == [(ranks - 1, THROUGHOUT, "throughout", True)] * is_named
    titles = [each.title for each in report.findings if each.id.startswith("delay.")]
    assert len(titles) == is_named and all("as on a slower CPU" in title for title in titles)
    assert [each.id for each in report.findings if each.id.startswith("delay.")] == ["delay.slower_rank"] * is_named
    assert ("as on a slower CPU" in " ".join(text_report(report).split())) == is_named
    assert not is_named or report.ranks[0].delays[0].step.expected == pytest.approx(share * 19 / 20, rel=0.2)
    assert not is_named or report.ranks[0].delays[0].share_of_waiting > 0.5


@pytest.mark.parametrize("whose", [lambda step: step // 10 % 2, lambda step: -(step // 10 % 5 != 0)])
@pytest.mark.parametrize("seed", range(3))
def test_who_is_slower_throughout_for_a_while_is_named_for_no_phase(
    seed: int, whose: Callable[[int], int], tmp_path: Path
) -> None:
    """GIVEN CPUs that take 16 % longer for both passes, and 10 % for the rest, in some stretches of steps."""
    slow = [delay(phase, (0.16 if phase in PASSES else 0.1) * TAKES[phase], whose) for phase in TAKES]
    run = ranks_run(tmp_path / "run", 2, longer=both(*slow, noise(0.003, seed)), computes=True)
    assert find_delays(meetings_of(run), STEP_NS).delays == []


def test_a_phase_is_named_beside_all_of_a_slower_rank(tmp_path: Path) -> None:
    late = both(slower(0.1, 1), delay("backward", 2 * SHARE * STEP_MS, lambda step: 1), noise(0.003))
    (group,) = analyze(ranks_run(tmp_path / "run", 2, longer=late, computes=True)).ranks
    shares = {(each.rank, each.phase): each.share_of_waiting for each in group.delays}
    assert shares.keys() == {(1, THROUGHOUT), (1, "backward")}
    alike = 0.1 * (STEP_MS - TRANSFER) / (0.1 * (STEP_MS - TRANSFER) + 2 * SHARE * STEP_MS)
    assert shares[1, THROUGHOUT] == pytest.approx(alike, abs=0.05)
    assert shares[1, "backward"] == pytest.approx(1 - alike, abs=0.05)


@pytest.mark.parametrize("seed", range(3))
def test_phases_that_a_cpu_slows_unlike_are_not_named(seed: int, tmp_path: Path) -> None:
    """GIVEN a rank that takes 15 % longer for both passes, and 8 % for the rest THEN it is told as slower."""
    unlike = both(slower(0.08, 1), *(delay(phase, 0.07 * TAKES[phase], lambda step: 1) for phase in PASSES))
    (group,) = analyze(ranks_run(tmp_path / "run", 2, longer=both(unlike, noise(0.003, seed)), computes=True)).ranks
    assert [(each.rank, each.phase) for each in group.delays] == [(1, THROUGHOUT)]


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_slower_rank_is_told_though_its_phases_are_slowed_unlike(ranks: int, tmp_path: Path) -> None:
    """GIVEN a rank that takes 9 % longer, but 5 % for loading THEN neither threshold hides it."""
    late = both(slower(0.09, 1), delay("loading", -0.04 * LOADING, lambda step: 1), noise(0.002))
    (group,) = analyze(ranks_run(tmp_path / "run", ranks, longer=late, computes=True)).ranks
    assert [(each.rank, each.phase) for each in group.delays] == [(1, THROUGHOUT)]
    assert group.delays[0].share_of_waiting > 0.5


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_ranks_that_compute_longer_in_turns_are_named_where_one_is_slower(phase: str, tmp_path: Path) -> None:
    """GIVEN turns that come to four ranks, of which one is slower throughout by less than is told of."""
    late = both(delay(phase, SHARE * STEP_MS, lambda step: step % 4), slower(0.02, 2), noise(0.003))
    (group,) = analyze(ranks_run(tmp_path / "run", 4, 400, longer=late, computes=True)).ranks
    assert {(each.rank, each.phase, each.always) for each in group.delays} == {
        (rank, phase, False) for rank in range(4)
    }


def test_two_phases_of_a_rank_are_named_where_a_third_is_not_longer(tmp_path: Path) -> None:
    late = both(*(delay(phase, SHARE * STEP_MS, lambda step: 1) for phase in ("forward", "backward")), noise(0.003))
    (group,) = analyze(ranks_run(tmp_path / "run", 2, longer=late, computes=True)).ranks
    assert {(each.rank, each.phase) for each in group.delays} == {(1, "forward"), (1, "backward")}


@pytest.mark.parametrize("late", [{2, 3}, {3}])
def test_a_host_whose_ranks_are_all_slower_is_told_so(late: set[int], tmp_path: Path) -> None:
    all_slower = both(*(slower(0.2, rank) for rank in late), noise(0.003))
    report = analyze(ranks_run(tmp_path / "run", 4, longer=all_slower, computes=True, hosts=2))
    assert {(each.rank, each.phase) for each in report.ranks[0].delays} == {(rank, THROUGHOUT) for rank in late}
    said = ", as all ranks of node1, caused" if len(late) == 2 else "rank 3 on node1 caused"
    assert all(said in each.title for each in report.findings if each.id == "delay.slower_rank")


def test_who_collects_garbage_is_named_with_that(tmp_path: Path) -> None:
    """GIVEN a rank that collects garbage in each backward pass THEN that is its delay, not the pass."""
    late = delay("backward", SHARE * STEP_MS, lambda step: 1)
    run = ranks_run(tmp_path / "run", 2, longer=noise(0.002), collects=late)
    meetings = meetings_of(run)
    (named,) = find_delays(meetings, STEP_NS).delays
    assert (named.rank, named.phase, named.by, named.always) == (1, GARBAGE, "computing", True)
    assert named.step_share[1] == pytest.approx(SHARE, rel=0.1)
    own = dict(zip(PHASES, meetings.own[1, 1:].mean(axis=0), strict=True))
    assert own[GARBAGE] == pytest.approx(SHARE * STEP_NS, rel=0.01)


@given(st.data())
def test_collections_of_garbage_take_their_time_out_of_the_phases_they_fall_in(data: st.DataObject) -> None:
    """GIVEN changes of phase, and collections between them THEN all time, on the CPU and off it, is told once."""
    moments = np.cumsum(data.draw(st.lists(st.integers(1, 1000), min_size=2, max_size=8)))
    names = data.draw(
        st.lists(st.sampled_from(["forward", "backward", ""]), min_size=len(moments), max_size=len(moments))
    )
    cpu = np.cumsum([0, *(data.draw(st.integers(0, int(length))) for length in np.diff(moments))])
    changes = pd.DataFrame(
        {"thread": 1, "start_ns": moments, "phase": names, "cpu_ns": cpu, "delayed_ns": moments - moments[0] - cpu}
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, int(moments[-1]) + 100), max_size=8, unique=True)))
    spans = np.array(list(zip(cuts[::2], cuts[1::2], strict=False)), dtype=np.int64).reshape(-1, 2)
    inside = [(begin, end) for begin, end in spans.tolist() if not ((moments > begin) & (moments < end)).any()]
    found = with_parts(changes, np.array(inside, dtype=np.int64).reshape(-1, 2), GARBAGE)
    for column in ("start_ns", "cpu_ns", "delayed_ns"):
        values = found[column].to_numpy()
        assert (np.diff(values) >= 0).all() and [values[0], values[-1]] == changes[column].iloc[[0, -1]].tolist()
    took = np.diff(found["start_ns"])
    collecting = int(took[found["phase"].to_numpy()[:-1] == GARBAGE].sum())
    place = [int(np.searchsorted(moments, begin, "right")) - 1 for begin, _ in inside]
    known = [at for at, where in enumerate(place) if 0 <= where < len(moments) - 1 and names[where]]
    assert collecting == sum(inside[at][1] - inside[at][0] for at in known)


@pytest.mark.parametrize("seed", range(5))
def test_nobody_is_named_where_nobody_is_late(seed: int, tmp_path: Path) -> None:
    run = ranks_run(tmp_path / "run", 2, longer=noise(0.005, seed))
    waiting = find_delays(meetings_of(run), STEP_NS)
    assert waiting.waited_s > 0
    assert waiting.delays == []


def test_who_is_kept_from_its_cpu_is_named_with_that(tmp_path: Path) -> None:
    """GIVEN a rank that others keep from its CPU THEN no phase of it is named, but the noise, with its host."""
    kept = delay("forward", 0.3 * STEP_MS, lambda step: 1)
    run = ranks_run(tmp_path / "run", 2, longer=noise(0.002), kept=both(kept, noise(0.0001)), hosts=2)
    waiting = find_delays(meetings_of(run), STEP_NS)
    assert [(each.rank, each.phase, each.by, each.always) for each in waiting.delays] == [(1, NOISE, "kept", True)]
    assert waiting.delays[0].step_share[1] == pytest.approx(0.3, rel=0.05)
    assert waiting.kept_share > 0.9 and waiting.delays[0].share_of_waiting > 0.9
    assert set(causes(meetings_of(run))[1:]) == {NOISE}
    (cause,) = [each for each in analyze(run).findings if each.id == "delay.root_cause"]
    assert "rank 1's noise on node1 caused" in cause.title and "kept from its CPU" in cause.title


def test_no_noise_is_named_where_a_host_does_not_tell_of_it(tmp_path: Path) -> None:
    run = ranks_run(tmp_path / "run", 2, longer=noise(0.002), kept=delay("forward", 0.3 * STEP_MS, lambda step: 1))
    assert find_delays(meetings_of(run), STEP_NS).delays == []


def test_ranks_that_are_kept_from_their_cpus_alike_are_not_named(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    kept = [random.exponential(0.1 * STEP_MS, 200) for _ in range(2)]
    run = ranks_run(
        tmp_path / "run", 2, kept=lambda rank, step, phase: kept[rank][step] if phase == "backward" else 0.0
    )
    waiting = find_delays(meetings_of(run), STEP_NS)
    assert waiting.delays == [] and waiting.kept_share > 0.9


def test_a_rare_long_delay_is_named_and_one_single_one_is_not(tmp_path: Path) -> None:
    def at(steps: set[int]) -> Run:
        def longer(rank: int, step: int, phase: str) -> float:
            return STEP_MS if (rank, phase) == (0, "optimizer") and step in steps else 0.0

        return ranks_run(tmp_path / f"run{len(steps)}", 2, longer=both(longer, noise(0.002)))

    (named,) = find_delays(meetings_of(at(set(range(0, 200, 20)))), STEP_NS).delays
    assert (named.rank, named.phase) == (0, "optimizer")
    assert find_delays(meetings_of(at({100})), STEP_NS).delays == []


def test_of_very_many_meetings_the_same_stretches_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN more meetings than are looked at, of which one rank lacks some THEN it is told how many are, and what is
    said of waiting, delays and efficiency is as of all of them."""
    late = both(delay("loading", SHARE * STEP_MS, lambda step: 1), noise(0.003))
    run = ranks_run(tmp_path / "run", 2, 2000, longer=late, missing=lambda rank, step: rank == 1 and step % 100 == 50)
    (whole,) = analyze(run).ranks
    monkeypatch.setattr("tracekit.analysis.meetings._MOST", 500)
    monkeypatch.setattr("tracekit.analysis.meetings._LEAST", 500)
    (group,) = analyze(run).ranks
    assert whole.meetings == 1980 and whole.looked_at == 1
    assert 250 <= group.meetings <= 550 and group.looked_at == pytest.approx(group.meetings / 1980, rel=0.1)
    assert "of the meetings of group world were looked at" in " ".join(text_report(analyze(run)).split())
    assert [(each.rank, each.phase) for each in group.delays] == [(1, "loading")]
    assert group.waited == pytest.approx(whole.waited, rel=0.15)
    assert group.transfer == pytest.approx(whole.transfer, rel=0.05)
    assert group.efficiency["parallel"] == pytest.approx(whole.efficiency["parallel"], rel=0.02)
    meetings = meetings_of(run)
    gaps = np.diff(meetings.sequence) > 3 * 3  # a step counts three, and one that is missing on a rank three more
    assert not meetings.seen[1:][gaps].any() and meetings.seen.sum() > 0.8 * len(gaps)


@given(st.integers(1, 40), st.integers(2000, 20000), st.integers(100, 1500), st.integers(0, 2**32), st.floats(0, 0.6))
def test_ranks_that_lack_meetings_look_at_the_same_stretches(
    apart: int, count: int, most: int, seed: int, lacks: float
) -> None:
    """GIVEN meetings of which one rank lacks some, but not the last one THEN it has what the other one looks at."""
    every = apart * np.arange(count)
    some = every[(np.random.default_rng(seed).random(count) >= lacks) | (every == every[-1])]
    of_all, of_some = every[chosen(every, most)], some[chosen(some, most)]
    assert most / 5 <= len(of_all) <= 2 * most
    assert set(np.intersect1d(of_all, some)) <= set(of_some)


@given(st.lists(st.integers(1, 10**7), min_size=60, max_size=300), st.integers(1, 50), st.integers(0, 10**10))
def test_however_far_apart_meetings_are_some_are_looked_at_and_not_too_many(
    apart: list[int], most: int, begin: int
) -> None:
    assert 0 < len(chosen(begin + np.cumsum(apart), most)) <= 2 * most


def test_who_saves_before_all_meet_is_named(tmp_path: Path) -> None:
    """GIVEN a rank that takes two steps' time behind every twentieth step, and a barrier behind that THEN it is named:
    that step has a meeting more than others."""

    def is_saved(step: int) -> bool:
        return step % 20 == 19

    saves = delay("optimizer", 2 * STEP_MS, lambda step: 0 if is_saved(step) else -1)
    (group,) = analyze(ranks_run(tmp_path / "run", 2, longer=both(saves, noise(0.002)), extra=is_saved)).ranks
    assert [(each.rank, each.phase) for each in group.delays] == [(0, "optimizer")]


@pytest.mark.parametrize(("share", "is_named"), [(0.004, False), (SHARE, True)])
def test_ranks_that_meet_now_and_then_are_compared_by_the_step(share: float, is_named: bool, tmp_path: Path) -> None:
    """GIVEN ranks that meet in every tenth step, of which one is late in each THEN it is named where it is by as much
    as if they met in each."""
    late = both(delay("forward", share * STEP_MS, lambda step: 1), noise(0.002))
    run = ranks_run(tmp_path / "run", 2, 400, late, missing=lambda rank, step: step % 10 > 0)
    (group,) = analyze(run).ranks
    assert [(each.rank, each.phase) for each in group.delays] == [(1, "forward")] * is_named
    assert not is_named or group.delays[0].step.expected == pytest.approx(SHARE, rel=0.1)


def test_of_a_few_steps_nobody_is_named(tmp_path: Path) -> None:
    run = ranks_run(tmp_path / "run", 2, 8, delay("forward", STEP_MS, lambda step: 1))
    assert find_delays(meetings_of(run), STEP_NS).delays == []


def test_what_a_rank_waits_for_unseen_is_not_its_own_work(tmp_path: Path) -> None:
    """GIVEN ranks whose gradients are on devices, and a barrier in each step; one loads longer, and the other waits for
    it where it asks for the loss THEN that is nobody's delay: when the gradients were there nobody saw."""
    tapes = [Tape(process=rank, role=f"rank {rank}", rank=rank, thread=100 + rank) for rank in range(2)]
    for step in range(60):
        for rank, tape in enumerate(tapes):
            tape.batch(1.0 + 5.0 * rank, index=step)
            tape.change("backward", tape.now)
            tape.met(tape.now, tape.now, tape.now, 2 * step, op="bucket", bucket=0, is_async=True, unsure_ns=-1)
            tape.change("other", tape.now)
            tape.gap(2.0 + 5.0 * (1 - rank))
            tape.met(tape.now, tape.now, tape.now + ns(0.1), 2 * step + 1, op="barrier")
            tape.gap(0.1)
            tape.optimizer(1.0)
            tape.change("loading", tape.now)
    found = meetings_of(open_run(make_run(tmp_path / "run", tapes)))
    assert found.entered.shape == (2, 60) and not found.seen.any()
    assert find_delays(found, STEP_NS).delays == [] and efficiency(found) is None


@pytest.mark.parametrize("late_ms", [0.0, 2.0])
def test_what_a_rank_does_beside_a_collective_is_its_own_work(late_ms: float, tmp_path: Path) -> None:
    """GIVEN ranks that begin an all-reduce, compute for 10 ms beside it, one of them for longer, and wait for it then
    THEN that one is named, and no time is said to be the transfer's that the ranks have computed in."""
    tapes = [Tape(process=rank, role=f"rank {rank}", rank=rank, thread=100 + rank) for rank in range(2)]
    for step in range(60):
        begun = []
        for rank, tape in enumerate(tapes):
            tape.change("other", tape.now)
            begun.append(tape.now)
            tape.change("forward", tape.now)
            tape.gap(10.0 + late_ms * rank)
        back = max(begun) + ns(1.0)
        for rank, tape in enumerate(tapes):
            tape.change("communication", tape.now)
            came, tape.now = tape.now, max(tape.now, back)
            tape.met(begun[rank], begun[rank], tape.now, step, is_async=True)
            tape.met(begun[rank], came, tape.now, -1, op="wait for all_reduce")
            tape.change("optimizer", tape.now)
            tape.optimizer(1.0)
            tape.change("other", tape.now)
    found = meetings_of(open_run(make_run(tmp_path / "run", tapes)))
    assert found.entered.shape == (2, 60)
    named = [(each.rank, each.phase) for each in find_delays(found, 11e6).delays]
    assert named == [(1, "forward")] * (late_ms > 0)
    shared, path = efficiency(found), critical_path(found)
    assert shared is not None and shared.transfer == pytest.approx(1.0, abs=0.01)
    assert shared.load_balance == pytest.approx((11 + late_ms / 2) / (11 + late_ms), abs=0.01)
    assert path["forward"] == pytest.approx((10 + late_ms) * 59 / 1e3, rel=0.02) and path["transfer"] < 0.01


def test_of_what_was_begun_at_once_ranks_meet_in_the_last(tmp_path: Path) -> None:
    """GIVEN gradients that are sent as they come, and waited for in the end; of those of the late rank all but the last
    are found done before THEN the other one waited for it, and it is named."""
    tapes = [Tape(process=rank, role=f"rank {rank}", rank=rank, thread=100 + rank) for rank in range(2)]
    for step in range(60):
        begun = []
        for rank, tape in enumerate(tapes):
            tape.change("forward", tape.now)
            tape.gap(3.0 + 2.0 * rank)
            tape.change("backward", tape.now)
            begun.append([tape.now + ns(each) for each in (1, 2, 3)])
            tape.gap(3.0)
            tape.change("communication", tape.now)
        for rank, tape in enumerate(tapes):
            for number in range(3):
                back = max(each[number] for each in begun) + ns(0.1)
                came, own = tape.now, begun[rank][number]
                tape.now = max(tape.now, back)
                tape.met(own, own, back, 3 * step + number, is_async=True)
                if rank == 0 or number == 2:
                    tape.met(own, came, tape.now, -1, op="wait for all_reduce")
            tape.change("optimizer", tape.now)
            tape.optimizer(1.0)
    found = meetings_of(open_run(make_run(tmp_path / "run", tapes)))
    assert found.entered.shape == (2, 60)
    (named,) = find_delays(found, 9e6).delays
    assert (named.rank, named.phase) == (1, "forward")
    assert found.waited[0].mean() == pytest.approx(2e6, rel=0.05)


def test_a_meeting_behind_steps_that_are_left_out_tells_nothing_of_them(tmp_path: Path) -> None:
    """GIVEN 100 steps, 100 that are left out, and a barrier at the end THEN as much is said as of the first hundred."""
    late = both(delay("forward", SHARE * STEP_MS, lambda step: 1), noise(0.002))
    (whole,) = analyze(ranks_run(tmp_path / "whole", 2, 100, late)).ranks
    run = ranks_run(tmp_path / "run", 2, 200, late, left_out=lambda step: step >= 100, extra=lambda step: step == 199)
    (group,) = analyze(run).ranks
    assert group.seconds == pytest.approx(whole.seconds, rel=0.01)
    assert group.waited == pytest.approx(whole.waited, rel=0.05)
    assert group.efficiency == pytest.approx(whole.efficiency, rel=0.01)


def test_the_largest_of_many_turns_is_not_believed() -> None:
    """GIVEN noise alone THEN what is told of the turn in which a rank took longest is below nothing as often."""
    random, ranks = np.random.default_rng(0), 16
    steps = np.arange(ranks * 20)
    told = np.array([in_turns(random.standard_normal(len(steps)), steps, ranks).longer[1] for _ in range(300)])
    assert abs(told.mean()) < 3 * told.std() / np.sqrt(len(told))


def test_stretches_are_not_told_by_the_steps_that_choose_them() -> None:
    """GIVEN noise alone, and steps of which some are not known THEN hardly ever a rank seems late in stretches."""
    random = np.random.default_rng(0)
    steps = np.sort(random.choice(400, 300, replace=False))
    told = np.array([in_stretches(random.standard_normal(len(steps)), steps, 4).longer[1] for _ in range(300)])
    assert (told > 0).mean() <= 0.05


def test_ranks_that_are_started_again_together_are_of_one_attempt() -> None:
    """GIVEN two nodes, of which one's worker has failed THEN its agent counts that, and the other one's does not."""
    ranks = [(0, 0, 0), (1, 0, 0), (0, 0, 50), (1, 1, 50)]  # rank, attempt, and when it began
    people = [
        Person(process, "", rank, attempt, began_ns=began, world=2)
        for process, (rank, attempt, began) in enumerate(ranks)
    ]
    told = _in_one_attempt(people)
    assert [who.attempt for who in told] == [0, 0, 1, 1]
    assert list(jobs_of(told).values()) == [(0, 2, 0), (0, 2, 0), (1, 2, 0), (1, 2, 0)]
    # A job behind another one is none of its attempts; and a rank that nobody saw at first is of the attempt it tells.
    again = [replace(who, process=who.process + 4, attempt=0, began_ns=99) for who in people[:2]]
    assert [who.attempt for who in _in_one_attempt([*people, *again])] == [0, 0, 1, 1, 0, 0]
    assert [who.attempt for who in _in_one_attempt([people[0], *people[2:]])] == [0, 1, 1]
    late = [replace(people[2], began_ns=51), people[1], people[3]]
    assert [who.attempt for who in _in_one_attempt(late)] == [1, 0, 1]


@pytest.mark.parametrize("ahead", [-70, -40, 0, 40, 70])
def test_attempts_are_told_whatever_the_clocks_of_the_hosts_say(ahead: int) -> None:
    """GIVEN two nodes of two ranks, started again after 50 s, of which the agent of one has counted that, and the
    clocks of the other one are ahead."""
    starts = [(rank, host, began) for began in (0, 50) for rank, host in enumerate("aabb")]
    people = [
        Person(process, "", rank, int(host == "a" and began > 0), host, began + ahead * (host == "b"), world=4)
        for process, (rank, host, began) in enumerate(starts)
    ]
    assert [who.attempt for who in _in_one_attempt(people)] == [0] * 4 + [1] * 4


def test_programs_that_run_beside_each_other_are_jobs_of_their_own() -> None:
    """GIVEN two jobs of two ranks on a host, started together WHEN each has a launcher THEN its ranks are of one job;
    ranks that have a launcher each are of one, too."""
    beside = [(0, 8), (0, 9), (1, 9), (1, 8)]  # rank, and who started it
    people = [Person(process, "", rank, parent=parent, world=2) for process, (rank, parent) in enumerate(beside)]
    assert [launch for _, _, launch in jobs_of(people).values()] == [0, 1, 1, 0]
    again = [replace(who, process=who.process + 4) for who in people]
    assert [launch for _, _, launch in jobs_of([*people, *again]).values()] == [0, 1, 1, 0, 2, 3, 3, 2]
    nodes = [Person(process, "", process, parent=8 + process // 2, world=4) for process in range(4)]
    assert [launch for _, _, launch in jobs_of(nodes).values()] == [0, 0, 0, 0]
    apart = [Person(process, "", process, parent=process + 2, world=2) for process in range(2)]
    assert [launch for _, _, launch in jobs_of(apart).values()] == [0, 0]


def test_waiting_for_who_was_kept_from_its_cpu_is_told(tmp_path: Path) -> None:
    run = ranks_run(tmp_path / "run", 2, longer=noise(0.002), kept=delay("forward", 0.3 * STEP_MS, lambda step: 1))
    told = " ".join(text_report(analyze(run)).split())
    assert "was for ranks that were kept from their CPUs by what else wanted these" in told


@pytest.mark.parametrize("late_ms", [0.0, 0.3 * STEP_MS])
def test_where_nobody_is_late_that_is_said(tmp_path: Path, late_ms: float) -> None:
    late = delay("forward", late_ms, lambda step: 1)
    run = ranks_run(tmp_path / "run", 2, longer=both(noise(0.002), late))
    told = " ".join(text_report(analyze(run)).split())
    assert ("No rank of group world kept the others waiting by much in the usual step" in told) == (not late_ms)
    assert ("rank 1's forward" in told) == bool(late_ms)


def test_that_nothing_is_known_of_the_ways_is_no_news_of_nobody_being_late(tmp_path: Path) -> None:
    late = delay("forward", 4.0, lambda step: 0)
    run = ranks_run(tmp_path / "run", 2, longer=late, left_out=lambda step: step % 2 == 0)
    told = " ".join(text_report(analyze(run)).split())
    assert "is not known, so nobody is named" in told and "kept the others waiting" not in told


def test_the_waiting_is_that_of_the_others_for_the_last_one(tmp_path: Path) -> None:
    found = meetings_of(ranks_run(tmp_path / "run", 3, 50, delay("forward", 4.0, lambda step: 1)))
    assert (found.last == 1).all()
    np.testing.assert_array_equal(found.waited[:, 1:], np.array([[4e6], [0], [4e6]]).repeat(49, axis=1))
    np.testing.assert_array_equal(found.transfer, np.full((3, 50), TRANSFER * 1e6))
    own = dict(zip(PHASES, found.own[1, 1:].mean(axis=0), strict=True))
    expected = {"loading": LOADING, "forward": FORWARD + 4, "backward": BACKWARD, "optimizer": OPTIMIZER}
    for phase, ms in expected.items():
        assert own[phase] == pytest.approx(ms * 1e6)


def test_a_meeting_that_a_rank_has_no_record_of_is_left_out(tmp_path: Path) -> None:
    run = ranks_run(tmp_path / "run", 2, 50, missing=lambda rank, step: rank == 1 and step in (20, 49))
    assert meetings_of(run).entered.shape == (2, 48)


def test_a_delay_is_named_though_a_rank_has_no_record_of_every_second_meeting(tmp_path: Path) -> None:
    late = both(delay("loading", 0.1 * STEP_MS, lambda step: 2), noise(0.01))
    run = ranks_run(tmp_path / "run", 3, 240, late, missing=lambda rank, step: rank == 1 and step % 2 == 0)
    (group,) = analyze(run).ranks
    assert group.followed == 1.0
    assert [(each.rank, each.phase) for each in group.delays] == [(2, "loading")]


def test_a_rank_without_anybody_to_meet_has_no_meetings(tmp_path: Path) -> None:
    assert list(find_meetings(ranks_run(tmp_path / "run", 1))) == []


@settings(max_examples=25, deadline=None)
@given(
    st.integers(2, 4),
    st.integers(2, 30),
    st.integers(0, 2**31),
    st.integers(0, 3_000_000),
    st.booleans(),
)
def test_efficiencies_multiply_and_the_path_is_as_long_as_the_time(
    ranks: int, count: int, seed: int, transfer: int, overlaps: bool
) -> None:
    """GIVEN any work of the ranks between meetings, and beside them THEN POP's identities hold; the path adds up."""
    random = np.random.default_rng(seed)
    work = random.integers(1, 20_000_000, size=(ranks, count))
    beside = random.integers(0, 20_000_000, size=(ranks, count)) * overlaps
    entered, left = np.zeros((ranks, count), np.int64), np.zeros((ranks, count), np.int64)
    now = np.zeros(ranks, np.int64)
    for at in range(count):
        entered[:, at] = now + work[:, at]
        now = np.maximum(entered[:, at].max() + transfer, entered[:, at] + beside[:, at])
        now = now + random.integers(0, 1000, ranks)
        left[:, at] = now
    own = np.full((ranks, count, len(PHASES)), np.nan)
    own[:, 1:] = 0
    own[:, 1:, 2] = work[:, 1:] // 2
    own[:, 1:, 0] = work[:, 1:] - own[:, 1:, 2]
    own[:, 1:, 3] = beside[:, :-1]
    besides = np.zeros((ranks, count, len(PHASES) + 1))
    besides[:, :, 3] = beside
    kept, hosts, sequence = np.zeros((ranks, count)), ["node0"] * ranks, np.arange(count)
    seen = (sequence > 0) & (random.random(count) < 0.8)
    seen[1] = True
    awaited = own[:, :, :1] * random.random((ranks, count, 2))  # more than all of the loading, now and then
    own[:, ~seen] = np.nan
    blocked = np.zeros_like(own)
    held = np.zeros_like(entered)
    found = Meetings(
        "world", 0, list(range(ranks)), hosts, sequence, seen, entered, beside, left, own, blocked, kept, held, awaited,
        besides,
    )  # fmt: skip
    shared = efficiency(found)
    assert shared is not None
    stretches = list(zip(*found.stretches, strict=True))
    assert sum(end - begin for begin, end in stretches) == seen.sum()
    took = sum(left[:, end].max() - left[:, begin].min() for begin, end in stretches) / 1e9
    useful = (work + beside)[:, seen].sum(axis=1).mean() / 1e9
    assert shared.seconds == pytest.approx(took)
    assert shared.parallel == pytest.approx(useful / took, rel=1e-3)
    assert shared.load_balance * shared.serialization * shared.transfer == pytest.approx(shared.parallel)
    assert max(shared.load_balance, shared.serialization, shared.transfer) <= 1 + 1e-9
    path = critical_path(found)
    places = np.flatnonzero(seen)
    comes, leaves, _ = (dict(zip(places.tolist(), each, strict=True)) for each in _on_path(found, places))
    length = sum(left[leaves[end], end] - left[comes[begin + 1], begin] for begin, end in stretches)
    assert overlaps or all(rank == found.last[place] for place, rank in comes.items())
    assert sum(path.values()) == pytest.approx(length / 1e9, abs=1e-6)
    assert min(path.values()) >= -1e-9


@pytest.mark.parametrize("in_turns", [False, True])
def test_steps_that_are_left_out_change_neither_who_is_named_nor_the_shares(in_turns: bool, tmp_path: Path) -> None:
    """GIVEN 16 of every 80 steps THEN as much is said of them as of all."""
    late = both(delay("forward", SHARE * STEP_MS, lambda step: step % 3 if in_turns else 2), noise(0.002))
    whole = analyze(ranks_run(tmp_path / "whole", 3, 800, late))
    part = analyze(ranks_run(tmp_path / "part", 3, 800, late, left_out=lambda step: step // 16 % 5 > 0))
    (of_all,), (of_part,) = whole.ranks, part.ranks
    assert of_part.meetings == of_all.meetings / 5 and of_part.followed == of_all.followed == 1
    assert of_part.seconds == pytest.approx(of_all.seconds * 15 / 16 / 5, rel=0.02)
    for share in ("waited", "transfer"):
        assert getattr(of_part, share) == pytest.approx(getattr(of_all, share), rel=0.05)
    assert of_part.efficiency == pytest.approx(of_all.efficiency, rel=0.02)
    named = [{(each.rank, each.phase, each.always) for each in group.delays} for group in (of_all, of_part)]
    assert named[0] == named[1] == {(rank, "forward", not in_turns) for rank in ({0, 1, 2} if in_turns else {2})}
    shares = [{phase.name: phase.share for phase in report.steps.phases} for report in (whole, part)]
    assert shares[1] == pytest.approx(shares[0], abs=0.01)


@pytest.mark.parametrize("late", [{2, 3}, {1, 2}, {0, 1, 2, 3}, {3}])
def test_a_host_whose_ranks_are_all_late_is_told_from_ranks_that_are(late: set[int], tmp_path: Path) -> None:
    """GIVEN two hosts of two ranks each."""

    def longer(rank: int, step: int, phase: str) -> float:
        turn = len(late) == 4 and step % 4 != rank  # all of them, each in its turn
        return 0.1 * STEP_MS if rank in late and not turn and phase == "forward" else 0.0

    run = ranks_run(tmp_path / "run", 4, longer=both(longer, noise(0.01)), hosts=2)
    (group,) = analyze(run).ranks
    assert {each.rank for each in group.delays} == late
    assert {each.host for each in group.delays} == {f"node{rank // 2}" for rank in late}
    assert all(each.of_host == (late == {2, 3}) for each in group.delays)


def test_the_report_names_the_cause_in_its_findings_and_text(tmp_path: Path) -> None:
    run = ranks_run(tmp_path / "run", 2, longer=both(delay("loading", 2.0, lambda step: 1), noise(0.002)))
    report = analyze(run)
    (cause,) = [each for each in report.findings if each.id == "delay.root_cause"]
    assert cause.evidence["rank"] == 1
    assert cause.evidence["phase"] == "loading"
    assert cause.evidence["share_of_waiting"] == pytest.approx(1.0, abs=0.1)
    assert cause.evidence["cost_rank_seconds"] == pytest.approx(0.4, rel=0.1)
    shares = {phase.name: phase.share for phase in report.steps.phases}
    assert shares["communication"] == pytest.approx((TRANSFER + 2.0) / (STEP_MS + 2.0), abs=0.02)
