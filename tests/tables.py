"""Runs with rows in one table, for tests of what writes and reads tables."""

from pathlib import Path

import pyarrow as pa

from tracekit.run.folder import create_run
from tracekit.run.manifest import Manifest
from tracekit.run.reader import open_run
from tracekit.run.schema import TABLES

HOST = "node-1.example.org"


def new_run(path: Path) -> Path:
    create_run(path)
    manifest = Manifest(host=HOST, ended_ns=1)
    manifest.save(manifest.path_in(path))
    return path


def batches(*starts: int, process: int = 0, loader: str | None = "loader") -> pa.Table:
    rows = [{"process": process, "start_ns": start, "duration_ns": 1, "loader": loader} for start in starts]
    return pa.Table.from_pylist(rows, schema=TABLES["batches"])


def starts(run: Path) -> list[int]:
    return list(open_run(run).table("batches")["start_ns"])
