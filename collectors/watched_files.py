"""Files whose reads can be watched, and what opens them in the place of Python's `open`. `reading` decides when."""

import io
import os
import stat
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from .tracebacks import comes_from_a_signal_handler

if TYPE_CHECKING:
    from .reading import Reading


class WatchedFile(io.FileIO):
    """A file whose reads can be watched: passes for the class of that name."""

    reading: ClassVar["Reading"]

    def readinto(self, buffer: Any) -> Any:
        if not self.reading.watches():
            return super().readinto(buffer)
        return self.reading.timed(path_of(self.name), self._offset(), size_told, super().readinto, buffer)

    def readall(self) -> Any:
        if not self.reading.watches():
            return super().readall()
        return self.reading.timed(path_of(self.name), self._offset(), size_of, super().readall)

    def _offset(self) -> int:
        try:
            return self.tell()
        except OSError:
            return -1


WatchedFile.__name__ = WatchedFile.__qualname__ = io.FileIO.__name__
WatchedFile.__module__ = io.FileIO.__module__


class WatchedOpen:
    """In place of `open`: an object, since a function would become a method where a class keeps it as an attribute."""

    def __init__(self, reading: "Reading", original: Callable[..., Any]) -> None:
        self._reading, self._original = reading, original

    def __call__(self, file: Any, mode: Any = "r", *args: Any, **kwargs: Any) -> Any:
        if self._reading.watches():  # the program may have kept it
            if not isinstance(file, (str, bytes, int)) and hasattr(type(file), "__fspath__"):
                file = os.fspath(file)
            return self._watched(file, mode, *args, **kwargs) or self._original(file, mode, *args, **kwargs)
        return self._original(file, mode, *args, **kwargs)

    def __repr__(self) -> str:
        return repr(self._original)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """By its name, as ever; where it is not there any more, by an expression for what is."""
        return "open" if io.open is self else (eval, ("__import__('io').open",))

    def _watched(
        self,
        file: Any,
        mode: Any,
        buffering: Any = -1,
        encoding: Any = None,
        errors: Any = None,
        newline: Any = None,
        closefd: Any = True,
        opener: Any = None,
        *more: Any,
        **others: Any,
    ) -> Any:
        """The same file, but that its reads are watched; None where it is no ordinary file to be read, or cannot be."""
        words = (encoding, errors, newline)
        plain = buffering == -1 and closefd is True and opener is None and not more and not others
        if not plain or mode not in ("r", "rt", "rb") or (mode == "rb" and words != (None, None, None)):
            return None
        if encoding is None and mode != "rb" and sys.flags.warn_default_encoding:
            return None
        try:
            if isinstance(file, int) or not stat.S_ISREG(os.stat(file).st_mode):
                return None
            raw = WatchedFile(file)
        except (OSError, TypeError, ValueError) as error:
            if comes_from_a_signal_handler(error):
                raise
            return None
        try:
            buffered = io.BufferedReader(raw, _buffer_bytes(raw))
            if mode == "rb":
                return buffered
            text = io.TextIOWrapper(buffered, encoding, errors, newline)
            text.mode = mode  # type: ignore[misc]
            return text
        except (LookupError, TypeError, ValueError):
            raw.close()
            return None


def _buffer_bytes(raw: io.FileIO) -> int:
    """As large as `open` would choose it."""
    block = int(getattr(raw, "_blksize", io.DEFAULT_BUFFER_SIZE))
    return block if sys.version_info < (3, 14) else max(min(block, 8 << 20), io.DEFAULT_BUFFER_SIZE)


def path_of(name: Any) -> str:
    """A path in words; a program may have put anything there."""
    try:
        return os.fsdecode(name)
    except Exception:
        return ""


def size_of(data: Any) -> int:
    return len(data) if isinstance(data, (bytes, bytearray, memoryview)) else 0


def size_told(count: Any) -> int:
    return count if type(count) is int else 0
