"""Add the records of a log file to an index file, on a worker thread and without the interpreter's lock.

Twin: `formats.disk.index.put_key` for each of `index_keys`. It takes unusual records, and those with too many keys.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from wheelmq.formats.disk.index import INDEX_HEADER, INDEX_UNIT, SECONDS_MAX, SLOT_BYTES
from wheelmq.formats.disk.message import BLANK_MAGIC, SYS_TRANSACTION
from wheelmq.formats.kernels import properties as prop
from wheelmq.formats.kernels import record as rec
from wheelmq.formats.kernels.jit import free_kernel, part
from wheelmq.formats.kernels.numbers import Bytes, get32, get64, put32, put64, signed32
from wheelmq.formats.kernels.topics import Integers

DONE: Final = 0
"""Every record before the stop is in the index."""
FILE_END: Final = 1
"""The log file ends in a blank at AT."""
NOT_MINE: Final = 2
"""The record at AT is for the plain code."""
WANTED: Final = 3
"""Another thread needs the index file. The record at AT is next."""
UNASKED_BYTES: Final = 16 << 10
"""Bytes added before the first check of `wanted`: some 20 us. So frequent requests for the file stop no work."""

AT: Final = 0
STATE: Final = 1

_HEADER: Final = INDEX_HEADER.size
_UNIT: Final = INDEX_UNIT.size
_BEGIN_MS: Final = INDEX_HEADER.position_of("begin_ms")
_END_MS: Final = INDEX_HEADER.position_of("end_ms")
_BEGIN_POSITION: Final = INDEX_HEADER.position_of("begin_position")
_END_POSITION: Final = INDEX_HEADER.position_of("end_position")
_SLOTS_USED: Final = INDEX_HEADER.position_of("slots_used")
_COUNT: Final = INDEX_HEADER.position_of("count")
_ROLLBACK: Final = SYS_TRANSACTION
_SPACE: Final = 32
_HASH_SIGN: Final = 35


@part
def _hash_on(h: int, a: Bytes, start: int, end: int) -> int:
    """Return String.hashCode, unsigned, continued from `h` over an ASCII text. Returns -1 if a byte is not ASCII."""
    for p in range(start, end):
        if a[p] >= 128:
            return np.int64(-1)
        h = (h * 31 + np.int64(a[p])) & 0xFFFFFFFF
    return h


@part
def _put(file: Bytes, slots: int, hashed: int, position: int, store_ms: int) -> None:
    """Add a unit for an unsigned hash. The file must have room."""
    code = abs(signed32(hashed))
    if code > SECONDS_MAX:  # the least integer, which has no absolute value in Java
        code = np.int64(0)
    count = max(get32(file, _COUNT), 1)
    slot = _HEADER + code % slots * SLOT_BYTES
    previous = signed32(get32(file, slot))
    if previous <= 0 or previous >= count:
        previous = np.int64(0)
    begin_ms = get64(file, _BEGIN_MS)
    seconds = np.int64(0)
    if begin_ms > 0:
        seconds = min(max((store_ms - begin_ms) // 1000, 0), SECONDS_MAX)
    at = _HEADER + slots * SLOT_BYTES + count * _UNIT
    put32(file, at, code)
    put64(file, at + 4, position)
    put32(file, at + 12, seconds)
    put32(file, at + 16, previous)
    put32(file, slot, count)
    if count == 1:
        put64(file, _BEGIN_MS, store_ms)
        put64(file, _BEGIN_POSITION, position)
    put64(file, _END_MS, store_ms)
    put64(file, _END_POSITION, position)
    if previous == 0:
        put32(file, _SLOTS_USED, get32(file, _SLOTS_USED) + 1)
    put32(file, _COUNT, count + 1)


@part
def _key_end(a: Bytes, start: int, end: int) -> int:
    p = start
    while p < end and a[p] != _SPACE:
        p += 1
    return p


@part
def _put_keys(a: Bytes, spans: Integers, topic_hash: int, file: Bytes, slots: int, position: int, store_ms: int) -> int:
    """Add the units of one record. The file must have room for the number of keys that `_count_keys` returns."""
    prefix = (topic_hash * 31 + _HASH_SIGN) & 0xFFFFFFFF
    start, end = spans[2 * prop.UNIQ_KEY], spans[2 * prop.UNIQ_KEY + 1]
    if start >= 0:
        _put(file, slots, _hash_on(prefix, a, start, end), position, store_ms)
    p, end = spans[2 * prop.KEYS], spans[2 * prop.KEYS + 1]
    while 0 <= p < end:
        stop = _key_end(a, p, end)
        if stop > p:
            _put(file, slots, _hash_on(prefix, a, p, stop), position, store_ms)
        p = stop + 1
    return 0


@part
def _count_keys(a: Bytes, spans: Integers) -> int:
    found = np.int64(spans[2 * prop.UNIQ_KEY] >= 0)
    start, end = spans[2 * prop.KEYS], spans[2 * prop.KEYS + 1]
    if start >= 0:
        found += 1
        for p in range(start, end):
            found += a[p] == _SPACE
    return found


@free_kernel
def index_log(
    a: Bytes, base: int, stop: int, file: Bytes, slots: int, units: int, state: Integers, wanted: Integers
) -> int:
    """Add the records of the log file `a` from AT to before `stop` to the index `file`. Returns the outcome.

    The log file begins at log position `base`. At least the 8 bytes of a blank must follow AT. Another thread that
    needs the index file sets `wanted`[0], and gets it after `UNASKED_BYTES` at the latest.
    """
    begun = state[AT]
    r = np.empty(rec.RECORD, np.int64)
    spans = np.empty(prop.SPANS, np.int64)
    seen = np.empty(2 * prop.PAIRS_MAX, np.int64)
    while state[AT] < stop:
        at = state[AT]
        if get32(a, at + 4) == BLANK_MAGIC and get32(a, at) == a.shape[0] - at:
            return FILE_END
        if not rec.read_record(a, at, a.shape[0], r) or r[rec.POSITION] != base + at:
            return NOT_MINE
        if r[rec.SYS_FLAG] & _ROLLBACK != _ROLLBACK:
            block, block_end = r[rec.PROPERTIES_AT], r[rec.PROPERTIES_AT] + r[rec.PROPERTIES_BYTES]
            if prop.scan(a, block, block_end, spans, seen) != prop.REGULAR:
                return NOT_MINE
            topic_hash = _hash_on(np.int64(0), a, r[rec.TOPIC_AT], r[rec.TOPIC_AT] + r[rec.TOPIC_BYTES])
            if topic_hash < 0 or max(get32(file, _COUNT), 1) + _count_keys(a, spans) > units:
                return NOT_MINE
            _put_keys(a, spans, topic_hash, file, slots, r[rec.POSITION], r[rec.STORE_MS])
        state[AT] = at + r[rec.SIZE]
        # Loaded again for each record: for the compiler, the store above may change it, since the arrays may overlap.
        if wanted[0] != 0 and begun + UNASKED_BYTES <= state[AT] < stop:
            return WANTED
    return DONE
