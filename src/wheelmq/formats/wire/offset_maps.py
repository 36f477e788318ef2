"""Tables by queue, as Java writes a map whose keys are objects: `{{"brokerName":"b","queueId":0,"topic":"T"}:5}`.

That is no JSON, and all that Apache's clients and tools read where such a table stands.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from wheelmq.formats.buffer import Buffer
from wheelmq.formats.wire.bodies import BodyError, QueueName

_DECODER: Final = json.JSONDecoder()


def write(table: Mapping[QueueName, Any]) -> msgspec.Raw:
    """The table; it can stand as a value in what msgspec encodes."""
    encode = msgspec.json.encode
    return msgspec.Raw(b"{%b}" % b",".join(b"%b:%b" % (encode(queue), encode(value)) for queue, value in table.items()))


def read(raw: Buffer, field: str) -> dict[QueueName, int]:
    """The table that is the value of `field` in an object; empty when there is none. Raises BodyError.

    Keys may be texts that hold an object, too.
    """
    text = bytes(raw).decode("utf-8", "replace")
    at = text.find(f'"{field}"')
    if at < 0:
        return {}
    try:
        return dict(_pairs(text, _behind(text, "{", _behind(text, ":", at + len(field) + 2))))
    except (ValueError, IndexError, msgspec.ValidationError) as error:
        raise BodyError(f"{field}: {error}") from None


def _pairs(text: str, at: int) -> Iterable[tuple[QueueName, int]]:
    at = _skip(text, at)
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        value, at = _DECODER.raw_decode(text, _skip(text, _behind(text, ":", at)))
        if isinstance(key, str):
            key = json.loads(key)
        yield msgspec.convert(key, QueueName, strict=False), msgspec.convert(value, int, strict=False)
        at = _skip(text, at)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _behind(text: str, sign: str, at: int) -> int:
    """Where `text` goes on behind a sign that comes next. Raises ValueError."""
    at = _skip(text, at)
    if text[at] != sign:
        raise ValueError(f"{text[at]!r} at character {at}, expected {sign!r}")
    return at + 1


def _skip(text: str, at: int) -> int:
    while text[at].isspace():
        at += 1
    return at
