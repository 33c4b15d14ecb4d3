"""Files that a reader sees whole: the old one or the new one, never half of one; and words that any of them takes."""

import os
import secrets
from pathlib import Path


def replace_file(path: Path, data: bytes) -> None:
    """Write a file at once, through no link that somebody has left there. Raises OSError; the old one stays then."""
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with scratch.open("xb") as file:
            file.write(data)
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


def in_utf8(text: str) -> str:
    """Arguments and paths are bytes to the system; those that are no UTF-8 are written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()
