"""What the samples of a data set are read from, with real workers."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from recording import PROGRAMS, Recorded, plain, record

SIZE = 30_000


@dataclass
class Reading:
    """The program that reads files of a folder, without us and recorded."""

    folder: Path
    without: subprocess.CompletedProcess[str]
    done: Recorded


@pytest.fixture(
    scope="module",
    params=[("0", ""), ("2", "fork"), pytest.param(("1", "spawn"), marks=pytest.mark.long)],
    ids=lambda how: "-".join(how),
)
def reading(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reading:
    """With so many workers, started so."""
    home = tmp_path_factory.mktemp("reading")
    folder = home / "data"
    folder.mkdir()
    command = [sys.executable, str(PROGRAMS / "reading.py"), str(folder), *request.param]
    return Reading(folder, plain(command), record(command, home / "run", "--overhead", "50"))


def test_reads_are_seen(reading: Reading) -> None:
    """Each batch has a sample of every way to read."""
    folder, done = reading.folder, reading.done
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


def test_what_is_read_is_the_same(reading: Reading) -> None:
    """The same files, and all that the program can see of the objects that read them."""
    without, done = reading.without, reading.done
    assert (done.code, done.out, done.err) == (0, without.stdout, without.stderr)


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
