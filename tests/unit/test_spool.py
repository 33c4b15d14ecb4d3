"""The spool: what several threads write reaches the reader, every record once, whatever comes between."""

import errno
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spooling import NOBODY, announce, reader, small_segments

from tracekit.collectors import spool as writing
from tracekit.collectors.spool import Spool, threads
from tracekit.record import spools as reading
from tracekit.record.wire import Kind

STEM = "1-1"


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    with small_segments(4):
        yield


def opened(folder: Path) -> tuple[Spool, reading.Spool]:
    """Both ends of one spool."""
    stem = announce(folder, NOBODY, 1)
    return Spool(str(folder), stem), reader(folder, stem)


def take(spool: reading.Spool, ended: bool = False) -> list[int]:
    """Read once and consume it; the records' field `a`."""
    records, segment, offset = spool.read(ended)
    spool.go_on_from(segment, offset)
    return [int(number) for number in records["a"]]


def take_all(spool: reading.Spool) -> list[int]:
    """Read until nothing is left of a process that has ended."""
    found: list[int] = []
    while True:
        before = spool.segment
        found += take(spool, ended=True)
        if spool.segment == before:
            return found


@settings(max_examples=30)
@given(st.lists(st.one_of(st.integers(1, 11), st.just("read")), max_size=30))
def test_every_record_is_read_once_and_in_order(actions: list[int | str]) -> None:
    """GIVEN any order of writing some and reading THEN all is read at the end, and no segment is left."""
    with TemporaryDirectory() as folder, small_segments(4):
        writer, read = opened(Path(folder))
        written, found = 0, []
        for action in actions:
            if isinstance(action, int):
                for _ in range(action):
                    writer.write(Kind.LAYER, 0, 10, 20, written)
                    written += 1
            else:
                found += take(read)
                assert found == list(range(written))  # nothing is under way, so nothing has to wait
        found += take_all(read)

        assert found == list(range(written))
        assert not list(Path(folder).glob("*.spool"))


@settings(max_examples=30)
@given(st.lists(st.sampled_from(["read", "look"]), max_size=8), st.integers(0, 40))
def test_looking_without_consuming_repeats(actions: list[str], records: int) -> None:
    with TemporaryDirectory() as folder, small_segments(4):
        writer, read = opened(Path(folder))
        for number in range(records):
            writer.write(Kind.LAYER, 0, 0, 0, number)
        found: list[int] = []
        for action in actions:
            if action == "read":
                found += take(read)
            else:
                assert [*found, *read.read(False)[0]["a"]] == list(range(records))
        assert [*found, *take_all(read)] == list(range(records))


def test_threads_write_while_it_is_read(tmp_path: Path) -> None:
    """The segments are large enough that no thread is kept from finishing a record while others fill two of them."""
    writer, read = opened(tmp_path)
    each, workers = 3000, 4
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)

    def work(worker: int) -> None:
        for number in range(each):
            writer.write(Kind.LAYER, writer.intern(f"{worker}"), 0, 0, worker * each + number, depth=worker)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(workers)]
    found: list[int] = []
    try:
        with patch.object(writing, "MAX_SEGMENTS", 1 << 20), small_segments(2048):
            for worker in threads:
                worker.start()
            while any(worker.is_alive() for worker in threads):
                found += take(read)
            found += take_all(read)
    finally:
        sys.setswitchinterval(interval)

    assert sorted(found) == list(range(each * workers))
    assert writer.dropped == 0
    assert sorted(read.names) == ["0", "1", "2", "3"]


def test_record_carries_all_its_fields(tmp_path: Path) -> None:
    writer, read = opened(tmp_path)

    writer.write(Kind.BATCH, 7, 2**62, 2**62 + 1, -1, 2**62, -(2**62), 4, depth=3, direction=2)

    (record,) = read.read(ended=False)[0]
    assert record.tolist() == (7, threads.current().tid, 2**62, 2**62 + 1, -1, 2**62, -(2**62), 4, 3, 2, Kind.BATCH)
    assert threads.current().tid == threading.get_native_id()


def late_record(writer: Spool, number: int) -> "tuple[object, int, int]":
    """A thread has taken its place in the segment and is not writing yet."""
    segment = writer._segment
    assert segment is not None
    return segment, next(segment.slots), number


def write_late(late: "tuple[object, int, int]") -> None:
    segment, slot, number = late
    writing._pack(segment.buffer, slot * 64, 0, 1, 0, 0, number, 0, 0, 0, 0, 0, Kind.LAYER)  # type: ignore[attr-defined]


@pytest.mark.parametrize("more", [0, 1, 3, 5])
def test_record_under_way_is_waited_for(more: int, tmp_path: Path) -> None:
    """GIVEN a thread interrupted in the middle of a write WHEN others fill the segment THEN its record is not lost."""
    writer, read = opened(tmp_path)
    writer.write(Kind.LAYER, 0, 0, 0, 0)
    late = late_record(writer, 1)
    for number in range(more):
        writer.write(Kind.LAYER, 0, 0, 0, 2 + number)

    found = take(read) + take(read)
    write_late(late)
    found += take(read) + take_all(read)

    assert found == list(range(2 + more))


def test_record_that_is_never_finished_costs_only_itself(tmp_path: Path) -> None:
    """GIVEN a write that an exception cut short THEN the rest is read, soon while alive and wholly at the end."""
    for alive in (True, False):
        folder = tmp_path / str(alive)
        folder.mkdir()
        writer, read = opened(folder)
        writer.write(Kind.LAYER, 0, 0, 0, 0)
        late_record(writer, 1)
        for number in range(2, 14):
            writer.write(Kind.LAYER, 0, 0, 0, number)
        found = take(read) + take(read) if alive else take_all(read)

        assert found == [0, *range(2, 14)]


def test_segment_that_fills_while_it_is_read_is_not_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a reader that has seen half a segment WHEN the writer fills it and goes on THEN the other half is read."""
    writer, read = opened(tmp_path)
    for number in range(2):
        writer.write(Kind.LAYER, 0, 0, 0, number)
    load = np.fromfile

    def slowly(*arguments: object, **options: object) -> np.ndarray:
        monkeypatch.setattr(np, "fromfile", load)
        data = load(*arguments, **options)  # type: ignore[call-overload]
        for number in range(2, 14):
            writer.write(Kind.LAYER, 0, 0, 0, number)
        return data

    monkeypatch.setattr(np, "fromfile", slowly)

    assert take(read) + take_all(read) == list(range(14))


def test_full_spool_drops_counts_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    with patch.object(writing, "MAX_SEGMENTS", 2):
        writer, read = opened(tmp_path)
        for number in range(8 + 3):
            writer.write(Kind.LAYER, 0, 0, 0, number)
        assert writer.dropped == 3  # not only once a thousand of them are lost
        assert take(read) == list(range(8))
        for number in range(11, 16):
            writer.write(Kind.LAYER, 0, 0, 0, number)
        found = take_all(read)

    assert writer.dropped == 4
    assert found == list(range(12, 16))  # it looks for room after every four


def test_full_disk_drops_counts_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, read = opened(tmp_path)
    reserve = os.posix_fallocate

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    for number in range(6):
        writer.write(Kind.LAYER, 0, 0, 0, number)
    assert writer.dropped == 6 and not list(tmp_path.glob("*.spool"))

    monkeypatch.setattr(os, "posix_fallocate", reserve)
    for number in range(6, 12):
        writer.write(Kind.LAYER, 0, 0, 0, number)
    assert take_all(read) == [8, 9, 10, 11] and writer.dropped == 8


def test_folder_that_vanishes_costs_the_records_only(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    writer, _ = opened(folder)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()

    for number in range(10):
        writer.write(Kind.LAYER, writer.intern(f"name {number}"), 0, 0, number)

    assert writer.dropped == 10


@pytest.mark.parametrize("after", ["nothing was made", "the file was", "it was mapped"])
def test_signal_handler_that_records_while_the_spool_rolls(tmp_path: Path, after: str) -> None:
    """The program's handlers run between any two bytecodes of ours: no lock may wait for itself, nothing is lost."""
    writer, read = opened(tmp_path)
    owner, name = {
        "nothing was made": (writing, "Mapped"),
        "the file was": (os, "posix_fallocate"),
        "it was mapped": (writing, "Segment"),
    }[after]
    go_on = getattr(owner, name)
    handled: list[bool] = []

    def interrupted(*args: Any) -> Any:
        if not handled:
            handled.append(True)
            writer.write(Kind.LAYER, writer.intern("in the handler"), 0, 0, 1)
        return go_on(*args)

    with patch.object(owner, name, interrupted):
        writer.write(Kind.LAYER, 0, 0, 0, 0)
    for number in range(2, 8):
        writer.write(Kind.LAYER, 0, 0, 0, number)

    assert sorted(take_all(read)) == list(range(8))
