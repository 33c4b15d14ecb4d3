"""What GPUs did in the profiler's windows: work, and copies from memory that is not page-locked."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import BEGIN_NS, Tape, make_manifest, make_run

from tracekit.advice import analyze
from tracekit.analysis.devices import device_use
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


KERNELS = st.lists(
    st.tuples(st.integers(0, 90), st.integers(0, 30), st.integers(0, 1), st.integers(1, 2), st.booleans()), max_size=20
)


@given(KERNELS)
def test_a_gpu_is_busy_whenever_any_of_its_streams_works(kernels: list[tuple[int, int, int, int, bool]]) -> None:
    """GIVEN kernels and copies (start, length, device, window, is a copy) WHEN each nanosecond is looked at THEN a
    device's share is that of those in which something ran there."""
    common = {"process": 0, "thread": 1}
    rows = [
        {"start_ns": BEGIN_NS, "duration_ns": 120, "window": window, "category": "cpu_op", **common}
        for window in (1, 2)
    ]
    rows += [
        {
            "start_ns": BEGIN_NS + start,
            "duration_ns": length,
            "window": window,
            "device": device,
            "stream": number,
            "category": "gpu_memcpy" if copies else "kernel",
            **common,
        }
        for number, (start, length, device, window, copies) in enumerate(kernels)
    ]
    with TemporaryDirectory() as folder:
        path = make_run(Path(folder) / "run", [Tape(process=0, role="main")], {"operators": pd.DataFrame(rows)})
        found = {each.device: each for each in device_use(open_run(path), 0)}

    assert list(found) == sorted({device for _, _, device, _, _ in kernels})
    for number, each in found.items():
        mine = [(window, range(start, start + length), copies) for start, length, device, window, copies in kernels
                if device == number]  # fmt: skip
        busy = {(window, instant) for window, instants, _ in mine for instant in instants}
        assert each.busy == pytest.approx(len(busy) / 240)
        assert each.copying == pytest.approx(sum(len(instants) for _, instants, copies in mine if copies) / 240)
