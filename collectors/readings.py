"""Raw readings of counters: what is read again and again, and how the bytes become numbers later.

Reading is on the program's account and happens ten times a second; so a sample keeps the bytes as they are, and turning
them into numbers waits until the readings are drained, many at once. numpy is imported only then: this is loaded before
the program is started.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Integers = npt.NDArray[np.int64]

Raw = bytes | int


@dataclass
class Decoded:
    """Raw totals in long form: one element per reading and counter.

    `reading` is the position of the reading, `counter` that of the name in `names`. `enabled` and `running` are the ns
    that a multiplexed event was wanted and counted; None where every event counts all the time.
    """

    names: list[str]
    reading: "Integers"
    counter: "Integers"
    value: "Integers"
    enabled: "Integers | None" = None
    running: "Integers | None" = None


class Kind(Protocol):
    """A sort of reading: where it comes from and what is in it."""

    @property
    def source(self) -> str: ...
    def decode(self, raws: Sequence[Raw]) -> Decoded: ...


@dataclass(frozen=True)
class Columns:
    """Readings that hold the same few numbers every time; `matrix` decodes many at once, a row each."""

    source: str
    names: tuple[str, ...]
    matrix: Callable[[Sequence[Raw]], "Integers"]

    def decode(self, raws: Sequence[Raw]) -> Decoded:
        return long_form(self.names, self.matrix(raws))


@dataclass(frozen=True)
class Fields:
    """Readings with named numbers that may differ from one to the next: devices come and go."""

    source: str
    parse: Callable[[Raw], dict[str, int]]

    def decode(self, raws: Sequence[Raw]) -> Decoded:
        import numpy as np

        numbers: dict[str, int] = {}
        found = [
            (position, numbers.setdefault(name, len(numbers)), value)
            for position, raw in enumerate(raws)
            for name, value in self.parse(raw).items()
        ]
        reading, counter, value = np.array(found, dtype=np.int64).reshape(-1, 3).T
        return Decoded(list(numbers), reading, counter, value)


def one_integer(raws: Sequence[Raw]) -> "Integers":
    """The matrix of readings that are a number each."""
    import numpy as np

    return np.array(raws, dtype=np.int64).reshape(-1, 1)


def long_form(names: Sequence[str], matrix: "Integers") -> Decoded:
    """A matrix of totals, readings by counters, in long form."""
    import numpy as np

    readings, counters = matrix.shape
    return Decoded(
        list(names),
        np.repeat(np.arange(readings), counters),
        np.tile(np.arange(counters), readings),
        matrix.reshape(-1),
    )


@dataclass(eq=False, slots=True)
class Reader:
    """One thing to read: `read` returns its raw totals and raises OSError once it is gone.

    `process` and `thread` are those of its rows (-1 and 0 for the machine). `since` is the Unix time at which its
    totals stood at `zero`, where that is known.
    """

    kind: Kind
    process: int
    thread: int
    read: Callable[[], Raw]
    since: int | None = None
    zero: Raw = b""
    release: Callable[[], None] | None = None
    closed: bool = False
    ended_ns: int = -1  # when the thread was found to have ended; the last reading is of that moment

    def close(self) -> None:
        """Let go of what is open. Its readings so far stay good."""
        if not self.closed:
            self.closed = True
            if self.release is not None:
                self.release()


Reading = tuple[int, Reader, Raw]  # when (Unix ns), what, and the totals then
