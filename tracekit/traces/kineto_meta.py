"""What a Kineto trace says of itself: its time base, the devices, its place in the distributed job."""

from typing import TypeVar

import msgspec

# Beyond this (the year 2043) a base plus a trace's own times could pass the 64 bits of the tables.
_LATEST_BASE_NS = 2**61
_Kind = TypeVar("_Kind")


class NotATrace(ValueError):
    """JSON that has no events."""


class Device(msgspec.Struct, rename={"memory_bytes": "totalGlobalMem"}):
    """A GPU as the profiler saw it; `memory_bytes` is -1 where it was not given."""

    id: int = -1
    name: str = ""
    memory_bytes: int = -1


class Distributed(msgspec.Struct):
    """The place of the process in its job; `rank` and `world_size` are -1 where they were not given."""

    backend: str = ""
    rank: int = -1
    world_size: int = -1


class KinetoMeta(msgspec.Struct):
    """The head of a trace. `base_time_ns` is what event times count from, Unix ns; 0 where they are Unix times."""

    base_time_ns: int = 0
    devices: list[Device] = []
    distributed: Distributed = msgspec.field(default_factory=Distributed)
    host: str = ""


class Head(msgspec.Struct):
    """Everything but the events, undecoded, so that a key of a strange shape costs only itself."""

    base: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"0"), name="baseTimeNanoseconds")
    devices: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"[]"), name="deviceProperties")
    distributed: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"{}"), name="distributedInfo")
    host: msgspec.Raw = msgspec.field(default=msgspec.Raw(b'""'), name="host_name")

    def meta(self) -> KinetoMeta:
        """The head decoded; what has a strange shape is left at its default."""
        base = _decode_or(self.base, int, 0)
        return KinetoMeta(
            base_time_ns=base if 0 <= base < _LATEST_BASE_NS else 0,
            devices=_decode_or(self.devices, list[Device], []),
            distributed=_decode_or(self.distributed, Distributed, Distributed()),
            host=_decode_or(self.host, str, ""),
        )


class _HeadOfTrace(Head, kw_only=True):
    events: msgspec.Raw = msgspec.field(name="traceEvents")


def decode_meta(data: bytes) -> KinetoMeta:
    """Raises NotATrace for JSON without events, msgspec.DecodeError for what is not JSON."""
    try:
        return msgspec.json.decode(data, type=_HeadOfTrace).meta()
    except msgspec.ValidationError as error:
        raise NotATrace(str(error)) from error


def _decode_or(raw: msgspec.Raw, kind: type[_Kind], default: _Kind) -> _Kind:
    try:
        return msgspec.json.decode(raw, type=kind, strict=False)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return default
