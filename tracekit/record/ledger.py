"""What of the spool is safely in the tables: written after each pass, read by a salvage.

A pass writes parts, then the ledger, then deletes what it consumed. A supervisor killed anywhere in between leaves
parts that the ledger does not know; a salvage drops those, since their evidence is still in the spool. Nothing is lost
or doubled.
"""

import os
from pathlib import Path

import msgspec

from tracekit.record.processes import Process

_NAME = "ledger.json"


class Position(msgspec.Struct):
    """Where reading of one process's records goes on: the segment's number and an offset in bytes."""

    segment: int = 0
    offset: int = 0


class Ledger(msgspec.Struct):
    """The state of a recording between two passes."""

    last_part: int = 0
    positions: dict[str, Position] = {}
    processes: list[Process] = []

    def save(self, folder: Path) -> None:
        """Replace the ledger at once. Raises OSError when the disk does not take it."""
        scratch = folder / (_NAME + ".tmp")
        scratch.write_bytes(msgspec.json.encode(self))
        os.replace(scratch, folder / _NAME)

    @classmethod
    def load(cls, folder: Path) -> "Ledger":
        """The ledger of a spool folder; an empty one when there is none."""
        try:
            return msgspec.json.decode((folder / _NAME).read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return cls()
