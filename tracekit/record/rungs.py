"""The ladder of counters: each way of reading them is a rung that a machine offers or not."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rung:
    """One way of reading counters, whether it is open here, why not, and what would open it.

    `expected` is False where its absence leaves nothing unknown: a machine without a GPU lacks no GPU counters.
    """

    name: str
    available: bool
    why: str = ""
    remedy: str = ""
    expected: bool = True
