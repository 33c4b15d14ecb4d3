"""Mending what profilers write that is not quite JSON: bare nan and inf, unescaped backslashes, control characters."""

import re

# Strings are matched whole, so that a number is only looked for outside them.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|-?\b(?:nan|inf(?:inity)?)\b', re.IGNORECASE | re.DOTALL)
_HEX = rb"[0-9a-fA-F]"
_IN_STRING = re.compile(
    rb"(?P<good>\\[\"\\/bfnrt]"
    rb"|\\u[dD][89abAB]" + _HEX * 2 + rb"\\u[dD][c-fC-F]" + _HEX * 2 + rb"|\\u(?![dD][89a-fA-F])" + _HEX * 4 + rb")"
    rb"|(?P<surrogate>\\u[dD][89a-fA-F]" + _HEX * 2 + rb")"
    rb"|(?P<backslash>\\)"
    rb"|(?P<control>[\x00-\x1f])"
)


def repair(data: bytes) -> bytes:
    """The same JSON with numbers that JSON does not know as null, and strings escaped as they should have been."""
    return _TOKEN.sub(_mend, data)


def _mend(token: re.Match[bytes]) -> bytes:
    text = token[0]
    return _IN_STRING.sub(_escape, text) if text.startswith(b'"') else b"null"


def _escape(found: re.Match[bytes]) -> bytes:
    match found.lastgroup:
        case "good":
            return found[0]
        case "surrogate":
            return rb"\ufffd"
        case "backslash":
            return rb"\\"
        case _:
            return rb"\u%04x" % found[0][0]
