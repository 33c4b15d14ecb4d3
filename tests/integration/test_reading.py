"""What the samples of a data set are read from, with real workers."""

import sys
from pathlib import Path

import pytest
from recording import PROGRAMS, plain, record

SIZE = 30_000


@pytest.mark.parametrize(
    ("workers", "method"), [(0, ""), (2, "fork"), pytest.param(1, "spawn", marks=pytest.mark.long)]
)
def test_reads_are_seen_and_unchanged(workers: int, method: str, tmp_path: Path) -> None:
    """Each batch has a sample of every way to read; the noise of the image is drawn anew each time."""
    folder = tmp_path / "data"
    folder.mkdir()
    command = [sys.executable, str(PROGRAMS / "reading.py"), str(folder), str(workers), method]
    done = record(command, tmp_path / "run", "--overhead", "50")
    assert done.code == 0 and done.err == ""
    assert len(done.out.splitlines()) == 5 and done.out.splitlines()[-1].startswith("builtin_function_or_method")

    reads = done.run.table("reads")
    assert (reads["duration_ns"] > 0).all() and (reads["cpu_ns"] >= 0).all()
    assert reads["process"].isin(done.run.table("fetches")["process"]).all()
    by_path = reads.groupby("path")["bytes"].sum()
    for name, least in [("binary", SIZE), ("text", 7_000), ("array.npy", 40_000), ("image.png", 1_000)]:
        assert by_path[str(folder / name)] >= 4 * least, name
    assert by_path["binary"] >= 4 * 700  # of the file system of objects, which has paths of its own
    (asked,) = [path for path in by_path.index if path.startswith("http") and path.endswith("/binary")]
    assert by_path[asked] == 4 * SIZE
    assert not any("secret" in path for path in by_path.index)
    packed = reads[reads["path"] == str(folder / "packed")]
    # What is buffered begins somewhere before what is asked for.
    assert (packed["offset"] <= 12_345).all() and (packed["offset"] + packed["bytes"] > 12_345).all()


def test_what_is_read_is_the_same(tmp_path: Path) -> None:
    """The same files, and all that the program can see of the objects that read them."""
    program = (
        (PROGRAMS / "reading.py").read_text().replace("Image.effect_noise((60, 40), 50)", 'Image.new("L", (9, 9))')
    )
    (tmp_path / "program.py").write_text(program)
    (tmp_path / "data").mkdir()
    for workers, method in [("0", ""), ("2", "fork")]:
        command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "data"), workers, method]
        without, recorded = plain(command), record(command, tmp_path / f"run{workers}", "--overhead", "50")
        assert (recorded.code, recorded.out, recorded.err) == (0, without.stdout, without.stderr)


SIGNED = """
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from torch.utils.data import DataLoader

class File(AbstractBufferedFile):
    def _fetch_range(self, start, end):
        return b"x" * (end - start)

class Store(AbstractFileSystem):
    protocol = "store"
    def info(self, path, **kwargs):
        return {"name": path, "size": 5000, "type": "file"}
    def _open(self, path, mode="rb", **kwargs):
        return File(self, path, mode)

class Samples:
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return len(Store()._open("https://host/object?signature=SECRET").read())

for batch in DataLoader(Samples()):
    pass
"""


def test_keys_to_a_storage_are_not_written_down(tmp_path: Path) -> None:
    done = record([sys.executable, "-c", SIGNED], tmp_path / "run", "--overhead", "50")
    assert done.code == 0, done.err
    assert set(done.run.table("reads")["path"]) == {"https://host/object"}
