"""Reading tables back: whatever was lost, wherever they lie, whatever is asked."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tables import HOST, batches, new_run, starts

from tracekit.errors import TracekitError
from tracekit.run.manifest import Manifest
from tracekit.run.reader import open_run
from tracekit.run.schema import TABLES
from tracekit.run.writer import PartWriter, write_table


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return new_run(tmp_path / "run")


def test_files_keep_integers_exact_and_words_as_a_dictionary(run: Path, tmp_path: Path) -> None:
    writer = PartWriter(run, HOST)
    names = ["a\nb", "100 %", "\"q'", "<b>", "你好", "", "\x00", None]
    for name in names:
        writer.write("batches", batches(2**62 + 1, loader=name))  # no float holds this
    writer.compact(tmp_path)

    file = pq.ParquetFile(next((run / "tables" / "batches").iterdir()))
    assert file.schema_arrow.equals(TABLES["batches"], check_metadata=False)
    frame = open_run(run).table("batches")
    assert set(frame["start_ns"]) == {2**62 + 1}
    assert set(frame["loader"].dropna()) == set(names) - {None} and frame["loader"].isna().sum() == 1


@pytest.mark.parametrize("damage", ["cut", "empty", "no parquet"])
def test_part_that_cannot_be_read_is_left_out_and_named(damage: str, run: Path) -> None:
    writer = PartWriter(run, HOST)
    for start in (1, 2, 3):
        writer.write("batches", batches(start))
    victim = run / "tables" / "batches" / f"{HOST}-000002.parquet"
    data = victim.read_bytes()
    victim.write_bytes({"cut": data[: len(data) // 2], "empty": b"", "no parquet": b"x" * 100}[damage])

    opened = open_run(run)

    assert list(opened.table("batches")["start_ns"]) == [1, 3]
    (note,) = opened.missing
    assert note.lost and f"tables/batches/{victim.name}" in note.what and len(note.why.splitlines()) == 1
    assert not opened.complete


def test_damage_inside_a_part_is_an_error_of_one_line(run: Path) -> None:
    PartWriter(run, HOST).write("batches", batches(*range(1000)))
    part = run / "tables" / "batches" / f"{HOST}-000001.parquet"
    data = bytearray(part.read_bytes())
    data[4:200] = b"\xff" * 196
    part.write_bytes(data)

    with pytest.raises(TracekitError, match="run"):
        open_run(run).table("batches")


def test_empty_run_has_every_table_without_rows(run: Path, tmp_path: Path) -> None:
    shutil.rmtree(run / "tables")
    PartWriter(run, HOST).compact(tmp_path)

    opened = open_run(run)

    assert opened.complete
    for name, schema in TABLES.items():
        frame = opened.table(name)
        assert list(frame.columns) == schema.names and frame.empty


@pytest.mark.parametrize(
    "folder", ["a*b?c[1]", "quote'and\"", "line\nbreak", "process=7/start_ns=1", "{a,b}", "über %s \\", "loader=x"]
)
def test_any_path_will_do(folder: str, tmp_path: Path) -> None:
    run = new_run(tmp_path / folder / "run")
    decoy = tmp_path / "aXbYc1" / "run" / "tables" / "batches" / f"{HOST}-000001.parquet"
    write_table(batches(666), decoy)
    writer = PartWriter(run, HOST)
    for start in (2, 1):
        writer.write("batches", batches(start))
    assert starts(run) == [2, 1]

    writer.compact(tmp_path)

    frame = open_run(run).table("batches")
    assert list(zip(frame["process"], frame["start_ns"], frame["loader"], strict=True)) == [
        (0, 1, "loader"),
        (0, 2, "loader"),
    ]


def test_column_that_an_older_file_lacks_reads_as_null(run: Path) -> None:
    PartWriter(run, HOST).write("batches", batches(1))
    old = batches(2).drop_columns(["bytes", "loader"])
    write_table(old, run / "tables" / "batches" / f"{HOST}-000002.parquet")
    more = batches(3).append_column("from_the_future", pa.array([1]))
    write_table(more, run / "tables" / "batches" / f"{HOST}-000003.parquet")

    frame = open_run(run).table("batches")

    assert list(frame.columns) == TABLES["batches"].names
    assert list(frame["loader"].fillna("null")) == ["loader", "null", "loader"]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM read_csv('{file}')",
        "SELECT * FROM '{file}'",
        "SELECT * FROM read_text('{file}')",
        "SELECT * FROM read_parquet('{file}')",
        "SELECT * FROM glob('{folder}/*')",
        "COPY (SELECT 1) TO '{folder}/made'",
        "ATTACH '{folder}/made'",
        "EXPORT DATABASE '{folder}/made'",
        "SET enable_external_access = true",
        "INSTALL httpfs",
        "LOAD '{file}'",
        "",
        "SELECT nonsense",
    ],
)
def test_sql_sees_the_tables_and_no_file(query: str, run: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("password\nxyzzy\n")

    with pytest.raises(TracekitError, match="run") as caught:
        open_run(run).sql(query.format(file=secret, folder=tmp_path))

    assert "xyzzy" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "secret.csv"]


def test_rows_are_looked_up_by_time_without_comparing_all_with_all(run: Path) -> None:
    """DuckDB plans a nested loop where it expects few rows, which it does of all that comes from Arrow."""
    plan = open_run(run).sql(
        "EXPLAIN SELECT count(*) FROM spans ASOF JOIN batches ON spans.process = batches.process AND"
        " spans.start_ns >= batches.start_ns"
    )
    assert "Asof Join" in str(plan.iloc[0, 1])


def test_parameters_are_values_and_no_sql(run: Path) -> None:
    PartWriter(run, HOST).write("batches", batches(1, loader="'; DROP TABLE batches; --"))

    opened = open_run(run)

    assert len(opened.sql("SELECT * FROM batches WHERE loader = ?", ["'; DROP TABLE batches; --"])) == 1
    assert len(opened.table("batches")) == 1


def test_manifests_of_all_hosts_count(run: Path) -> None:
    Manifest(host="b", started_ns=-1, missing=[]).save(run / "manifest" / "b.json")

    opened = open_run(run)

    assert [manifest.host for manifest in opened.manifests] == ["b", HOST]
    assert [note.what for note in opened.missing] == ["the end of the recording on b"]
    assert not opened.complete


def test_what_is_no_run(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(TracekitError, match="tracekit runs"):
            open_run(path)


def test_a_query_is_interrupted_like_anything_else(tmp_path: Path) -> None:
    """GIVEN Ctrl-C in a query, of which DuckDB makes an error of its own THEN it is Ctrl-C all the same."""

    def interrupted(query: str, params: object) -> None:
        raise RuntimeError(query)

    run = open_run(new_run(tmp_path / "run"))
    vars(run)["_database"] = SimpleNamespace(sql=interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.sql("Query interrupted")
    with pytest.raises(RuntimeError, match="another"):
        run.sql("another")
