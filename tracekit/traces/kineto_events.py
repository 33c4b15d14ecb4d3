"""Decoding the events of a Kineto trace: all at once where they are as Kineto writes them, one by one where odd."""

import json
import math
from collections.abc import Iterable, Iterator
from decimal import Decimal

import msgspec

from tracekit.traces.kineto_meta import Head, KinetoMeta, NotATrace

# Kineto's values are numbers where that makes sense, but other writers and other devices put text there.
Scalar = int | float | str | None

# Times are in microseconds. These bounds (the year 2112, 71 years) keep their sum in nanoseconds within 64 bits.
_LATEST = float(2**52)
_LONGEST = float(2**51)
# From here on a double tells apart no single nanosecond.
_INEXACT = float(2**43)


class Arguments(msgspec.Struct, gc=False):
    """What Kineto knows of an event beyond its time."""

    dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input Dims")
    sequence: Scalar = msgspec.field(default=-1, name="Sequence number")
    correlation: Scalar = -1
    device: Scalar = -1
    stream: Scalar = -1
    bytes: Scalar = -1
    elements: Scalar = msgspec.field(default=-1, name="In msg nelems")
    dtype: Scalar = None
    flops: Scalar = -1


NO_ARGUMENTS = Arguments()


class Event(msgspec.Struct, gc=False):
    """One entry of the trace; `ts` and `dur` in microseconds."""

    ph: str = ""
    cat: str | None = None
    name: str | None = None
    pid: Scalar = None
    tid: Scalar = None
    ts: float | None = None
    dur: float | None = None
    args: Arguments | None = None


_PHASES = ("X", "B", "E")


class _Time(msgspec.Struct, gc=False):
    ts: msgspec.Raw = msgspec.Raw(b"0")


class _Document(Head, kw_only=True):
    events: list[Event] = msgspec.field(name="traceEvents")


class _LooseDocument(Head, kw_only=True):
    events: list[msgspec.Raw] = msgspec.field(name="traceEvents")


class _TimesDocument(msgspec.Struct):
    events: list[_Time] = msgspec.field(name="traceEvents")


def decode_events(data: bytes) -> tuple[KinetoMeta, list[Event], int]:
    """What the trace says of itself, its events that took time, and how many others gave no usable time.

    Raises NotATrace when there is no list of events, msgspec.DecodeError for what is not JSON.
    """
    try:
        document = msgspec.json.decode(data, type=_Document)
    except (msgspec.ValidationError, UnicodeDecodeError):
        meta, events, unreadable = _decode_one_by_one(data)
    else:
        meta, events, unreadable = document.meta(), document.events, 0
        if max((event.ts or 0.0 for event in events), default=0.0) > _INEXACT:
            meta.base_time_ns += _count_from_earliest(events, data)
    complete, without_time = _complete_events(events)
    return meta, complete, unreadable + without_time


def _count_from_earliest(events: list[Event], data: bytes) -> int:
    """Make times count from the first one, from their digits; returns that one, ns. Before Kineto wrote
    baseTimeNanoseconds it wrote Unix times with fractions of a microsecond, too long for a double.
    """
    times = [event.ts for event in events if event.ph in _PHASES and event.ts is not None]
    earliest = math.floor(min((ts for ts in times if abs(ts) <= _LATEST), default=0.0))
    exact = msgspec.json.decode(data, type=_TimesDocument).events
    for event, time in zip(events, exact, strict=True):
        if event.ts is not None:
            usable = abs(event.ts) <= _LATEST
            event.ts = float(Decimal(bytes(time.ts).decode()) - earliest) if usable else None
    return earliest * 1000


def _decode_one_by_one(data: bytes) -> tuple[KinetoMeta, list[Event], int]:
    """A document in which some events are odd, and how many of them are no events at all."""
    try:
        document = msgspec.json.decode(data, type=_LooseDocument)
    except msgspec.ValidationError as error:
        raise NotATrace(str(error)) from error
    raws = document.events
    decoder = msgspec.json.Decoder(Event)
    events = [_decode_event(decoder, raw) for raw in raws]
    readable = [event for event in events if event is not None]
    if raws and not readable:
        raise NotATrace("none of its traceEvents is an event")
    return document.meta(), readable, len(events) - len(readable)


def _decode_event(decoder: msgspec.json.Decoder[Event], raw: msgspec.Raw) -> Event | None:
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        pass
    fields = json.loads(bytes(raw).decode(errors="replace"), parse_int=_integer)
    if not isinstance(fields, dict):
        return None
    arguments = fields.get("args")
    return Event(
        ph=_text(fields.get("ph")),
        cat=_text(fields.get("cat")),
        name=_text(fields.get("name")),
        pid=_scalar(fields.get("pid")),
        tid=_scalar(fields.get("tid")),
        ts=_number(fields.get("ts")),
        dur=_number(fields.get("dur")),
        args=_arguments(arguments) if isinstance(arguments, dict) else None,
    )


def _integer(digits: str) -> int | None:
    try:
        return int(digits)
    except ValueError:  # Python reads no more than 4,300 of them
        return None


def _arguments(fields: dict[str, object]) -> Arguments:
    names = {field.encode_name: field.name for field in msgspec.structs.fields(Arguments)}
    dims = fields.pop("Input Dims", None)
    scalars = {names[key]: _scalar(value) for key, value in fields.items() if key in names}
    return Arguments(dims=msgspec.Raw(b"" if dims is None else json.dumps(dims).encode()), **scalars)


def _text(value: object) -> str:
    return "" if value is None else value if isinstance(value, str) else str(value)


def _scalar(value: object) -> Scalar:
    return value if isinstance(value, int | float | str) else None


def _number(value: object) -> float | None:
    """A number, also one written as text; None for anything else."""
    try:
        return float(value) if isinstance(value, int | float | str) else None
    except (ValueError, OverflowError):
        return None


def _complete_events(events: Iterable[Event]) -> tuple[list[Event], int]:
    """The events a user needs that have a time, and how many of them have no usable one."""
    complete: list[Event] = []
    unreadable = 0
    for event in _paired(events):
        if event.ts is None or event.dur is None or not (abs(event.ts) <= _LATEST and 0 <= event.dur <= _LONGEST):
            unreadable += 1
        elif _is_wanted(event):
            complete.append(event)
    return complete, unreadable


def _paired(events: Iterable[Event]) -> Iterator[Event]:
    """The complete events, and one for each begin and its end; without a duration where either is missing."""
    begun: dict[tuple[Scalar, Scalar], list[Event]] = {}
    for event in events:
        if event.ph == "X":
            yield event
        elif event.ph == "B":
            event.dur = None
            begun.setdefault((event.pid, event.tid), []).append(event)
        elif event.ph == "E":
            stack = begun.get((event.pid, event.tid))
            event.dur = None
            begin = stack.pop() if stack else event
            if begin is not event and begin.ts is not None and event.ts is not None:
                begin.dur = event.ts - begin.ts
            yield begin
    for stack in begun.values():
        yield from stack


def _is_wanted(event: Event) -> bool:
    """Whether a user needs it: neither the profiler's own span, nor a Python frame that is not a module's call."""
    return event.cat != "Trace" and (event.cat != "python_function" or (event.name or "").startswith("nn.Module"))
