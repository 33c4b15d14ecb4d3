"""The settings file and the catalogue: what is accepted, how mistakes are told, and whose file is never overwritten."""

from pathlib import Path

import pytest

from tracekit.settings.catalogue import CATALOGUE, SettingsError, check_applicable, find, key_path
from tracekit.settings.file import Entry, load_settings, write_settings

EVERYTHING = """
[threads]
intra_op = 2
affinity = "0-3,8"
[threads.layers]
"encoder.rnn.layer0" = 1
decoder.head = 2
[loader.train]
num_workers = 0
pin_memory = true
[loader."loader#2"]
prefetch_factor = 4
[ddp]
bucket_cap_mb = 25
[training]
lr = 1e-3
"""


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_with_every_kind_of_setting(tmp_path: Path) -> None:
    assert load_settings(written(tmp_path / "s.toml", EVERYTHING)) == {
        "threads.intra_op": 2,
        "threads.affinity": "0-3,8",
        "threads.layers.encoder.rnn.layer0": 1,
        "threads.layers.decoder.head": 2,
        "loader.train.num_workers": 0,
        "loader.train.pin_memory": True,
        "loader.loader#2.prefetch_factor": 4,
        "ddp.bucket_cap_mb": 25.0,
        "training.lr": 1e-3,
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[threads]\nintra_ops = 2", "no setting is called 'threads.intra_ops'; did you mean threads.intra_op?"),
        ("[zebra]\nstripes = 2", "no setting is called 'zebra.stripes'; there are threads.intra_op"),
        ("[threads]\nintra_op = 0", "threads.intra_op must be a whole number, at least 1 and at most 65536, not 0"),
        ("[threads]\nintra_op = 2.0", "must be a whole number"),
        ("[threads]\nintra_op = true", "must be a whole number"),
        ("[threads]\nintra_op = '2'", "must be a whole number"),
        ("[threads]\nintra_op = [2]", "must be a whole number"),
        ("[ddp]\nbucket_cap_mb = 1e9", "must be a number, at least 0.001"),
        ("[ddp]\nbucket_cap_mb = nan", "must be a number"),
        ("[ddp]\nbucket_cap_mb = 1" + 400 * "0", "must be a number"),
        ("[loader.train]\npin_memory = 1", "must be true or false"),
        ("[loader.train]\nmultiprocessing_context = 'thread'", "must be one of fork, spawn, forkserver, in quotes"),
        ("[threads.layers]\nrnn = 0", "threads.layers.rnn must be"),
        ("threads.layers = 3", "no setting is called 'threads.layers'"),
        ("intra_op =", "is not valid TOML"),
    ],
)
def test_a_mistake_is_told_in_one_line_with_the_file(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(written(tmp_path / "s.toml", text))
    assert str(caught.value).startswith(f"{tmp_path / 's.toml'}: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "absent.toml", tmp_path, tmp_path / "binary"):
        with pytest.raises(SettingsError, match=str(path)):
            load_settings(path)


def test_only_what_can_be_applied_is_applied() -> None:
    check_applicable({"threads.intra_op": 2, "threads.inter_op": 1, "loader.train.num_workers": 4})
    with pytest.raises(SettingsError, match=r"node\.spare_cores: is what may run beside"):
        check_applicable({"threads.intra_op": 2, "node.spare_cores": 4})


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    entries = [
        Entry("threads.intra_op", 2, "because\nof\x1b[31m this " * 9),
        Entry("threads.layers.encoder.rnn", 1, "narrow"),
        Entry('loader.my "train".num_workers', 4),
        Entry("ddp.bucket_cap_mb", 12.5),
    ]
    assert write_settings(tmp_path / "s.toml", entries, "Header with a # and\na line end.")
    assert load_settings(tmp_path / "s.toml") == {entry.name: entry.value for entry in entries}
    lines = (tmp_path / "s.toml").read_text().splitlines()
    assert all(len(line) <= 100 for line in lines)
    assert "[threads]" in lines
    assert '"encoder.rnn" = 1' in lines


def test_an_edited_file_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    assert write_settings(file, [Entry("threads.intra_op", 2)], "first")
    assert write_settings(file, [Entry("threads.intra_op", 3)], "second")
    edited = file.read_text().replace("= 3", "= 4")
    file.write_text(edited)
    assert not write_settings(file, [Entry("threads.intra_op", 5)], "third")
    assert file.read_text() == edited
    assert [path.name for path in tmp_path.iterdir()] == ["s.toml"]


def test_a_file_that_an_earlier_version_wrote_is_no_edited_one(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    write_settings(file, [Entry("threads.intra_op", 2)], "first")
    file.write_text(file.read_text().replace("# Written by tracekit, digest", "# Written by tracekit analyze, digest"))
    assert write_settings(file, [Entry("threads.intra_op", 3)], "second")
    assert load_settings(file) == {"threads.intra_op": 3}


def test_a_file_of_no_settings_is_empty(tmp_path: Path) -> None:
    write_settings(tmp_path / "s.toml", [], "Nothing is recommended.")
    assert load_settings(tmp_path / "s.toml") == {}


def test_every_name_of_the_catalogue_finds_itself() -> None:
    for kind in CATALOGUE:
        name = kind.name.replace("*", "some.name")
        assert find(name) is kind
        assert ".".join(key_path(name)) == name
    assert find("threads.layers.") is None
    assert find("loader..num_workers") is None
