"""Read the JSON header of SEND_MESSAGE_V2, and recognize other requests in the same scan.

Twin: `formats.wire.frame.decode` and `formats.wire.headers.read_send_v2`. The kernel accepts one strict form:

- no white space, ASCII only, integers without sign;
- one-letter fields with strings as values, no field twice;
- escapes only as \\u0001 or \\u0002 inside the properties.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from wheelmq.formats.kernels.jit import inline, part
from wheelmq.formats.kernels.numbers import Bytes, decimal, equals, literal

CODE: Final = 0
FLAG: Final = 1
OPAQUE: Final = 2
VERSION: Final = 3
FIELDS: Final = 4
"""First of 28 entries: start and end of the value of each one-letter field `a` .. `n`; absent ones start at -1."""
LETTERS: Final = 14
ESCAPED: Final = FIELDS + 2 * LETTERS
"""First entry of the escapes: 1 if the value of the letter holds an escape."""
HEADER: Final = ESCAPED + LETTERS
"""Entries of the array that `read_header` fills."""
PROPERTIES_LETTER: Final = 8
"""`i`. Its value may hold the separators of properties."""

_CODE = literal("code")
_FLAG = literal("flag")
_OPAQUE = literal("opaque")
_EXT = literal("extFields")
_LANGUAGE = literal("language")
_VERSION = literal("version")
_SERIALIZE = literal("serializeTypeCurrentRPC")

_QUOTE: Final = 34
_BACKSLASH: Final = 92
_COLON: Final = 58
_COMMA: Final = 44
_OPEN: Final = 123
_CLOSE: Final = 125


STOPS = np.zeros(256, np.uint8)
"""1 for the bytes that stop the scan of a string: quote, backslash, control characters, bytes above ASCII."""
STOPS[:32] = 1
STOPS[128:] = 1
STOPS[[_QUOTE, _BACKSLASH]] = 1


@part
def _string_end(a: Bytes, start: int, end: int) -> int:
    """Return the closing quote of the string at `start`; -(closing quote) - 2 if it holds an escape; -1 for none."""
    escaped = False
    p = np.uint64(start)  # an unsigned index needs no check for a negative one
    stop = np.uint64(end)
    while True:
        while p < stop and STOPS[a[p]] == 0:
            p += np.uint64(1)
        if p >= stop:
            return np.int64(-1)
        if a[p] == _QUOTE:
            return -np.int64(p) - 2 if escaped else np.int64(p)
        if a[p] != _BACKSLASH:
            return np.int64(-1)
        escaped = True
        p += np.uint64(2)


@inline
def _number_end(a: Bytes, p: int, end: int) -> int:
    while p < end and 48 <= a[p] <= 57:
        p += 1
    return p


@part
def read_header(a: Bytes, p: int, end: int, h: npt.NDArray[np.int64]) -> bool:
    """Fill `h` from the header a[p:end]. Returns False if the header has another form."""
    for i in range(FIELDS):
        h[i] = -1
    for i in range(LETTERS):
        h[FIELDS + 2 * i] = -1
        h[ESCAPED + i] = 0
    seen_ext = False
    inside = False
    if p >= end or a[p] != _OPEN:
        return False
    p += 1
    while True:
        if p >= end or a[p] != _QUOTE:
            return False
        name = p + 1
        name_end = _string_end(a, name, end)
        if name_end < 0:
            return False
        p = name_end + 1
        if p + 1 >= end or a[p] != _COLON:
            return False
        p += 1
        if inside:
            if a[p] != _QUOTE:
                return False
            value = p + 1
            value_end = _string_end(a, value, end)
            escaped = value_end < -1
            if escaped:
                value_end = -value_end - 2
            if value_end < 0:
                return False
            if name_end - name == 1:
                letter = np.int64(a[name]) - 97
                if letter < 0 or letter >= LETTERS or h[FIELDS + 2 * letter] >= 0:
                    return False
                h[FIELDS + 2 * letter] = value
                h[FIELDS + 2 * letter + 1] = value_end
                h[ESCAPED + letter] = 1 if escaped else 0
            elif escaped:
                return False
            p = value_end + 1
        elif equals(a, name, name_end, _EXT):
            if seen_ext or a[p] != _OPEN:
                return False
            seen_ext = True
            inside = True
            p += 1
            continue
        elif a[p] == _QUOTE:
            if not (equals(a, name, name_end, _LANGUAGE) or equals(a, name, name_end, _SERIALIZE)):
                return False
            value_end = _string_end(a, p + 1, end)
            if value_end < 0:
                return False
            p = value_end + 1
        else:
            number_end = _number_end(a, p, end)
            value = decimal(a, p, number_end)
            if value < 0 or value > 2147483647:
                return False
            if equals(a, name, name_end, _CODE):
                which = CODE
            elif equals(a, name, name_end, _OPAQUE):
                which = OPAQUE
            elif equals(a, name, name_end, _FLAG):
                which = FLAG
            elif equals(a, name, name_end, _VERSION):
                which = VERSION
            else:
                return False
            if h[which] >= 0:
                return False
            h[which] = value
            p = number_end
        # after a value
        while p < end and a[p] == _CLOSE:
            if not inside:
                return p + 1 == end
            inside = False
            p += 1
        if p >= end or a[p] != _COMMA:
            return False
        p += 1
