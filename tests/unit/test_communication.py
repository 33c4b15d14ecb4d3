"""What each kind of communication took: waiting and transfer apart, and how much of it went on beside the loop."""

from pathlib import Path

import pytest
from ranks import BACKWARD, STEP_MS, TRANSFER, delay, ranks_run
from synthetic import Tape, make_run

from tracekit.analysis.report import analyze
from tracekit.analysis.text import text_report
from tracekit.run.reader import open_run

LATE = 2.0


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("ahead_ms", [0.0, 500.0])
def test_waiting_and_transfer_of_each_bucket_are_told_apart(ranks: int, ahead_ms: float, tmp_path: Path) -> None:
    """GIVEN one rank that comes late with its second bucket, and half as late with the first THEN the others wait for
    it so long, whatever the clocks of their hosts say, and the rest is transfer."""
    late = delay("backward", LATE, lambda step: 1)
    run = ranks_run(tmp_path / "run", ranks, longer=late, hosts=2, ahead_ms=ahead_ms)
    report = analyze(run)
    (group,) = report.ranks
    found = {part.name: part for part in group.communication}
    others = (ranks - 1) / ranks
    first, last = found["bucket 0"], found["bucket 1"]
    sure = 0.2 if ahead_ms else 1e-6  # what clocks are known by
    assert last.wait_ms == pytest.approx(LATE * others, abs=sure)
    assert last.transfer_ms == pytest.approx(TRANSFER, abs=sure) and last.unsure_ms == 0
    assert first.wait_ms == pytest.approx(LATE / 2 * others, abs=sure)
    assert first.transfer_ms == pytest.approx((BACKWARD + LATE) / 2 + TRANSFER, abs=sure)
    assert first.unsure_ms == pytest.approx(first.transfer_ms, abs=sure)  # nobody looked
    assert [part.times for part in group.communication] == [200, 200]
    text = " ".join(text_report(report).split())
    assert "COMMUNICATION" in text and "bucket 1 world 200" in text


def test_the_time_beside_the_loop_is_at_least_and_at_most_as_long_as_records_are_sure(tmp_path: Path) -> None:
    """GIVEN a first bucket that may have been done at once, or with the second one, for which the loop waits."""
    (group,) = analyze(ranks_run(tmp_path / "run", 2)).ranks
    assert group.overlap is not None
    low, high = group.overlap
    assert low == pytest.approx(0.0)
    assert high == pytest.approx((BACKWARD / 2) / (BACKWARD / 2 + TRANSFER))


def test_a_collective_that_the_loop_waits_in_has_nothing_beside_it(tmp_path: Path) -> None:
    """GIVEN ranks that sum up something once in a step, and wait for it."""
    tapes = [Tape(process=rank, role=f"rank {rank}", rank=rank, thread=rank) for rank in range(2)]
    for sequence in range(50):
        begun = []
        for rank, tape in enumerate(tapes):
            start = tape.now
            tape.gap(STEP_MS + rank)
            tape.add("spans", start, tape.now, kind="phase", name="optimizer", layer=0)
            begun.append(tape.now)
        left = max(begun) + 3_000_000
        for tape, entered in zip(tapes, begun, strict=True):
            tape.met(entered, entered, left, sequence, op="all_reduce", bytes=8)
            tape.now = left
    (group,) = analyze(open_run(make_run(tmp_path / "run", tapes))).ranks
    (part,) = group.communication
    assert (part.op, part.bucket, part.times, part.bytes) == ("all_reduce", None, 50, 8)
    assert part.wait_ms == pytest.approx(0.5) and part.transfer_ms == pytest.approx(3.0)
    assert group.overlap == pytest.approx((0.0, 0.0))
