"""The settings file: what `analyze` writes, a person edits, and `record --settings` reads."""

import hashlib
import textwrap
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tomlkit
from tomlkit.items import Table

from tracekit.run.files import replace_file
from tracekit.settings.catalogue import SettingsError, Value, check, key_path

_WIDTH = 98
# A layer's name is one key, in quotes; without them it may be so many tables, as deep as modules can be nested.
_DEEPEST = 200
# Begins the first line of a file that tracekit wrote; the digest behind it is of all other lines.
_SIGNATURE = "# Written by tracekit, digest "
_OLD_SIGNATURE = "# Written by tracekit analyze, digest "


@dataclass(frozen=True)
class Entry:
    """A setting to be written, with the comment that goes above it."""

    name: str
    value: Value
    comment: str = ""


def load_settings(path: Path) -> dict[str, Value]:
    """The settings of a file, by full name (`threads.intra_op`, `threads.layers.encoder.rnn`).

    Raises SettingsError when the file cannot be read, is not TOML, or holds what no setting takes.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: is not a text in UTF-8, so no settings file") from error
    except ValueError as error:  # also of a number with more digits than Python takes
        raise SettingsError(f"{path}: is not valid TOML: {error}") from error
    except RecursionError as error:
        raise SettingsError(f"{path}: is nested too deeply for a settings file") from error
    settings = {}
    for name, value in _flat(document):
        try:
            settings[name] = check(name, value)
        except SettingsError as error:
            raise SettingsError(f"{path}: {error}") from error
    return settings


def _flat(table: dict[str, object], above: str = "") -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        if isinstance(value, dict) and above.count(".") < _DEEPEST:
            yield from _flat(value, f"{above}{key}.")
        else:
            yield above + key, value


def write_settings(path: Path, entries: Sequence[Entry], header: str) -> bool:
    """Write a settings file with a comment on top; False when the file there was edited by someone, and is left alone.

    Raises OSError when it cannot be written; the file there before, if any, is then as it was.
    """
    if path.exists() and not _is_untouched(path):
        return False
    body = _body(entries, header)
    replace_file(path, f"{_SIGNATURE}{_digest(body)}.\n{body}".encode())
    return True


def _body(entries: Sequence[Entry], header: str) -> str:
    document = tomlkit.document()
    for line in _comment(header):
        document.add(tomlkit.comment(line))
    for entry in entries:
        *tables, key = key_path(entry.name)
        place: tomlkit.TOMLDocument | Table = document
        for number, name in enumerate(tables):
            if name not in place:
                place[name] = tomlkit.table(is_super_table=number < len(tables) - 1)
            place = place[name]
        for line in _comment(entry.comment):
            place.add(tomlkit.comment(line))
        place[key] = entry.value
    return tomlkit.dumps(document)


def _comment(text: str) -> list[str]:
    """Lines for a comment: TOML allows no control characters in one."""
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    return textwrap.wrap(printable, _WIDTH)


def _is_untouched(path: Path) -> bool:
    try:
        first, _, body = path.read_text(encoding="utf-8").partition("\n")
    except UnicodeDecodeError:
        return False
    return first in (f"{_SIGNATURE}{_digest(body)}.", f"{_OLD_SIGNATURE}{_digest(body)}.")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
