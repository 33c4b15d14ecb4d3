"""Copies to a GPU from memory that is not page-locked."""

from pathlib import Path

import pytest
from synthetic import Tape, make_manifest, make_run

from tracekit.advice import analyze
from tracekit.analysis.report_schema import Finding
from tracekit.run.manifest import Loader
from tracekit.run.reader import open_run

BATCHES = 40


def findings(path: Path, copy: str, copy_ms: float, pinned: bool = False) -> list[Finding]:
    """Of a program whose batches take 10 ms, of which a copy takes some; every fourth is in a window."""
    tape = Tape(process=0, role="main")
    for index in range(BATCHES):
        start = tape.now
        tape.fetch(2, turn=index, cpu_ms=2)
        tape.add("batches", start, tape.now, loader="train", epoch=0, index=index, worker=-1)
        if index % 4:
            tape.gap(8)
        else:
            tape.operator("aten::mm", 4, window=1 + index)
            tape.operator(copy, copy_ms, category="gpu_memcpy", window=1 + index)
            tape.operator("aten::mm", 4 - copy_ms, window=1 + index)
    loaders = {"train": Loader(pin_memory=pinned)}
    run = open_run(make_run(path, [tape], manifest=make_manifest(cpus=4, loaders=loaders)))
    return [each for each in analyze(run).findings if each.id == "loading.pageable"]


def test_copies_that_a_loader_could_pin_are_told(tmp_path: Path) -> None:
    """GIVEN copies from pageable memory for a quarter of each window THEN that is told, with the setting to try."""
    (found,) = findings(tmp_path / "run", "Memcpy HtoD (Pageable -> Device)", 2)
    assert found.evidence["share"] == pytest.approx(0.25) and "loader.train.pin_memory" in found.title


@pytest.mark.parametrize(
    ("copy", "copy_ms", "pinned"),
    [
        ("Memcpy HtoD (Pinned -> Device)", 2, False),
        ("Memcpy DtoH (Device -> Pageable)", 2, False),
        ("Memcpy HtoD (Pageable -> Device)", 0.05, False),
        ("Memcpy HtoD (Pageable -> Device)", 2, True),  # what is copied there is no batch
    ],
)
def test_copies_that_no_loader_could_pin_are_not(tmp_path: Path, copy: str, copy_ms: float, pinned: bool) -> None:
    assert not findings(tmp_path / "run", copy, copy_ms, pinned)
