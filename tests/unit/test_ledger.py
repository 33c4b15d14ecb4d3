"""From spool to tables: killed anywhere, on a full disk, each record gets there once."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from spooling import announce, small_segments

from tracekit.collectors.spool import Spool
from tracekit.record.finish import finish
from tracekit.record.flush import Flusher
from tracekit.record.ledger import Ledger, Position
from tracekit.record.processes import Process
from tracekit.record.spools import Spool as SpooledRecords
from tracekit.record.spools import SpoolFolder
from tracekit.record.wire import Kind
from tracekit.run.folder import create_run
from tracekit.run.manifest import Manifest
from tracekit.run.parts import live_parts
from tracekit.run.reader import open_run
from tracekit.run.schema import TABLES
from tracekit.traces.kineto import KinetoTrace, load_kineto

COUNTERS = pa.Table.from_pylist([{"process": 0, "start_ns": 1, "duration_ns": 1}], schema=TABLES["counters"])


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    with small_segments(4):
        yield


@dataclass
class Recording:
    """A folder with a run and a spool in it."""

    folder: Path

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def spool(self) -> Path:
        return self.folder / "spool"

    def flusher(self) -> Flusher:
        return Flusher(self.run, Manifest(host="host", ended_ns=1), SpoolFolder(self.spool), None)

    def starts(self, table: str = "spans") -> list[int]:
        parts = live_parts(self.run / "tables" / table)
        return sorted(start for part in parts for start in pq.read_table(part)["start_ns"].to_pylist())


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    made = Recording(tmp_path / "first")
    create_run(made.run)
    manifest = Manifest(host="host", ended_ns=1)
    manifest.save(manifest.path_in(made.run))
    made.spool.mkdir()
    return made


def write(spool: Spool, first: int, count: int) -> None:
    for number in range(first, first + count):
        spool.write((Kind.LAYER, Kind.BATCH)[number % 2], spool.intern("name"), number, number)


def every(recording: Recording) -> list[int]:
    return sorted(recording.starts("spans") + recording.starts("batches"))


def two_processes(recording: Recording) -> list[Spool]:
    """The spools of two processes that live."""
    pids = (os.getpid(), os.getppid())
    return [Spool(str(recording.spool), announce(recording.spool, pid, start)) for start, pid in enumerate(pids)]


def end(monkeypatch: pytest.MonkeyPatch) -> None:
    """All processes have ended from here on."""
    monkeypatch.setattr(Process, "is_alive", lambda process: False)


def killed_after_each_step(act: Callable[[], object], recording: Recording, into: Path) -> list[Recording]:
    """What is on disk before `act` and after each of its renames, removals and finished files."""
    left: list[Recording] = []

    def keep() -> None:
        left.append(Recording(into / f"{len(left)}"))
        shutil.copytree(recording.folder, left[-1].folder)

    def watched(change: Callable[..., object]) -> Callable[..., object]:
        def changed(*arguments: object, **options: object) -> object:
            result = change(*arguments, **options)
            keep()
            return result

        return changed

    keep()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "replace", watched(os.replace))
        patched.setattr(Path, "unlink", watched(Path.unlink))
        patched.setattr(Path, "write_bytes", watched(Path.write_bytes))
        patched.setattr(pq.ParquetWriter, "close", watched(pq.ParquetWriter.close))
        act()
    return left


def test_who_the_processes_are_is_told_before_the_end(recording: Recording) -> None:
    """GIVEN a recording that goes on THEN its processes are in the run after some seconds, each once however often that
    is told anew, with what they said of torch; and a setting that nobody has taken so far is not said to be missed."""
    facts = {"torch": {"version": "2", "intra_op": 3}, "rank": 0, "world_size": 2}
    announce(recording.spool, os.getpid(), 0, status={"facts": facts, "steps": 9})
    announce(recording.spool, os.getppid(), 1)
    manifest = Manifest(host="host", settings={"ddp.bucket_cap_mb": 4.0})
    flusher = Flusher(recording.run, manifest, SpoolFolder(recording.spool), None)
    flusher.flush(5)
    flusher.tell(5)
    before = open_run(recording.run)
    for at in (10, 20):
        flusher.flush(at)
        flusher.tell(at)
        assert len(recording.starts("processes")) == 2
    assert before.manifest.torch is not None and before.manifest.torch.intra_op == 3 and not before.manifest.missing
    # Who has opened the run goes on with what there was then; what nobody can be reading any more is removed.
    assert len(before.of(0).table("processes")) == 1 and len(before.table("processes")) == 2
    folder = recording.run / "tables" / "processes"
    for part in set(folder.iterdir()) - set(live_parts(folder)):
        os.utime(part, (0, 0))
    flusher.tell(40)
    assert len(list(folder.iterdir())) == 2
    flusher.finish(50)
    assert len(recording.starts("processes")) == 2 and manifest.missing


def test_what_is_known_is_in_the_run_before_its_tables_are_put_in_order(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a batch system whose patience ends meanwhile THEN the manifest has the exit code."""
    two_processes(recording)
    manifest, spools = Manifest(host="host", exit_code=3), SpoolFolder(recording.spool)

    def killed(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("subprocess.run", killed)
    with pytest.raises(KeyboardInterrupt):
        finish(recording.run, manifest, Flusher(recording.run, manifest, spools, None), spools)
    saved = Manifest.load(manifest.path_in(recording.run))
    assert saved.exit_code == 3 and saved.ended_ns is None


@pytest.mark.parametrize("alive", [True, False])
def test_kill_anywhere_in_a_pass_loses_and_doubles_nothing(
    alive: bool, recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a pass cut short after any of its steps WHEN another supervisor finishes THEN all is there once."""
    spools = two_processes(recording)
    write(spools[0], 0, 6)
    flusher = recording.flusher()
    flusher.flush(1)
    write(spools[0], 6, 7)
    write(spools[1], 100, 9)
    expected = [*range(13), *range(100, 109)]
    if not alive:
        end(monkeypatch)

    left = killed_after_each_step(lambda: flusher.flush(2), recording, tmp_path / "left")

    assert len(left) > 10
    for copy in left:
        copy.flusher().finish(3)
        assert every(copy) == expected
        assert len(copy.starts("processes")) == 2
    flusher.finish(3)
    assert every(recording) == expected


def test_kill_anywhere_in_the_finish(recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end(monkeypatch)
    spools = two_processes(recording)
    write(spools[0], 0, 90)  # more than one pass takes
    write(spools[1], 100, 3)

    left = killed_after_each_step(lambda: recording.flusher().finish(1), recording, tmp_path / "left")

    for copy in left[:: max(len(left) // 12, 1)] + left[-8:]:
        copy.flusher().finish(3)
        assert every(copy) == [*range(90), *range(100, 103)]
        assert len(copy.starts("processes")) == 2


@pytest.mark.parametrize("failing", range(6))
@pytest.mark.parametrize("where", ["part", "rename"])
def test_full_disk_in_the_middle_of_a_pass(
    where: str, failing: int, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a disk that takes so many files and then none WHEN there is room THEN the pass is made as if the first."""
    spools = two_processes(recording)
    write(spools[0], 0, 2)
    flusher = recording.flusher()
    flusher.flush(1)
    write(spools[0], 2, 9)
    write(spools[1], 100, 5)
    room = failing

    def limited(change: Callable[..., object]) -> Callable[..., object]:
        def changed(*arguments: object, **options: object) -> object:
            nonlocal room
            room -= 1
            if room < 0:
                raise OSError(28, "No space left on device")
            return change(*arguments, **options)

        return changed

    before = sorted(recording.run.rglob("*.parquet"))
    with monkeypatch.context() as patched:
        if where == "part":
            patched.setattr(pq.ParquetWriter, "write_table", limited(pq.ParquetWriter.write_table))
        else:
            patched.setattr(os, "replace", limited(os.replace))
        try:
            flusher.flush(2, {"counters": COUNTERS})
            failed = False
        except OSError:
            failed = True
            assert sorted(recording.run.rglob("*.parquet")) == before

    assert failed == (failing < {"part": 3, "rename": 4}[where])
    if failed:
        with_salvage = Recording(recording.folder.with_name("salvaged"))
        shutil.copytree(recording.folder, with_salvage.folder)
        with_salvage.flusher().finish(3)
        assert every(with_salvage) == [*range(11), *range(100, 105)]
        flusher.flush(3, {"counters": COUNTERS})
    flusher.finish(4)
    assert every(recording) == [*range(11), *range(100, 105)]
    assert recording.starts("counters") == [1]


def test_pass_takes_a_bounded_number_and_says_that_there_is_more(recording: Recording) -> None:
    spool = two_processes(recording)[0]
    write(spool, 0, 4 * 40)
    flusher = recording.flusher()

    # Sixteen segments a pass; the last one stays open.
    assert [flusher.flush(1) for _ in range(4)] == [True, True, True, False]
    assert every(recording) == list(range(160))


def test_pass_writes_one_part_of_each_table_for_all_processes(recording: Recording) -> None:
    for number, spool in enumerate(two_processes(recording)):
        write(spool, 10 * number, 4)

    recording.flusher().flush(1)

    assert every(recording) == [0, 1, 2, 3, 10, 11, 12, 13]
    assert len(list(recording.run.rglob("*.parquet"))) == 2  # spans and batches


def test_many_rows_are_written_before_the_pass_is_over(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded by the rows of a part, not by how many processes there are."""
    monkeypatch.setattr("tracekit.record.flush._ROWS_OF_A_PART", 4)
    for number, spool in enumerate(two_processes(recording)):
        write(spool, 10 * number, 8)

    recording.flusher().flush(1)

    assert every(recording) == [*range(8), *range(10, 18)]
    assert len(list(recording.run.rglob("*.parquet"))) == 4


def test_process_that_has_ended_is_read_to_its_end_and_never_again(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a process that ended with more than a pass takes WHEN passes go on THEN all is there, and they idle."""
    write(two_processes(recording)[0], 0, 4 * 20)
    flusher = recording.flusher()
    end(monkeypatch)
    assert [flusher.flush(1) for _ in range(3)] == [True, True, False]

    with monkeypatch.context() as patched:
        patched.setattr(SpooledRecords, "read", lambda *_: pytest.fail("read again"))
        patched.setattr(SpooledRecords, "has_more", lambda _: pytest.fail("looked for again"))
        flusher.finish(2)

    assert every(recording) == list(range(80))
    assert {process.stem for process in flusher.processes.all} == Ledger.load(recording.spool).positions.keys()


def test_process_that_only_seemed_to_have_ended_is_read_on(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a process that the supervisor cannot see, as in a PID namespace of its own THEN what it writes is there."""
    spool = two_processes(recording)[0]
    flusher = recording.flusher()
    end(monkeypatch)
    flusher.flush(1)

    write(spool, 0, 6)
    flusher.flush(2)
    write(spool, 6, 9)
    flusher.finish(3)

    # What is written to a segment that was taken for complete is lost; the next ones are not.
    assert {*range(6), *range(8, 15)} <= set(every(recording))


def test_window_that_is_no_trace_is_named_and_removed(recording: Recording) -> None:
    spool = two_processes(recording)[0]
    write(spool, 0, 1)
    window = recording.spool / f"{os.getpid()}-0.000003.window"
    window.write_text('{"traceEvents": [')
    spool.write(Kind.WINDOW, 0, 1, 2, 3, 4, 5)
    spool.write(Kind.WINDOW, 0, 1, 2, 4, 4, 5)  # its trace was never written
    manifest = Manifest(host="host", ended_ns=1)
    flusher = Flusher(recording.run, manifest, SpoolFolder(recording.spool), None)

    flusher.finish(1)

    assert every(recording) == [0] and not window.exists()
    assert sorted(note.what for note in manifest.missing if note.lost) == [
        "profiler window 3 of process 0",
        "profiler window 4 of process 0",
    ]


def test_nothing_is_imported_from_the_folder_of_the_program(
    recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a program in a folder with modules that are called as ours WHEN its run ends THEN it is compacted."""
    write(two_processes(recording)[0], 0, 3)
    for name in ("queue.py", "tracekit.py"):
        (tmp_path / name).write_text("raise SystemExit('of the program')")
    manifest, spools = Manifest(host="host"), SpoolFolder(recording.spool)
    monkeypatch.chdir(tmp_path)

    finish(recording.run, manifest, Flusher(recording.run, manifest, spools, None), spools)

    assert not [note for note in manifest.missing if note.lost]
    assert every(recording) == [0, 1, 2]


def test_window_that_fails_otherwise_costs_only_itself(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a window that takes more memory than there is THEN what else there is gets through, and the next window."""

    def load(path: Path) -> KinetoTrace:
        if "000003" in path.name:
            raise MemoryError("no room")
        return load_kineto(path)

    monkeypatch.setattr("tracekit.record.flush.load_kineto", load)
    spool = two_processes(recording)[0]
    write(spool, 0, 1)
    for number in (3, 4):
        window = recording.spool / f"{os.getpid()}-0.{number:06}.window"
        window.write_text('{"traceEvents": [{"ph": "X", "ts": 1, "dur": 2}]}')
        spool.write(Kind.WINDOW, 0, 1, 2, number, 4, 4)
    manifest = Manifest(host="host", ended_ns=1)

    Flusher(recording.run, manifest, SpoolFolder(recording.spool), None).finish(1)

    assert every(recording) == [0] and recording.starts("operators") == [1000]
    assert [(note.what, note.why) for note in manifest.missing if note.lost] == [
        ("profiler window 3 of process 0", "MemoryError: no room")
    ]
    assert not list(recording.spool.glob("*.window"))


def test_ledger_round_trip_and_what_is_none(tmp_path: Path) -> None:
    assert Ledger.load(tmp_path) == Ledger()
    full = Ledger(5, {"1-a": Position(2, 64)}, [Process(0, 1, -1, 5, command=["a", "\n"], stem="1-a", ticks=3)])
    full.save(tmp_path)

    assert Ledger.load(tmp_path) == full
    for data in (b"{", b'{"positions": {"\xff": {}}}', b'{"x": ' + b"[" * 100_000):
        (tmp_path / "ledger.json").write_bytes(data)
        assert Ledger.load(tmp_path) == Ledger()
