"""Kineto traces in (what torch.profiler exports, Chrome's JSON): rows of the table `operators`, and the head."""

import gzip
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import pyarrow as pa

from tracekit.errors import TracekitError
from tracekit.traces.kineto_columns import operator_tables
from tracekit.traces.kineto_events import Event, decode_events
from tracekit.traces.kineto_meta import KinetoMeta, NotATrace, decode_meta
from tracekit.traces.kineto_repair import repair

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"
_Decoded = TypeVar("_Decoded")


class TraceError(TracekitError):
    """A file that is no trace, or not a whole one."""


@dataclass
class KinetoTrace:
    """One trace in memory: what it says of itself, its events, and how many it has that give no usable time."""

    meta: KinetoMeta
    events: list[Event]
    unreadable: int

    def tables(self, *, process: int, window: int = 0, shift_ns: int = 0) -> Iterator[pa.Table]:
        """The events as tables of the schema `operators`, in the trace's order.

        `start_ns` is the trace's own time plus `shift_ns`. Left out are the profiler's own span, and Python frames
        other than module calls ("nn.Module: …"). A row of a device carries its `device` and `stream`, and the stream
        as `thread`; threads that are no number, or that several processes of the trace share, count from -2 down.
        """
        return operator_tables(self.events, self.meta.base_time_ns, process=process, window=window, shift_ns=shift_ns)


def read_kineto(path: Path | str, *, process: int, window: int = 0, shift_ns: int = 0) -> Iterator[pa.Table]:
    """The tables of one trace file, see `KinetoTrace.tables`. Raises TraceError when the file is no trace."""
    return load_kineto(path).tables(process=process, window=window, shift_ns=shift_ns)


def load_kineto(path: Path | str) -> KinetoTrace:
    """Read one trace, plain or gzipped: an object with `traceEvents`, or a bare list of events.

    Events that are odd in some field are kept without it. Raises TraceError when the file is no trace.
    """
    return KinetoTrace(*_decoded(path, decode_events))


def read_meta(path: Path | str) -> KinetoMeta:
    """What a trace says of itself, without decoding its events. Raises TraceError when the file is no trace."""
    return _decoded(path, decode_meta)


def _decoded(path: Path | str, decode: Callable[[bytes], _Decoded]) -> _Decoded:
    data = _read(Path(path))
    try:
        try:
            return decode(data)
        except msgspec.DecodeError:
            return decode(repair(data))
    except (NotATrace, msgspec.DecodeError, RecursionError) as error:
        raise _error(path, error) from error


def _read(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        if data.startswith(_GZIP):
            data = gzip.decompress(data)
    except EOFError:
        raise TraceError(f"{path}: ends in the middle of its gzip data; copy or export the trace again") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise TraceError(f"{path}: its gzip data is damaged ({error}); copy or export the trace again") from error
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror})") from error
    data = data.removeprefix(_BYTE_ORDER_MARK)
    if not data or data.isspace():
        raise TraceError(f"{path}: is empty; export the trace again")
    # From here on a bare list is an object too, one that says nothing else of itself.
    return b'{"traceEvents":%b}' % data if data[:64].lstrip().startswith(b"[") else data


def _error(path: Path | str, error: Exception) -> TraceError:
    if "truncated" in str(error):
        return TraceError(f"{path}: the JSON ends too early; the trace was not written to its end, export it again")
    return TraceError(
        f"{path}: is not a Kineto trace ({error}); expected an object with traceEvents, or a list of events"
    )
