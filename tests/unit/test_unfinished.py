"""Communication that never ended: who was in it, and who never came."""

from pathlib import Path

import pytest
from synthetic import Tape, make_run

from tracekit.analysis.report import analyze
from tracekit.record.wire import PASSED
from tracekit.run.manifest import LAST_SECONDS
from tracekit.run.reader import Run, open_run


def hanging(path: Path, came: dict[int, int], inside: set[int]) -> Run:
    """Ranks that came to so many collectives; those `inside` are in the next one when they come to their end."""
    tapes = []
    for rank, count in came.items():
        tape = Tape(process=rank, role=f"rank {rank}", rank=rank)
        for number in range(count):
            tape.met(tape.now, tape.now, tape.now + 1000, number)
            tape.gap(1)
        if rank in inside:
            tape.add("reached", tape.now, tape.now, op="all_reduce", group="world", sequence=count, is_over=False)
        tapes.append(tape)
    return open_run(make_run(path, tapes))


@pytest.mark.parametrize(
    ("came", "inside", "missing", "words"),
    [
        ({0: 5, 1: 5}, {0}, [[1, 4]], "rank 1 never came to it (to number 4 last)"),
        ({0: 5, 1: 3, 2: 5, 3: 2}, {0, 2}, [[1, 2], [3, 1]], "ranks 1, 3 never came to it"),
        ({0: 5, 1: 5}, {0, 1}, [], "all ranks that were seen had come to it"),
    ],
)
def test_who_never_came_is_named(
    came: dict[int, int], inside: set[int], missing: list[list[int]], words: str, tmp_path: Path
) -> None:
    report = analyze(hanging(tmp_path / "run", came, inside))
    (never,) = [each for each in report.findings if each.id == "distributed.never_ended"]
    assert [list(each) for each in never.evidence["missing"]] == missing  # type: ignore[attr-defined]
    assert (never.evidence["ranks"], never.evidence["sequence"]) == (sorted(inside), 5)
    assert words in never.title


@pytest.mark.parametrize("salvaged", [True, False])
def test_of_whose_recording_has_no_end_it_is_not_known_whether_they_came(salvaged: bool, tmp_path: Path) -> None:
    """GIVEN a host whose supervisor was killed, or goes on, some seconds behind, and which may have been salvaged when
    nothing was left of these THEN its rank was not seen to come."""
    run = hanging(tmp_path / "run", {0: 5, 1: 3}, {0})
    if salvaged:
        run.manifest.add_missing(LAST_SECONDS, "the supervisor was killed and its spool folder is gone", lost=True)
    else:
        run.manifest.ended_ns = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tracekit.analysis.ranks.still_records", lambda manifest: False)
        (never,) = [each for each in analyze(run).findings if each.id == "distributed.never_ended"]
    assert not never.evidence["missing"] and never.evidence["unseen"] == [1]
    assert "rank 1 was not seen to wait in it" in never.title


def test_who_is_behind_in_buckets_that_went_past_never_came_to_the_next(tmp_path: Path) -> None:
    """GIVEN two ranks in a backward pass whose buckets went past us, of which one has come to one more THEN nobody is
    said to be in the one before."""
    tapes = []
    for rank, sequence in ((0, 7), (1, 6)):
        tapes.append(Tape(process=rank, role=f"rank {rank}", rank=rank))
        tapes[-1].add("reached", 0, 0, op=PASSED, group="world", sequence=sequence, is_over=False)
    report = analyze(open_run(make_run(tmp_path / "run", tapes)))
    (never,) = [each for each in report.findings if each.id == "distributed.never_ended"]
    assert never.title.startswith("rank 0 was in the gradient buckets up to number 7 of group world at the end; rank 1")
    assert [list(each) for each in never.evidence["missing"]] == [[1, 6]]  # type: ignore[attr-defined]


def test_of_a_group_nobody_knows_who_else_is_in_it(tmp_path: Path) -> None:
    tape = Tape(process=0, role="rank 0", rank=0)
    tape.add("reached", 0, 0, op="all_reduce", group="7", sequence=0, is_over=False)
    report = analyze(open_run(make_run(tmp_path / "run", [tape, Tape(process=1, role="rank 1", rank=1)])))
    (never,) = [each for each in report.findings if each.id == "distributed.never_ended"]
    assert never.title.endswith("; all ranks that are known to be of that group had come to it")


def test_where_all_ended_nothing_is_said(tmp_path: Path) -> None:
    report = analyze(hanging(tmp_path / "run", {0: 5, 1: 5}, set()))
    assert not [each for each in report.findings if each.id == "distributed.never_ended"]


def test_ranks_that_are_not_in_the_same_are_told_apart(tmp_path: Path) -> None:
    tapes = []
    for rank, op in enumerate(("all_reduce", "broadcast", "all_reduce")):
        tapes.append(Tape(process=rank, role=f"rank {rank}", rank=rank))
        tapes[-1].add("reached", 0, 0, op=op, group="world", sequence=5, is_over=False)
    report = analyze(open_run(make_run(tmp_path / "run", tapes)))
    (never,) = [each for each in report.findings if each.id == "distributed.never_ended"]
    assert never.evidence["unlike"] == {"all_reduce": [0, 2], "broadcast": [1]}
    assert never.title.endswith("these are not the same, ranks 0, 2 in all_reduce, rank 1 in broadcast")
