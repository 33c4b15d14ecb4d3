"""Writing tables: parts, their compaction, and what a crash or a full disk leaves of them."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import HOST, batches, new_run, starts

from tracekit.run.parts import live_parts
from tracekit.run.reader import Run, open_run
from tracekit.run.writer import PartWriter, write_table


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return new_run(tmp_path / "run")


def test_parts_are_read_as_one_table(run: Path) -> None:
    writer = PartWriter(run, HOST)
    for part in ((1, 2), (), (3,)):
        writer.write("batches", batches(*part))

    assert starts(run) == [1, 2, 3]
    assert writer.last == 2  # a part without rows is not written
    assert PartWriter(run, HOST).last == 2
    assert PartWriter(run, "node-1").last == 0


def test_compaction_sorts_by_process_and_start_and_puts_the_enclosing_first(run: Path, tmp_path: Path) -> None:
    writer = PartWriter(run, HOST)
    rows = [(1, 5, 1), (0, 9, 2), (1, 2, 1), (0, 9, 7), (0, 1, 1)]
    for process, start, duration in rows:
        table = batches(start, process=process).set_column(3, "duration_ns", pa.array([duration], pa.int64()))
        writer.write("batches", table)

    writer.compact(tmp_path)

    assert [file.name for file in (run / "tables" / "batches").iterdir()] == [f"{HOST}-000005.merged.parquet"]
    table = open_run(run).table("batches")
    assert list(zip(table["process"], table["start_ns"], table["duration_ns"], strict=True)) == [
        (0, 1, 1), (0, 9, 7), (0, 9, 2), (1, 2, 1), (1, 5, 1),
    ]  # fmt: skip


def after_each_change(act: Callable[[], None], run: Path, into: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What is on disk after each rename and removal of `act`: what a kill would leave."""
    copies: list[Path] = []

    def watched(change: Callable[..., object]) -> Callable[..., object]:
        def changed(*arguments: object, **options: object) -> object:
            result = change(*arguments, **options)
            copies.append(into / f"{len(copies)}")
            shutil.copytree(run, copies[-1])
            return result

        return changed

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", watched(os.replace))
        patched.setattr(Path, "unlink", watched(Path.unlink))
        act()
    return copies


def test_compaction_cut_short_anywhere_loses_and_doubles_nothing(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = PartWriter(run, HOST)
    other = PartWriter(run, "other")
    for start in range(4):
        writer.write("batches", batches(start))
        other.write("batches", batches(start + 100))
    expected = [0, 1, 2, 3, 100, 101, 102, 103]

    copies = after_each_change(lambda: writer.compact(tmp_path), run, tmp_path / "copies", monkeypatch)

    assert len(copies) >= 5
    for copy in [run, *copies]:
        assert sorted(starts(copy)) == expected
        PartWriter(copy, HOST).compact(tmp_path)
        assert sorted(starts(copy)) == expected
        assert len(list((copy / "tables" / "batches").glob(f"{HOST}*"))) == 1


@settings(max_examples=15)  # each sorts by a DuckDB of its own
@given(st.lists(st.sampled_from(["write", "compact", "forget"]), max_size=6))
def test_rows_are_those_written_and_not_discarded(actions: list[str]) -> None:
    """GIVEN any order of writing, compacting, and discarding of an unfinished pass THEN exactly the rest is read."""
    with TemporaryDirectory() as folder:
        run = new_run(Path(folder) / "run")
        writer, expected = PartWriter(run, HOST), []
        for start, action in enumerate(actions):
            if action == "write":
                writer.write("batches", batches(start))
                expected.append(start)
            elif action == "compact":
                writer.compact(Path(folder))
            else:
                last = writer.last
                writer.write("batches", batches(-1))
                writer.discard_after(last)
        assert sorted(starts(run)) == expected


def test_discarding_leaves_other_hosts_alone(run: Path) -> None:
    for host in (HOST, "node-1.example", "other"):
        for start in (1, 2):
            PartWriter(run, host).write("batches", batches(start))

    PartWriter(run, HOST).discard_after(1)

    assert sorted(starts(run)) == [1, 1, 1, 2, 2]


def test_more_than_a_million_parts(run: Path, tmp_path: Path) -> None:
    """Numbers beyond six digits still merge under the highest one."""
    writer = PartWriter(run, HOST)
    writer.last = 999_998
    for start in range(3):
        writer.write("batches", batches(start))

    writer.compact(tmp_path)

    assert [file.name for file in (run / "tables" / "batches").iterdir()] == [f"{HOST}-1000001.merged.parquet"]
    assert starts(run) == [0, 1, 2]


def test_disk_that_is_full_leaves_no_part(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = PartWriter(run, HOST)
    writer.write("batches", batches(1))

    def full(self: pq.ParquetWriter, *arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(pq.ParquetWriter, "write_table", full)
        with pytest.raises(OSError, match="No space"):
            writer.write("batches", batches(2))
        with pytest.raises(OSError, match="No space"):
            writer.compact(run)

    assert [file.name for file in (run / "tables" / "batches").iterdir()] == [f"{HOST}-000001.parquet"]
    writer.write("batches", batches(3))
    assert starts(run) == [1, 3]


def test_file_that_no_writer_names_is_no_part(run: Path) -> None:
    folder = run / "tables" / "batches"
    write_table(batches(1), folder / "copy.parquet")
    write_table(batches(2), folder / f"{HOST}-000001.parquet")

    assert [file.name for file in live_parts(folder)] == [f"{HOST}-000001.parquet"]
    assert list(Run(run).table("batches")["start_ns"]) == [2]


def test_a_part_that_goes_as_it_is_merged_is_read_where_it_went(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a supervisor of another node at its end WHILE the parts are looked at THEN no row is missing."""
    writer = PartWriter(run, HOST)
    for part in ((1, 2), (3,)):
        writer.write("batches", batches(*part))
    read_metadata = pq.read_metadata

    def merge_first(part: Path) -> pq.FileMetaData:
        monkeypatch.undo()
        writer.compact(tmp_path)
        return read_metadata(part)

    monkeypatch.setattr(pq, "read_metadata", merge_first)
    found = open_run(run)

    assert list(found.table("batches")["start_ns"]) == [1, 2, 3]
    assert found.complete


def test_of_one_host_only_its_parts_are_looked_at(run: Path) -> None:
    PartWriter(run, HOST).write("batches", batches(1))
    (run / "tables" / "batches" / "other-000001.parquet").write_text("being written")

    found = Run(run, HOST)

    assert list(found.table("batches")["start_ns"]) == [1]
    assert found.complete and not open_run(run).complete
