"""The look for unused parameters: what it has found in a run."""

from pathlib import Path

import pytest
from synthetic import MS, Tape, make_manifest, make_run

from tracekit.advice import analyze
from tracekit.record.wire import ALL_USED, SOME_UNUSED, USED
from tracekit.run.manifest import Wrapped
from tracekit.run.reader import Run, open_run


def looked(path: Path, *ops: str, asked: bool = True, static: bool = False, world: int = 2) -> Run:
    """A run of two ranks of so many, each with these passes; "" is one that does not communicate, "grad" one that only
    asks for gradients."""
    tapes = [Tape(process=rank, role=f"rank {rank}", rank=rank, world=world) for rank in range(2)]
    for tape in tapes:
        for number, op in enumerate(ops):
            is_grad = op == "grad"
            tape.add("spans", number * MS, (number + 1) * MS, kind="phase", name="backward", layer=int(is_grad))
            if op and not is_grad:
                tape.met(number * MS, number * MS, (number + 1) * MS, number, op=op, is_async=True)
    models = [Wrapped(find_unused_parameters=asked, static_graph=static)]
    return open_run(make_run(path / "run", tapes, manifest=make_manifest(ddp=models)))


def found(run: Run) -> list[dict[str, object]]:
    return [each.evidence for each in analyze(run).findings if each.id == "ddp.unused_parameters"]


def test_passes_of_all_ranks_count(tmp_path: Path) -> None:
    run = looked(tmp_path, ALL_USED, SOME_UNUSED, ALL_USED)
    assert found(run) == [{"world": 2, "ranks": 2, "passes": 6, "with_some": 2, "behind_others": 0}]
    assert "ddp.find_unused_parameters" not in analyze(run).advice


def test_a_look_that_found_nothing_may_be_done_without(tmp_path: Path) -> None:
    run = looked(tmp_path, "grad", ALL_USED, "grad", ALL_USED)
    assert found(run) == [{"world": 2, "ranks": 2, "passes": 4, "with_some": 0, "behind_others": 0}]
    assert "ddp.find_unused_parameters = false" in analyze(run).advice


def test_a_look_at_several_passes_together_tells_of_none_alone(tmp_path: Path) -> None:
    """GIVEN gradients that are added up in two passes THEN a parameter may be used in the first of them only, and the
    look is not said to be needless."""
    run = looked(tmp_path, "", ALL_USED, "", ALL_USED)
    assert found(run) == [{"world": 2, "ranks": 2, "passes": 4, "with_some": 0, "behind_others": 4}]
    assert "ddp.find_unused_parameters" not in analyze(run).advice


def test_ranks_that_nobody_has_seen_may_leave_some_unused(tmp_path: Path) -> None:
    run = looked(tmp_path, "grad", ALL_USED, "grad", ALL_USED, world=4)
    (finding,) = [each for each in analyze(run).findings if each.id == "ddp.unused_parameters"]
    assert "of 2 of 4 ranks, and found none; of other ranks nothing is known" in finding.title
    assert "ddp.find_unused_parameters" not in analyze(run).advice


@pytest.mark.parametrize(
    ("ops", "asked", "static"),
    [((ALL_USED, USED), True, False), ((), True, False), ((ALL_USED,), False, False), ((ALL_USED,), True, True)],
)
def test_of_what_nobody_looked_at_nothing_is_said(
    ops: tuple[str, ...], asked: bool, static: bool, tmp_path: Path
) -> None:
    assert found(looked(tmp_path, *ops, asked=asked, static=static)) == []
