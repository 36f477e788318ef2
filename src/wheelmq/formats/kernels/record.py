"""Write and read commit log records of the usual kind: both hosts IPv4, magic V1.

Twin: `formats.disk.message.encode_record` and `decode_record`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from wheelmq.formats.disk.message import (
    FIXED_BYTES_V4,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
)
from wheelmq.formats.kernels.jit import inline, part
from wheelmq.formats.kernels.numbers import Bytes, get32, get64, put32, put64, signed32

FIXED: Final = FIXED_BYTES_V4
_V6: Final = SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6

QUEUE_ID: Final = 0
FLAG: Final = 1
QUEUE_OFFSET: Final = 2
POSITION: Final = 3
SYS_FLAG: Final = 4
BORN_MS: Final = 5
BORN_IP: Final = 6
BORN_PORT: Final = 7
STORE_MS: Final = 8
STORE_IP: Final = 9
STORE_PORT: Final = 10
RECONSUME: Final = 11
PREPARED: Final = 12
CRC: Final = 13
HEAD: Final = 14
"""Entries of the array for a record's fixed part."""

SIZE: Final = 14
BODY_AT: Final = 15
BODY_BYTES: Final = 16
TOPIC_AT: Final = 17
TOPIC_BYTES: Final = 18
PROPERTIES_AT: Final = 19
PROPERTIES_BYTES: Final = 20
RECORD: Final = 21
"""Entries of the array that `read_record` fills: the fixed part, then the positions of the rest."""


@inline
def write_head(log: Bytes, at: int, size: int, body_bytes: int, head: npt.NDArray[np.int64]) -> None:
    """Write the fixed part of the record of `size` bytes at `at`: the magic after all other fields but the size."""
    put32(log, at + 8, head[CRC])
    put32(log, at + 12, head[QUEUE_ID])
    put32(log, at + 16, head[FLAG])
    put64(log, at + 20, head[QUEUE_OFFSET])
    put64(log, at + 28, head[POSITION])
    put32(log, at + 36, head[SYS_FLAG])
    put64(log, at + 40, head[BORN_MS])
    put32(log, at + 48, head[BORN_IP])
    put32(log, at + 52, head[BORN_PORT])
    put64(log, at + 56, head[STORE_MS])
    put32(log, at + 64, head[STORE_IP])
    put32(log, at + 68, head[STORE_PORT])
    put32(log, at + 72, head[RECONSUME])
    put64(log, at + 76, head[PREPARED])
    put32(log, at + 84, body_bytes)
    put32(log, at + 4, MAGIC_V1)
    put32(log, at, size)


@part
def has_form(log: Bytes, at: int, size: int, position: int) -> bool:
    """Twin of `formats.disk.message.has_form`. `at + size` must be within the log."""
    if size < RECORD_BYTES_MIN or get32(log, at) != size or get64(log, at + 28) != position:
        return False
    magic, sys_flag, body_at, end = get32(log, at + 4), get32(log, at + 36), at + FIXED, at + size
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return False
    if sys_flag & SYS_BORN_HOST_V6:
        body_at += 12
    if sys_flag & SYS_STORE_HOST_V6:
        body_at += 12
    if body_at > end:
        return False
    length_bytes = 1 if magic == MAGIC_V1 else 2
    topic_at = body_at + get32(log, body_at - 4) + length_bytes
    if topic_at > end:
        return False
    topic_bytes = np.int64(log[topic_at - 1])
    if magic == MAGIC_V2:
        topic_bytes |= np.int64(log[topic_at - 2]) << 8
    properties_at = topic_at + topic_bytes + 2
    if properties_at > end:
        return False
    properties_bytes = (np.int64(log[properties_at - 2]) << 8) | np.int64(log[properties_at - 1])
    return properties_at + properties_bytes == end


@part
def read_record(log: Bytes, at: int, end: int, r: npt.NDArray[np.int64]) -> bool:
    """Fill `r` from the record at `at`, which must end by `end`. Returns False for any record but the usual kind."""
    if end - at < FIXED + 3:
        return False
    size = signed32(get32(log, at))
    if get32(log, at + 4) != MAGIC_V1 or size < FIXED + 3 or size > end - at:
        return False
    sys_flag = get32(log, at + 36)
    if sys_flag & _V6:
        return False
    body_bytes = signed32(get32(log, at + 84))
    if body_bytes < 0 or body_bytes > size - FIXED - 3:
        return False
    topic_at = at + FIXED + body_bytes + 1
    topic_bytes = np.int64(log[topic_at - 1])
    properties_at = topic_at + topic_bytes + 2
    if properties_at > at + size:
        return False
    properties_bytes = (np.int64(log[properties_at - 2]) << 8) | np.int64(log[properties_at - 1])
    if properties_at + properties_bytes != at + size:
        return False
    r[CRC] = get32(log, at + 8)
    r[QUEUE_ID] = signed32(get32(log, at + 12))
    r[FLAG] = signed32(get32(log, at + 16))
    r[QUEUE_OFFSET] = get64(log, at + 20)
    r[POSITION] = get64(log, at + 28)
    r[SYS_FLAG] = sys_flag
    r[BORN_MS] = get64(log, at + 40)
    r[BORN_IP] = get32(log, at + 48)
    r[BORN_PORT] = get32(log, at + 52)
    r[STORE_MS] = get64(log, at + 56)
    r[STORE_IP] = get32(log, at + 64)
    r[STORE_PORT] = get32(log, at + 68)
    r[RECONSUME] = signed32(get32(log, at + 72))
    r[PREPARED] = get64(log, at + 76)
    r[SIZE] = size
    r[BODY_AT] = at + FIXED
    r[BODY_BYTES] = body_bytes
    r[TOPIC_AT] = topic_at
    r[TOPIC_BYTES] = topic_bytes
    r[PROPERTIES_AT] = properties_at
    r[PROPERTIES_BYTES] = properties_bytes
    return True
