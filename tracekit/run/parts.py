"""Which Parquet files of a table count: `<host>-<number>.parquet`, superseded by `<host>-<number>.merged.parquet`."""

from pathlib import Path


def live_parts(folder: Path) -> list[Path]:
    """The files that hold a table's rows. A merged file stands for all parts of its host up to its own number, so a
    crash between writing it and removing them doubles nothing."""
    files = sorted(folder.glob("*.parquet"))
    merged: dict[str, int] = {}
    for file in files:
        if _is_merged(file):
            merged[host_of(file)] = max(number_of(file), merged.get(host_of(file), 0))
    return [
        file
        for file in files
        if number_of(file) > merged.get(host_of(file), 0)
        or (_is_merged(file) and number_of(file) == merged[host_of(file)])
    ]


def host_of(file: Path) -> str:
    return _stem(file).rpartition("-")[0]


def number_of(file: Path) -> int:
    digits = _stem(file).rpartition("-")[2]
    return int(digits) if digits.isdecimal() else 0


def _stem(file: Path) -> str:
    return file.name.removesuffix(".parquet").removesuffix(".merged")


def _is_merged(file: Path) -> bool:
    return file.name.endswith(".merged.parquet")
