"""What reports and studies are as JSON, whatever words are in them."""

from typing import Any

import msgspec

from tracekit.run.files import in_utf8


def json_of(found: msgspec.Struct) -> bytes:
    """One JSON object, laid out to be read by people too."""
    return msgspec.json.format(msgspec.json.encode(_in_utf8(msgspec.to_builtins(found, str_keys=True))), indent=2)


def _in_utf8(found: Any) -> Any:
    match found:
        case str():
            return in_utf8(found)
        case dict():
            return {in_utf8(key): _in_utf8(value) for key, value in found.items()}
        case list():
            return [*map(_in_utf8, found)]
    return found
