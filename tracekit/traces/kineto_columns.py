"""The events of a Kineto trace as columns of the table `operators`."""

from collections.abc import Iterator
from itertools import compress, count

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tracekit.run.schema import TABLES
from tracekit.traces.kineto_events import NO_ARGUMENTS, Arguments, Event, Scalar

# As many rows as a row group of the run's files; the columns of a large trace are made a piece at a time.
_ROWS = 256 * 1024

# Kineto's activity types whose rows lie on a device (libkineto/src/ActivityType.cpp), besides those called "gpu_…".
DEVICE_CATEGORIES = frozenset(
    {
        "collective_comm",
        "concurrent_kernel",
        "cuda_event",
        "cuda_profiler_range",
        "cuda_sync",
        "hpu_op",
        "kernel",
        "mtia_ccp_events",
        "xpu_sync",
    }
)

# Bytes of an element, under the names that torch gives its types in collectives (c10/core/ScalarType.h).
_ELEMENT_BYTES = {
    "Bool": 1,
    "Byte": 1,
    "Char": 1,
    "Float8_e4m3fn": 1,
    "Float8_e5m2": 1,
    "BFloat16": 2,
    "Half": 2,
    "Short": 2,
    "Float": 4,
    "Int": 4,
    "ComplexFloat": 8,
    "Double": 8,
    "Long": 8,
    "ComplexDouble": 16,
}

# How Kineto writes "on no stream" where it takes -1 for unsigned.
_NO_STREAM = 2**32 - 1

Integers = NDArray[np.int64]


def operator_tables(
    events: list[Event], base_time_ns: int, *, process: int, window: int, shift_ns: int
) -> Iterator[pa.Table]:
    """The events as tables of the schema `operators`, in their order."""
    threads = _Threads()
    for first in range(0, len(events), _ROWS):
        piece = events[first : first + _ROWS]
        rows = len(piece)
        arguments = [event.args or NO_ARGUMENTS for event in piece]
        categories = [event.cat or "" for event in piece]
        device, stream, thread = _places(piece, arguments, categories, threads)
        columns = {
            "process": np.full(rows, process, dtype=np.int32),
            "thread": thread,
            "start_ns": _nanoseconds([event.ts for event in piece]) + (base_time_ns + shift_ns),
            "duration_ns": _nanoseconds([event.dur for event in piece]),
            "category": pa.array(categories, pa.string()).dictionary_encode(),
            "name": pa.array([event.name or "" for event in piece], pa.string()).dictionary_encode(),
            "dims": _dims(arguments),
            "sequence": _integers([each.sequence for each in arguments]),
            "correlation": _integers([each.correlation for each in arguments]),
            "device": device.astype(np.int32),
            "stream": stream,
            "bytes": _bytes(arguments),
            "flops": _integers([each.flops for each in arguments]),
            "window": np.full(rows, window, dtype=np.int32),
        }
        yield pa.table(columns, schema=TABLES["operators"])


def _nanoseconds(microseconds: list[float | None]) -> Integers:
    """Exact for times with three decimals up to 2**43 µs: whole microseconds and their fraction are turned apart."""
    times = np.array(microseconds, dtype=np.float64)
    whole = np.floor(times)
    return whole.astype(np.int64) * 1000 + np.rint((times - whole) * 1000).astype(np.int64)


def _integers(values: list[Scalar]) -> Integers:
    """-1 for what is no integer of 64 bits."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except (TypeError, ValueError, OverflowError):
        return np.fromiter(map(_integer, values), np.int64, len(values))


def _integer(value: Scalar) -> int:
    try:
        number = -1 if value is None else int(value)
    except (ValueError, OverflowError):
        return -1
    return number if -(2**63) <= number < 2**63 else -1


def _dims(arguments: list[Arguments]) -> pa.DictionaryArray:
    """The shapes of the inputs as they stand in the trace, without white space."""
    texts = pa.array([bytes(each.dims) for each in arguments], pa.binary()).dictionary_encode()
    plain = [text.decode(errors="replace") for text in texts.dictionary.to_pylist()]
    compact = pc.replace_substring_regex(pa.array(plain, pa.string()), r"\s+", "")
    return pa.DictionaryArray.from_arrays(texts.indices, compact).cast(pa.string()).dictionary_encode()


def _bytes(arguments: list[Arguments]) -> Integers:
    """The bytes moved: of a copy as given, of a collective its message; -1 where neither is known."""
    size = _integers([each.bytes for each in arguments])
    for row, each in enumerate(arguments):
        if each.dtype is not None and size[row] < 0:
            elements = _integer(each.elements)
            element_bytes = _ELEMENT_BYTES.get(str(each.dtype))
            if elements >= 0 and element_bytes is not None:
                size[row] = min(elements * element_bytes, 2**63 - 1)
    return size


def _places(
    events: list[Event], arguments: list[Arguments], categories: list[str], threads: "_Threads"
) -> tuple[Integers, Integers, Integers]:
    """Device, stream and thread of each event; on a device the thread is the stream, elsewhere both others are -1."""
    device = np.full(len(events), -1, dtype=np.int64)
    stream, thread = device.copy(), device.copy()
    device_categories = {category for category in set(categories) if _is_on_device(category)}
    on_cpu = [category not in device_categories for category in categories]
    thread[on_cpu] = [threads[event.pid][event.tid] for event in compress(events, on_cpu)]
    for row in np.flatnonzero(np.logical_not(on_cpu)).tolist():
        event, each = events[row], arguments[row]
        # Annotations on a device give neither in their arguments; their pid and tid are the device and the stream.
        device[row] = _first_known(each.device, event.pid)
        stream[row] = thread[row] = _first_known(each.stream, event.tid)
    device[device >= 2**31] = -1
    return device, stream, thread


def _is_on_device(category: str) -> bool:
    return category in DEVICE_CATEGORIES or category.startswith("gpu_")


def _first_known(given: Scalar, otherwise: Scalar) -> int:
    for number in (_integer(given), _integer(otherwise)):
        if 0 <= number != _NO_STREAM:
            return number
    return -1


class _Threads(dict[Scalar, "_ThreadsOfProcess"]):
    """Per process of a trace one number for each of its threads, made up when first asked for."""

    def __init__(self) -> None:
        super().__init__()
        self._taken: set[int] = set()

    def __missing__(self, pid: Scalar) -> "_ThreadsOfProcess":
        self[pid] = threads = _ThreadsOfProcess(self._taken)
        return threads


class _ThreadsOfProcess(dict[Scalar, int]):
    """The thread's own number where it has one that no other process of the trace uses, else one from -2 down."""

    def __init__(self, taken: set[int]) -> None:
        super().__init__()
        self._taken = taken

    def __missing__(self, tid: Scalar) -> int:
        number = _integer(tid)
        if number == -1 or number in self._taken:
            number = next(free for free in count(-2, -1) if free not in self._taken)
        self._taken.add(number)
        self[tid] = number
        return number
