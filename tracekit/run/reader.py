"""Reading a run back: its manifest, its tables as data frames, and SQL over them."""

import os
import secrets
import tempfile
import time
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from threading import Lock

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from tracekit.errors import RunError, TracekitError
from tracekit.run.folder import is_run
from tracekit.run.manifest import Manifest, Missing
from tracekit.run.parts import host_of, live_parts
from tracekit.run.schema import TABLES, plain

Parts = dict[str, dict[str, int]]  # by table, the names of its files and their sizes

_LOOKS = 500  # for files that go while they are looked for
# What DuckDB makes of Ctrl-C in the midst of a query.
_INTERRUPTED = "Query interrupted"


class Run:
    """A recorded run, or what was recorded of one host or of some processes. Parts that cannot be read are left out and
    named in `missing`."""

    def __init__(
        self, path: Path, host: str | None = None, processes: tuple[int, ...] = (), parts: Parts | None = None
    ) -> None:
        self.path = path
        self._host, self._processes, self._given = host, processes, parts
        self._unreadable: dict[Path, Missing] = {}  # by part
        self._one_at_a_time = Lock()

    def __reduce__(self) -> tuple[object, ...]:
        """What another process needs to open it."""
        return Run, (self.path.absolute(), self._host, self._processes, self._parts)

    def of(self, process: int, *others: int) -> "Run":
        """What was recorded of one process, -1 the machine, and of others on its host. It is read by one thread: others
        may read other processes."""
        host = self._host_of(process)
        return Run(self.path, host, (process, *others), self._parts_on(host))

    def near(self, process: int) -> "Run":
        """What was recorded on the host of a process."""
        host = self._host_of(process)
        return self if host in (None, self._host) else self.on(host)

    def on(self, host: str) -> "Run":
        """What was recorded on one host, with its manifest alone."""
        return Run(self.path, host, parts=self._parts_on(host))

    def _host_of(self, process: int) -> str | None:
        """Whose supervisor recorded a process; None where the run has one host, or that is not known."""
        return self._host if self._host is not None or len(self.manifests) < 2 else self._hosts.get(process)

    @cached_property
    def _hosts(self) -> dict[int, str]:
        rows = self.sql("SELECT DISTINCT process, host FROM processes")
        known = {manifest.host for manifest in self.manifests}
        return {int(row.process): row.host for row in rows.itertuples() if row.host in known}

    @property
    def name(self) -> str:
        return self.path.name

    @cached_property
    def manifests(self) -> list[Manifest]:
        """One manifest per host, the first started one first."""
        found = [Manifest.load(file) for file in sorted((self.path / "manifest").glob("*.json"))]
        found = [each for each in found if self._host in (None, each.host)]
        return sorted(found, key=lambda manifest: manifest.started_ns)

    @property
    def manifest(self) -> Manifest:
        """The manifest of the host that started first."""
        return self.manifests[0]

    @property
    def complete(self) -> bool:
        """Whether the recording ended in order and nothing that it should hold was lost."""
        return not any(note.lost for note in self.missing)

    @property
    def missing(self) -> list[Missing]:
        """What was not captured or cannot be read, from every host."""
        self._parts  # noqa: B018  reading the footers finds what is unreadable
        notes = [note for manifest in self.manifests for note in manifest.missing]
        notes += [
            Missing(f"the end of the recording on {manifest.host}", "its supervisor has not ended in order", lost=True)
            for manifest in self.manifests
            if manifest.ended_ns is None
        ]
        return _merged([*notes, *self._unreadable.values()])

    def lacks_rows(self, process: int, *tables: str) -> bool:
        """Whether rows of these tables that may be of this process cannot be read."""
        self._parts  # noqa: B018  as above
        host = self._host_of(process)
        return any(part.parent.name in tables and host in (None, host_of(part)) for part in self._unreadable)

    def table(self, name: str) -> pd.DataFrame:
        """A whole table as a data frame; use `sql` for what does not fit in memory."""
        return self.sql(f'SELECT * FROM "{name}"')

    def sql(self, query: str, parameters: list[object] | None = None) -> pd.DataFrame:
        """The result of one SQL query over the tables. Raises TracekitError when DuckDB refuses it."""
        return self.arrow(query, parameters).to_pandas()

    def arrow(self, query: str, parameters: list[object] | None = None) -> pa.Table:
        """The same as `sql`, as an Arrow table."""
        try:
            with self._one_at_a_time:
                rows = self._database.sql(query, params=parameters)
                if rows is not None:
                    return rows.to_arrow_table()
        except duckdb.CatalogException as error:
            first = str(error).partition("\n")[0]
            raise TracekitError(f"{self.name}: {first} The tables are {', '.join(self._datasets)}.") from error
        except duckdb.Error as error:
            lines = [line.strip() for line in str(error).splitlines()]
            raise TracekitError(f"{self.name}: {'; '.join(line for line in lines if line.strip('^'))}") from error
        except RuntimeError as error:
            if str(error) == _INTERRUPTED:
                raise KeyboardInterrupt from error
            raise
        raise TracekitError(f"{self.name}: the query is empty or gives no rows; ask with SELECT")

    @cached_property
    def _database(self) -> duckdb.DuckDBPyConnection:
        try:
            os.getcwd()
        except OSError as error:  # DuckDB would abort the process
            raise RunError(f"{self.path}: cannot be read from a folder that is gone; change to another") from error
        # The queries see the registered tables and nothing else: no file of this machine. What does not fit memory is
        # spilled to the folder for temporary files; DuckDB's default would be the user's working directory.
        spill = os.path.join(tempfile.gettempdir(), f"tracekit-duckdb-{secrets.token_hex(8)}")
        settings: dict[str, str | bool | int | float | list[str]] = {
            "enable_external_access": "false",
            "memory_limit": "2GB",
            "temp_directory": spill,
            # It takes every table of Arrow's for one row, and what an ASOF join looks up for few: row by row that took
            # 12.6 s for 25,000 of 500,000 rows, and grew with the square.
            "asof_loop_join_threshold": 0,
        }
        if self._processes:
            settings["threads"] = 1
        database = duckdb.connect(config=settings)
        for name, dataset in self._datasets.items():
            database.register(name, dataset)
        return database

    @cached_property
    def _datasets(self) -> dict[str, ds.Dataset]:
        return {name: self._dataset(name) for name in TABLES}

    def _dataset(self, name: str) -> ds.Dataset:
        parts = [self.path / "tables" / name / part for part in self._parts[name]]
        if not parts:
            return ds.dataset(plain(name).empty_table())
        if self._given is not None:
            self._expect(parts)
        rows = ds.dataset([str(part) for part in parts], schema=plain(name), format="parquet")
        return rows.filter(ds.field("process").isin(self._processes)) if self._processes else rows

    @cached_property
    def _parts(self) -> Parts:
        """What there is to read: of a part of a run, or on another machine, that of the run where it was opened."""
        if self._given is not None:
            return self._given
        return {name: self._found(self.path / "tables" / name) for name in TABLES}

    def _found(self, folder: Path) -> dict[str, int]:
        """The parts of a table that can be read, and their sizes; looked for anew where one goes meanwhile, as its host
        merges it with others at its end."""
        for _ in range(_LOOKS):
            parts = [part for part in live_parts(folder) if self._host in (None, host_of(part))]
            with suppress(FileNotFoundError):
                return {part.name: part.stat().st_size for part in parts if self._readable(part)}
            time.sleep(0.01)
        raise RunError(f"{folder}: its files are listed and cannot be found; look again when nothing is recorded there")

    def _parts_on(self, host: str | None) -> Parts:
        return {
            name: {part: size for part, size in parts.items() if host in (None, host_of(Path(part)))}
            for name, parts in self._parts.items()
        }

    def _expect(self, parts: list[Path]) -> None:
        """Rows that are not there must not look like rows that never were."""
        for part in parts:
            try:
                is_whole = part.stat().st_size == self._parts[part.parent.name][part.name]
            except OSError:
                is_whole = False
            if not is_whole:
                raise RunError(
                    f"{part}: is not to be seen on {os.uname().nodename} as it was where it was opened; put the run"
                    " where all machines see it, and wait until it has been recorded"
                )

    def _readable(self, part: Path) -> bool:
        try:
            pq.read_metadata(part)
        except (OSError, pa.ArrowException) as error:
            if not os.path.lexists(part):
                raise FileNotFoundError(part) from error
            why = f"the file cannot be read ({str(error).splitlines()[0]})"
            self._unreadable[part] = Missing(f"the rows of {part.relative_to(self.path)}", why, lost=True)
            return False
        return True


def _merged(notes: list[Missing]) -> list[Missing]:
    """The same note of several hosts once, for the processes of all."""
    found: dict[tuple[str, str, bool], Missing] = {}
    for note in notes:
        key = note.what, note.why, note.lost
        before = found.setdefault(key, note)
        if before is not note and before.processes != note.processes:
            both = (*before.processes, *note.processes) if before.processes and note.processes else ()
            found[key] = Missing(*key, tuple(dict.fromkeys(both)))
    return list(found.values())


def open_run(path: Path | str) -> Run:
    """Open a run directory. Raises RunError when there is no run, or one of a newer schema, or whose name no report can
    hold."""
    path = Path(path)
    try:
        str(path).encode()
    except UnicodeEncodeError:
        name = os.fsencode(path).decode(errors="backslashreplace")
        raise RunError(f"{name}: its name is not UTF-8, as reports are; rename it") from None
    if not path.is_dir():
        raise RunError(f"{path}: no such run; `tracekit runs` lists those there are")
    if not is_run(path):
        raise RunError(f"{path}: is not a run of tracekit (it has no manifest/); `tracekit runs` lists those there are")
    run = Run(path)
    run.manifests  # noqa: B018  an unreadable or newer manifest is said now
    return run
