"""Names in the spool: interned once, whatever they hold; known before the first record that uses them."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spooling import NOBODY, announce, reader, small_segments

from tracekit.collectors.spool import Spool
from tracekit.record import spools as reading
from tracekit.record.wire import Kind

HOSTILE = ["line\nbreak", "nul\x00", "\ud800 surrogate", "", "100 %s", "<img src=x>", "你好", "x" * 100_000]
READABLE = [name.encode("utf-8", "backslashreplace").decode() for name in HOSTILE]


def opened(folder: Path) -> tuple[Spool, reading.Spool]:
    stem = announce(folder, NOBODY, 1)
    return Spool(str(folder), stem), reader(folder, stem)


def names(read: reading.Spool) -> list[str]:
    read.read(ended=False)
    return read.names


def test_hostile_names_are_kept(tmp_path: Path) -> None:
    writer, read = opened(tmp_path)

    assert [writer.intern(name) for name in HOSTILE + HOSTILE] == list(range(len(HOSTILE))) * 2
    assert names(read) == READABLE


@settings(max_examples=30)
@given(st.lists(st.one_of(st.text(st.characters(exclude_categories=()), max_size=5), st.none()), max_size=20))
def test_ids_and_names_agree_whenever_they_are_read(interned: list[str | None]) -> None:
    """GIVEN names interned and read (None) in any order THEN each id stands for its name."""
    with TemporaryDirectory() as folder:
        writer, read = opened(Path(folder))
        ids: dict[str, int] = {}
        for name in interned:
            if name is None:
                assert len(names(read)) == len(ids)
            else:
                ids[name] = writer.intern(name)
        found = names(read)
        assert {name: found[number] for name, number in ids.items()} == {
            name: name.encode("utf-8", "backslashreplace").decode() for name in ids
        }


def test_name_is_on_disk_before_another_thread_can_use_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a thread that interns a name WHEN another uses the name meanwhile THEN no reader meets an unknown id."""
    writer, read = opened(tmp_path)
    write, used = os.pwrite, []

    def interrupted(*arguments: object) -> int:
        used.append("slow" in writer._names)  # what another thread would find, without waiting for a lock
        return write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "pwrite", interrupted)
    writer.intern("slow")

    assert used == [False]
    assert names(read) == ["slow"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_signal_handler_that_names_something_while_a_name_is_written(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, read = opened(tmp_path)
    write = os.pwrite

    def interrupted(*arguments: object) -> int:
        monkeypatch.setattr(os, "pwrite", write)
        if when == "before":
            assert writer.intern("inner") == 1
        done = write(*arguments)  # type: ignore[arg-type]
        if when == "after":
            assert writer.intern("inner") == 1
        return done

    monkeypatch.setattr(os, "pwrite", interrupted)

    assert [writer.intern(name) for name in ("outer", "inner", "last")] == [0, 1, 2]
    assert names(read) == ["outer", "inner", "last"]


@pytest.mark.parametrize("cut", [0, 1, 4, 6])
def test_name_that_was_written_in_part_is_written_again(
    cut: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a disk that took only the first bytes of a name WHEN there is room again THEN all names are right."""
    writer, read = opened(tmp_path)
    writer.intern("first")
    write = os.pwrite

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", lambda descriptor, data, offset: write(descriptor, data[:cut], offset))
        assert writer.intern("second") == 1
        assert names(read) == ["first"]
    assert writer.intern("third") == 2

    assert names(read) == ["first", "second", "third"]


def test_names_that_no_disk_took_still_have_ids(tmp_path: Path) -> None:
    writer = Spool(str(tmp_path / "none"), "1-1")

    assert [writer.intern(name) for name in ("a", "b", "a")] == [0, 1, 0]


def test_forked_child_goes_on_under_its_own_stem_with_the_names_of_its_parent(tmp_path: Path) -> None:
    with small_segments(4):
        writer, parent = opened(tmp_path)
        for number in range(6):
            writer.write(Kind.LAYER, writer.intern("shared"), 0, 0, number)
        writer.intern("parent's")
        before = {path: path.read_bytes() for path in tmp_path.iterdir()}

        stem = announce(tmp_path, NOBODY, 2, names_of=writer.names_on_disk())
        writer.continue_as(str(tmp_path), stem, writer.names_on_disk())  # in the child, the copy of the parent's spool
        for number in range(100, 106):
            writer.write(Kind.LAYER, writer.intern("shared"), 0, 0, number)
        assert writer.intern("child's") == 2
        child = reader(tmp_path, stem)

        assert list(child.read(ended=True)[0]["a"]) == list(range(100, 106))
        assert child.names == ["shared", "parent's", "child's"]
        assert list(parent.read(ended=True)[0]["a"]) == list(range(6))
        assert {path: path.read_bytes() for path in before} == before
        assert writer.dropped == 0


def test_each_generation_knows_all_names(tmp_path: Path) -> None:
    """GIVEN children that fork, and a name that came between an announcement and the fork."""
    writer, _ = opened(tmp_path)
    writer.intern("grandparent's")
    names_of = writer.names_on_disk()
    writer.intern("late")
    found = []
    for start in (2, 3, 4):
        stem = announce(tmp_path, NOBODY, start, names_of=names_of)
        writer.continue_as(str(tmp_path), stem, names_of)
        writer.intern(f"of {start}")
        found.append(names(reader(tmp_path, stem)))
        names_of = writer.names_on_disk()

    assert found == [["grandparent's", "late", *(f"of {start}" for start in range(2, last))] for last in (3, 4, 5)]


def test_names_of_a_parent_that_are_gone_do_not_shift_the_childs(tmp_path: Path) -> None:
    writer, parent = opened(tmp_path)
    for name in ("one", "two"):
        writer.intern(name)
    stem = announce(tmp_path, NOBODY, 2, names_of=writer.names_on_disk())
    writer.continue_as(str(tmp_path), stem, writer.names_on_disk())
    (tmp_path / f"{parent.stem}.names").unlink()

    assert writer.intern("child's") == 2
    assert names(reader(tmp_path, stem)) == [reading.LOST, reading.LOST, "child's"]


def test_broken_side_files_are_nothing(tmp_path: Path) -> None:
    """What a process did not finish to write is no reason to fail."""
    stem = announce(tmp_path, 5, 1)
    (tmp_path / "6-1.process").write_text('{"pid": 6')
    (tmp_path / "7-1.process").write_text("[]")
    (tmp_path / "8-1.process").write_text('{"pid": "8", "parent": 1, "start": 1}')
    (tmp_path / "9-1.process").write_text('{"pid": 9, "parent": null, "start": 1}')
    (tmp_path / "10-1.process").write_text('{"pid": 10, "parent": 1, "start": 1, "command": ' + "[" * 100_000)
    (tmp_path / f"{stem}.status").write_bytes(b"\xff{")
    folder = reading.SpoolFolder(tmp_path)

    (found,) = folder.discover()

    assert (found.stem, found.pid, found.status(), found.failure()) == (stem, 5, {}, None)
    assert folder.discover() == []


def test_processes_are_found_in_the_order_of_their_start(tmp_path: Path) -> None:
    folder = reading.SpoolFolder(tmp_path)
    for start, pid in ((30, 1), (10, 3), (20, 2)):
        announce(tmp_path, pid, start)

    assert [spool.pid for spool in folder.discover()] == [3, 2, 1]
