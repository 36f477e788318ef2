"""Read a send from its frame, in the strict form that the send kernel accepts.

Twin: `formats.wire.frame.decode`, `formats.wire.headers.read_send_v2`. The header may be JSON or binary.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from wheelmq.broker.fast.send_fields import (
    BATCH,
    BODY,
    BORN_MS,
    ONEWAY,
    OPAQUE,
    PROPERTIES,
    PROPERTIES_END,
    QUEUE,
    RAW,
    RECONSUME,
    STOP,
    SYS_FLAG,
    TOPIC,
    TOPIC_END,
    USER_FLAG,
)
from wheelmq.formats.disk.message import SYS_BORN_HOST_V6, SYS_STORE_HOST_V6, SYS_TRANSACTION
from wheelmq.formats.kernels import json_header as header
from wheelmq.formats.kernels.binary_header import read_binary_header
from wheelmq.formats.kernels.jit import inline, part
from wheelmq.formats.kernels.numbers import Bytes, decimal, equals, get32, literal
from wheelmq.formats.kernels.topics import Integers
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import FLAG_ONEWAY, TYPE_BINARY, TYPE_JSON

_SEND_V2: Final = int(RequestCode.SEND_MESSAGE_V2)
_SEND_BATCH: Final = int(RequestCode.SEND_BATCH_MESSAGE)
_UNUSUAL: Final = SYS_TRANSACTION | SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6
"""Flags of a part of a transaction, and of an IPv6 host."""
_FALSE = literal("false")
_TRUE = literal("true")

_A, _B, _C, _D, _E, _F, _G, _H, _I, _J, _K, _L, _M = range(13)


@inline
def _start(h: Integers, letter: int) -> int:
    return h[header.FIELDS + 2 * letter]


@inline
def _end(h: Integers, letter: int) -> int:
    return h[header.FIELDS + 2 * letter + 1]


@inline
def _number(a: Bytes, h: Integers, letter: int, most: int) -> int:
    """Return the number in a field, from 0 to `most`. Returns -1 if the field is absent or no such number."""
    if _start(h, letter) < 0:
        return np.int64(-1)
    value = decimal(a, _start(h, letter), _end(h, letter))
    return value if value <= most else np.int64(-1)


@inline
def _optional_number(a: Bytes, h: Integers, letter: int) -> int:
    return np.int64(0) if _start(h, letter) < 0 else _number(a, h, letter, 2147483647)


@inline
def _absent_or_false(a: Bytes, h: Integers, letter: int) -> bool:
    return _start(h, letter) < 0 or equals(a, _start(h, letter), _end(h, letter), _FALSE)


@part
def read_request(a: Bytes, p: int, stop: int, h: Integers, f: Integers) -> bool:
    """Fill `f` from the frame a[p:stop]. Returns False for all but a plain send or batch of the strict form."""
    word = get32(a, p + 4)
    body = p + 8 + (word & 0xFFFFFF)
    if body > stop:
        return False
    f[RAW] = word >> 24
    if f[RAW] == TYPE_JSON:
        if not header.read_header(a, p + 8, body, h):
            return False
    elif f[RAW] != TYPE_BINARY or not read_binary_header(a, p + 8, body, h):
        return False
    flag = h[header.FLAG]
    f[BATCH] = h[header.CODE] == _SEND_BATCH
    if (h[header.CODE] != _SEND_V2 and not f[BATCH]) or h[header.OPAQUE] < 0:
        return False
    if flag != 0 and flag != -1 and flag != FLAG_ONEWAY:
        return False
    for letter in range(header.LETTERS):
        if letter != _I and h[header.ESCAPED + letter] != 0:
            return False
    f[TOPIC], f[TOPIC_END] = _start(h, _B), _end(h, _B)
    f[PROPERTIES], f[PROPERTIES_END] = _start(h, _I), _end(h, _I)
    if _start(h, _A) < 0 or f[TOPIC] < 0 or _start(h, _C) < 0 or f[PROPERTIES] < 0:
        return False
    f[QUEUE] = _number(a, h, _E, 2147483647)
    f[SYS_FLAG] = _number(a, h, _F, 2147483647)
    f[BORN_MS] = _number(a, h, _G, 1 << 60)
    f[USER_FLAG] = _number(a, h, _H, 2147483647)
    f[RECONSUME] = _optional_number(a, h, _J)
    if f[QUEUE] < 0 or f[SYS_FLAG] < 0 or f[BORN_MS] < 0 or f[USER_FLAG] < 0 or f[RECONSUME] < 0:
        return False
    if (f[SYS_FLAG] & _UNUSUAL) != 0:
        return False
    if _number(a, h, _D, 2147483647) < 0 or _optional_number(a, h, _L) < 0:
        return False
    if body == stop:
        return False
    f[BODY], f[STOP] = body, stop
    f[ONEWAY], f[OPAQUE] = flag == FLAG_ONEWAY, h[header.OPAQUE]
    if f[BATCH]:
        if _start(h, _M) < 0 or not equals(a, _start(h, _M), _end(h, _M), _TRUE):
            return False
    elif not _absent_or_false(a, h, _M):
        return False
    if f[BATCH] == 0 and f[PROPERTIES_END] == f[PROPERTIES]:  # in a batch, the messages can have all properties
        return False
    return _absent_or_false(a, h, _K)
