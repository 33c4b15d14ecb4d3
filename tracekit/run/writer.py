"""Writing tables: small Parquet parts while recording, one sorted file per host and table at the end."""

import os
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tracekit.run.parts import host_of, live_parts, number_of
from tracekit.run.schema import TABLES

# Compaction sorts out of core: DuckDB spills to disk beyond this.
_SORT_MEMORY = "96MB"
_ROW_GROUP = 256 * 1024
_FORMAT = {"compression": "zstd", "data_page_version": "2.0"}
# Parts are written beside the program and are compacted at its end: what they take matters more than their size.
_LEVEL, _LEVEL_OF_PARTS = 6, 1

# What stands for a part that is gone is found by who opens the run anew: nobody reads one for longer.
_READ_FOR_S = 3600.0


def write_table(table: pa.Table, path: Path) -> None:
    """Write one Parquet file: a temporary file, then a rename, so that no reader meets half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".tmp")
    try:
        with _open(table.schema, scratch, _LEVEL_OF_PARTS) as writer:
            writer.write_table(table, row_group_size=_ROW_GROUP)
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


def _open(schema: pa.Schema, path: Path, level: int) -> pq.ParquetWriter:
    words = [field.name for field in schema if pa.types.is_dictionary(field.type)]
    numbers = {field.name: "DELTA_BINARY_PACKED" for field in schema if pa.types.is_integer(field.type)}
    return pq.ParquetWriter(
        path, schema, use_dictionary=words, column_encoding=numbers, compression_level=level, **_FORMAT
    )


class PartWriter:
    """Appends parts to the tables of one host, and compacts them when recording ends."""

    def __init__(self, run: Path, host: str, first_process: int = 0) -> None:
        self._tables = run / "tables"
        self._host = host
        self._first_process = first_process
        self.last = max((number_of(file) for file in self._own_files()), default=0)

    def _own_files(self) -> list[Path]:
        return [file for file in self._tables.glob("*/*.parquet") if host_of(file) == self._host]

    def write(self, name: str, table: pa.Table, anew: bool = False) -> None:
        """Add a part to a table, or one that stands for all that were written of it before (`anew`). Raises OSError
        when the disk does not take it; nothing is left half-written."""
        if table.num_rows:
            table = _numbered(table.cast(TABLES[name]), self._first_process)
            kind = ".merged" if anew else ""
            write_table(table, self._tables / name / f"{self._host}-{self.last + 1:06d}{kind}.parquet")
            self.last += 1

    def discard_after(self, number: int) -> None:
        """Remove the parts with a higher number: those of a pass that was not completed."""
        for file in self._own_files():
            if number_of(file) > number:
                file.unlink(missing_ok=True)
        self.last = number

    def drop_superseded(self, name: str) -> None:
        """Remove the parts of a table that were written anew since, but for those that somebody who has opened the run
        may still read."""
        folder = self._tables / name
        live = live_parts(folder)
        newest_s = max((file.stat().st_mtime for file in live), default=0.0)
        for file in set(folder.glob("*.parquet")).difference(live):
            if host_of(file) == self._host and newest_s - file.stat().st_mtime > _READ_FOR_S:
                file.unlink(missing_ok=True)

    def compact(self, scratch: Path) -> None:
        """Turn each table's parts into one file sorted by process and start. `scratch` takes what does not fit memory.

        Raises OSError or duckdb.Error when the disk does not take it; the parts then stay as they are.
        """
        for folder in sorted(self._tables.glob("*")):
            files = [file for file in folder.glob("*.parquet") if host_of(file) == self._host]
            live = [file for file in live_parts(folder) if file in files]
            if live:
                self._merge(folder.name, live, scratch)
                newest = folder / f"{self._host}-{_newest(live):06d}.merged.parquet"
                for file in files:
                    if file != newest:
                        file.unlink()

    def _merge(self, name: str, parts: list[Path], scratch: Path) -> None:
        merged = parts[0].parent / f"{self._host}-{_newest(parts):06d}.merged.tmp"
        settings: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": _SORT_MEMORY,
            "temp_directory": str(scratch),
            "threads": 1,
        }
        with duckdb.connect(config=settings) as database:
            files = [_literal(part) for part in parts]
            columns = ", ".join(f'"{column}"' for column in TABLES[name].names)
            # A run below a folder called "name=lstm" is no partition of that name: DuckDB would put it in the column.
            rows = database.sql(
                f"SELECT {columns} FROM read_parquet(?, hive_partitioning = false)"
                " ORDER BY process, start_ns, duration_ns DESC",
                params=[files],
            )
            try:
                with _open(TABLES[name], merged, _LEVEL) as writer:
                    for batch in rows.to_arrow_reader(_ROW_GROUP):
                        # `pa.table` would import pandas, which takes as long as all of the rest.
                        part = pa.Table.from_batches([batch]).cast(TABLES[name])
                        writer.write_table(part, row_group_size=_ROW_GROUP)
                os.replace(merged, merged.with_suffix(".parquet"))
            finally:
                merged.unlink(missing_ok=True)


def _numbered(table: pa.Table, first: int) -> pa.Table:
    """The rows with their processes numbered from `first`; -1 stands for none."""
    for column in ("process", "parent"):
        if first and column in table.column_names:
            numbers = table[column]
            moved = pc.if_else(pc.greater_equal(numbers, 0), pc.add(numbers, pa.scalar(first, numbers.type)), numbers)
            table = table.set_column(table.schema.get_field_index(column), table.schema.field(column), moved)
    return table


def _newest(parts: list[Path]) -> int:
    return max(number_of(part) for part in parts)


def _literal(path: Path) -> str:
    """The path as DuckDB's globbing takes it to the letter."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in str(path))
