"""The manifest on disk: kept, replaced at once, read back whatever its age, refused when it is none."""

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.errors import RunError
from tracekit.record.salvage import salvage
from tracekit.run.files import replace_file
from tracekit.run.manifest import (
    CPU,
    MANIFEST_VERSION,
    CameTo,
    Loader,
    Manifest,
    Memory,
    Missing,
    Overhead,
    Torch,
    Wrapped,
)
from tracekit.settings.file import write_settings

FULL = Manifest(
    tracekit="1.0",
    run="train-1",
    host="node.example.org",
    command=["python", "tr\nain.py", "", "100 %", '"'],
    directory="/home/ü",
    node="node",
    job="slurm 7.0",
    first_process=1 << 20,
    condition="fixed",
    settings={"threads.intra_op": 2, "loader": {"train": [1, 2.5, None, True]}},
    noise=["memory=4GB/s"],
    collectors=["steps"],
    started_ns=2**60,
    ended_ns=2**60 + 1,
    clock_offset_ns=-5,
    exit_code=137,
    exit_signal=9,
    spool="/tmp/x",
    supervisor=12,
    supervisor_started=99,
    boot="5c1d",
    pid_namespace=7,
    cpu=CPU("Xeon", 8, [0, 1], 4, 1, 1, 1.5),
    memory=Memory(free=1 << 33, shared=1 << 26, files=1024),
    torch=Torch("2.13", None, "libgomp", 4, 2, on_gpu=True),
    loaders={"loader": Loader("train.py:7", num_workers=4, prefetch_factor=2, batch_size=8)},
    ddp=[Wrapped(25.0, True, parameters=1, bytes=8, names=["weight"], sizes=[8])],
    gpus=["H200"],
    overhead=Overhead(0.01, 0.004, 0.001, 0.002),
    profile="full",
    missing=[Missing("x", "y", lost=True)],
    hanging=[
        CameTo(0, 1, 2, "all_reduce", "world", 3, 31.5),
        CameTo(1, 1, 2, "barrier", "world", 2, -1.0, failed=True),
    ],
)


def test_round_trip(tmp_path: Path) -> None:
    path = FULL.path_in(tmp_path)
    FULL.save(path)

    assert Manifest.load(path) == FULL
    assert path.name == "node.example.org.json"
    assert all(
        getattr(FULL, name) != getattr(Manifest(), name) for name in set(Manifest.__struct_fields__) - {"schema"}
    )


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_can_be_kept(text: str) -> None:
    """Command lines and paths are bytes on Linux: Python shows those that are no text as lone surrogates."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.json"
        manifest = Manifest(command=[text], directory=text, settings={text: text})
        manifest.add_missing(text, text)
        manifest.save(path)

        kept = text.encode("utf-8", "replace").decode()
        assert Manifest.load(path).command == [kept]
        assert Manifest.load(path).missing == [Missing(kept, kept)]


def test_missing_keys_take_their_defaults_and_unknown_ones_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"host": "a", "cpu": {"logical": 2}, "from the future": {"x": 1}}')

    assert Manifest.load(path) == Manifest(host="a", cpu=CPU(logical=2))


def test_no_two_manifests_share_what_can_change() -> None:
    first = Manifest()
    first.add_missing("a", "b")
    first.settings["x"] = 1
    first.cpu.affinity.append(1)

    assert Manifest() == Manifest(cpu=CPU()) and Manifest().missing == []


def test_newer_schema_is_refused_whatever_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"schema": MANIFEST_VERSION + 1, "command": {"of another": "kind"}}))

    with pytest.raises(RunError, match=r"newer tracekit.*upgrade"):
        Manifest.load(path)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b"null", b"\x00" * 100, b'{"run": "\xff"}', b'{"schema": "x"}', b'{"command": 3}',
        b"\xff\xfe{", b'{"settings": ' + b"[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_manifest_is_said_in_one_line(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(data)

    with pytest.raises(RunError) as caught:
        Manifest.load(path)

    assert str(path) in str(caught.value) and len(str(caught.value).splitlines()) == 1


def test_manifest_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot be read"):
        Manifest.load(tmp_path / "none.json")


@pytest.mark.parametrize(("owner", "function"), [(Path, "open"), (os, "replace")])
def test_old_manifest_stays_when_the_new_one_cannot_be_written(
    owner: object, function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    Manifest(host="old").save(path)

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(owner, function, full)
        with pytest.raises(OSError, match="No space"):
            Manifest(host="new").save(path)

    assert Manifest.load(path).host == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_no_link_beside_it_is_written_through(tmp_path: Path) -> None:
    """GIVEN links in a run, from somebody else, where a file is written before it takes its name."""
    mine = tmp_path / "mine"
    mine.write_text("mine")
    for name in ("findings.json.tmp", "settings.toml.tmp", "node.example.org.tmp", "findings.json"):
        (tmp_path / name).symlink_to(mine)
    replace_file(tmp_path / "findings.json", b"found")
    write_settings(tmp_path / "settings.toml", [], "why")
    FULL.save(tmp_path / "node.example.org.json")
    assert mine.read_text() == "mine" and (tmp_path / "findings.json").read_text() == "found"


@pytest.mark.parametrize("host", ["../../x", "a\0b"])
def test_a_host_that_no_file_can_be_called_is_refused(host: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"host": host}))
    with pytest.raises(RunError, match="its host is no name"):
        Manifest.load(path)


@pytest.mark.parametrize("session", [None, "{}", '{"run": "another"}', "[", "[1]"])
def test_a_spool_folder_that_is_not_the_runs_own_is_left_alone(tmp_path: Path, session: str | None) -> None:
    """GIVEN a run from somebody else that names a folder of ours as what a killed supervisor left."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years")
    if session is not None:
        (mine / "session.json").write_text(session)
    run = tmp_path / "run"
    manifest = Manifest(run="run", host="x", node=os.uname().nodename, spool=str(mine))
    manifest.save(manifest.path_in(run))
    (said,) = salvage(run)
    assert "left alone" in said and (mine / "thesis.txt").read_text() == "years"
    assert Manifest.load(manifest.path_in(run)) == manifest  # whose it is may still salvage it


def test_note_is_kept_once() -> None:
    manifest = Manifest()
    for lost in (False, False, True):
        manifest.add_missing("operators", "switched off", lost)

    assert manifest.missing == [Missing("operators", "switched off"), Missing("operators", "switched off", lost=True)]


def test_a_note_that_holds_for_some_processes_tells_which() -> None:
    manifest = Manifest()
    for process in (3, 5, 3):
        manifest.add_missing("buckets", "too few steps", process=process)
    assert manifest.missing == [Missing("buckets", "too few steps", processes=(3, 5))]


def test_total_overhead_is_what_program_and_supervisor_pay() -> None:
    overhead = Overhead(program=0.01, profiler=0.004, supervisor=0.002)

    assert overhead.total == pytest.approx(0.012)
    assert "total" not in json.loads(msgspec.json.encode(overhead))


@pytest.mark.parametrize(
    ("gpus", "torch", "may"),
    [
        ([], Torch(), False),
        ([], Torch(on_gpu=True), True),  # one that was not listed
        (["H200"], Torch(on_gpu=False), False),
        (["H200"], Torch(on_gpu=True), True),
        (["H200"], Torch(), True),  # recorded before anybody looked
        (["H200"], None, True),
    ],
)
def test_a_gpu_that_the_program_left_alone_is_none_to_it(gpus: list[str], torch: Torch | None, may: bool) -> None:
    assert Manifest(gpus=gpus, torch=torch).may_use_gpu is may
