"""Java's treatment of texts, where RocketMQ's bytes and answers depend on it."""

from __future__ import annotations

import math
import re
from functools import lru_cache

_INTEGER = re.compile(r"([+-]?)0*(\d+)")
CACHED_CHARS_MAX = 128
"""The cache leaves out longer texts. Clients choose the texts, so the cache needs a bound."""
_DIGITS_MAX = 20
"""A 64-bit number has fewer digits."""
_SPACES = "".join(map(chr, range(0x21)))
_DECIMAL = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?")
_HEXADECIMAL = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?")
_NAMED = {sign + name: float(sign + name) for sign in ("", "+", "-") for name in ("NaN", "Infinity")}


def java_hash(text: str) -> int:
    """Return `String.hashCode`: h = 31 h + unit over the UTF-16 units of `text`, wrapped to 32 bits with a sign."""
    return _cached_hash(text) if len(text) <= CACHED_CHARS_MAX else _hash(text)


@lru_cache(65_536)
def _cached_hash(text: str) -> int:
    return _hash(text)


def _hash(text: str) -> int:
    units = text.encode("utf-16-be", "surrogatepass")
    code = 0
    for i in range(0, len(units), 2):
        code = (31 * code + (units[i] << 8 | units[i + 1])) & 0xFFFF_FFFF
    return code - (1 << 32) if code >= 1 << 31 else code


def tag_code(tag: str | None) -> int:
    """Return the code of a message's TAGS in its queue unit, 0 without a tag (RocketMQ: tagsString2tagsCode)."""
    return java_hash(tag) if tag else 0


def java_long(text: str) -> int | None:
    """Return `Long.parseLong`: a sign and decimal digits of any script, in 64 bits. None where Java throws."""
    return _parse(text, 64)


def java_int(text: str) -> int | None:
    """Return `Integer.parseInt`: the same as `java_long` in 32 bits."""
    return _parse(text, 32)


def _parse(text: str, bits: int) -> int | None:
    found = _INTEGER.fullmatch(text)
    if found is None or len(found[2]) > _DIGITS_MAX:
        return None
    value = int(found[1] + found[2])
    return value if -(1 << bits - 1) <= value < 1 << bits - 1 else None


def java_double(text: str) -> float | None:
    """Return `Double.parseDouble`: decimal or hexadecimal, with spaces and a type letter. None where Java throws."""
    trimmed = java_trim(text)
    if found := _DECIMAL.fullmatch(trimmed):
        return float(found[1])
    if found := _HEXADECIMAL.fullmatch(trimmed):
        try:
            return float.fromhex(found[1])
        except OverflowError:
            return -math.inf if trimmed[0] == "-" else math.inf
    return _NAMED.get(trimmed)


def java_trim(text: str) -> str:
    return text.strip(_SPACES)


def java_boolean(text: str | None) -> bool:
    return text is not None and text.lower() == "true"
