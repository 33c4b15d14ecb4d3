"""What is mounted where, by a mountinfo (proc(5))."""

import re
from pathlib import Path, PurePosixPath

HERE = Path("/proc/self/mountinfo")


def file_system(path: Path, mountinfo: Path = HERE) -> str:
    """The type of the file system a path lies on, from a mountinfo (proc(5)); "" when it cannot be told."""
    try:
        lines = mountinfo.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    found = ("", "")
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        point = unescaped(fields[4]) if len(fields) > 4 else ""
        # Of several mounts on one point the last covers the others.
        if point and PurePosixPath(path).is_relative_to(point) and len(point) >= len(found[0]):
            found = (point, after.split(" ")[0])
    return found[1]


def unescaped(field: str) -> str:
    r"""A field of a mountinfo as it is meant: blanks and backslashes are written there as `\040` and `\134`."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)
