"""Scan the records of a log file and read their facts about delay, for recovery and for the pipeline's tasks.

Twins, for unusual records: `store.recovery.scan`, `formats.disk.parked.delay_facts`, and `delay.timer.staging`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from wheelmq.formats.disk.message import (
    BLANK_MAGIC,
    OFFSETS_LOST_MAX,
    RECORD_BYTES_MIN,
    SECTOR_BYTES,
    SYS_TRANSACTION,
    SYS_TRANSACTION_COMMIT,
)
from wheelmq.formats.disk.origin import (
    INDEX_BITS,
    KIND_LEVEL,
    KIND_TIMER,
    LEVELS_MAX,
    ORIGIN_PROPERTY_BYTES,
    STREAM_BITS,
    timer_origin,
)
from wheelmq.formats.disk.parked import DUE_DIGITS
from wheelmq.formats.disk.properties import NAME_END, WMQ_ORIGIN
from wheelmq.formats.disk.timer import MAGIC_DEFAULT, MAGIC_DELETE, TIMER_TOPIC
from wheelmq.formats.kernels import properties as prop
from wheelmq.formats.kernels import record as rec
from wheelmq.formats.kernels.jit import free_kernel, kernel, part
from wheelmq.formats.kernels.numbers import (
    FNV_START,
    Bytes,
    crc32,
    decimal,
    equals,
    fnv,
    fnv_byte,
    get32,
    hex_value,
    java_hash_ascii,
    literal,
)
from wheelmq.formats.kernels.topics import Integers, intern_topic
from wheelmq.formats.names import BLOCK_TOPIC, SCHEDULE_TOPIC
from wheelmq.formats.rows import SCANNED, column

# Results of a scan.
FULL: Final = 0
"""The rows are full. The scan continues at AT."""
NOT_MINE: Final = 1
"""The bytes at AT are for the plain code: a record of another kind, or no record."""
FILE_END: Final = 2
"""The file ends, in a blank or at its last byte."""
NAMES_FULL: Final = 3
"""There is no room for another topic's name. The scan continues at AT with more room."""

AT: Final = 0
ROWS: Final = 1
STATE: Final = 2

# Columns of a scanned row (formats.rows.SCANNED).
POSITION: Final = column(SCANNED, "position")
SIZE: Final = column(SCANNED, "size")
STORE_MS: Final = column(SCANNED, "store_ms")
QUEUE_ID: Final = column(SCANNED, "queue_id")
QUEUE_OFFSET: Final = column(SCANNED, "queue_offset")
TAG_CODE: Final = column(SCANNED, "tag_code")
TOPIC: Final = column(SCANNED, "topic")
DUE_MS: Final = column(SCANNED, "due_ms")
SETTLES: Final = column(SCANNED, "settles")
KEY_HASH: Final = column(SCANNED, "key_hash")
FLAGS: Final = column(SCANNED, "flags")
REAL_TOPIC: Final = column(SCANNED, "real_topic")
REAL_QUEUE_ID: Final = column(SCANNED, "real_queue_id")
PARKS: Final = column(SCANNED, "parks")
COLUMNS: Final = len(SCANNED)

FLAG_DISPATCHED: Final = 1
FLAG_DECIDED: Final = 2
"""A cancel that WheelMQ wrote. It was executed with the append."""
FLAG_DELETES: Final = 4
"""A cancel from any broker."""

_TIMER_TOPIC = literal(TIMER_TOPIC)
_SCHEDULE_TOPIC = literal(SCHEDULE_TOPIC)
_BLOCK_TOPIC = literal(BLOCK_TOPIC)
_TIMER_FIRST: Final = timer_origin(0)
_LEVEL_0: Final = KIND_LEVEL << STREAM_BITS
_ORIGIN_NAME = literal(WMQ_ORIGIN + NAME_END)


@part
def _offset_is_possible(r: Integers) -> bool:
    """Twin of `formats.disk.message.Record.offset_is_possible`."""
    return r[rec.QUEUE_OFFSET] >= 0 and r[rec.QUEUE_OFFSET] <= r[rec.POSITION] // RECORD_BYTES_MIN + OFFSETS_LOST_MAX


@part
def _settles(a: Bytes, block: int, end: int) -> int:
    """Return the origin in the last property of the block a[block:end], or 0 if there is none."""
    start = end - ORIGIN_PROPERTY_BYTES
    if start < block or (start > block and a[start - 1] != 2) or a[end - 1] != 2:
        return np.int64(0)
    if not equals(a, start, start + _ORIGIN_NAME.shape[0], _ORIGIN_NAME):
        return np.int64(0)
    origin = hex_value(a, start + _ORIGIN_NAME.shape[0])
    kind = origin >> (STREAM_BITS + INDEX_BITS)
    return origin if kind >= KIND_LEVEL and kind <= KIND_TIMER else np.int64(0)


@part
def _due(a: Bytes, spans: Integers) -> int:
    due, end = spans[2 * prop.WMQ_DUE], spans[2 * prop.WMQ_DUE + 1]
    if due < 0 or end - due != DUE_DIGITS or a[due] == 48:
        return np.int64(0)
    return max(decimal(a, due, end), 0)


@part
def _fill_parked(a: Bytes, spans: Integers, in_level: bool, in_timer: bool, row: Integers) -> bool:
    """Fill in the facts of a parked record about its message. Returns False for the plain code."""
    due_ms = _due(a, spans)
    topic, topic_end = spans[2 * prop.REAL_TOPIC], spans[2 * prop.REAL_TOPIC + 1]
    if topic < 0 or spans[2 * prop.REAL_QID] < 0:
        return False
    if due_ms == 0 and (not in_level or spans[2 * prop.WMQ_DUE] >= 0):
        return False
    row[DUE_MS] = due_ms
    row[REAL_QUEUE_ID] = decimal(a, spans[2 * prop.REAL_QID], spans[2 * prop.REAL_QID + 1])
    key, key_end = spans[2 * prop.UNIQ_KEY], spans[2 * prop.UNIQ_KEY + 1]
    if spans[2 * prop.TIMER_DEL_UNIQKEY] >= 0 and in_timer:
        row[FLAGS] |= FLAG_DELETES | FLAG_DECIDED
    elif key >= 0:
        h = fnv_byte(fnv(FNV_START, a, topic, topic_end), 43)
        row[KEY_HASH] = np.int64(fnv(h, a, key, key_end))
        if row[KEY_HASH] == 0:
            row[KEY_HASH] = 1
    return row[REAL_QUEUE_ID] >= 0


@part
def _is_written_out(a: Bytes, topic_end: int, block: int, end: int) -> bool:
    """Twin of `formats.disk.message.is_written_out`, for the block a[block:end]."""
    if block == end:
        return a[topic_end - 1] != 0
    for p in range((block + SECTOR_BYTES - 1) // SECTOR_BYTES * SECTOR_BYTES, end, SECTOR_BYTES):
        if a[p] == 0:
            return False
    return a[end - 1] != 0


@kernel
def scan_log(
    a: Bytes,
    base: int,
    check_bodies: bool,
    whole_before_ms: int,
    slots: Integers,
    topics: Integers,
    names: Bytes,
    used: Integers,
    rows: Integers,
    state: Integers,
) -> int:
    """Fill `rows` from the records from AT on, in the log file that begins at log position `base`.

    Records stored before `whole_before_ms` are known to be on disk.
    """
    r = np.empty(rec.RECORD, np.int64)
    spans = np.empty(prop.SPANS, np.int64)
    seen = np.empty(2 * prop.PAIRS_MAX, np.int64)
    end = a.shape[0]
    while state[ROWS] < rows.shape[0]:
        at = state[AT]
        if end - at < 8:
            return FILE_END if at == end else NOT_MINE
        if get32(a, at + 4) == BLANK_MAGIC and get32(a, at) == end - at:
            return FILE_END
        if not rec.read_record(a, at, end, r) or r[rec.POSITION] != base + at:
            return NOT_MINE
        if not _offset_is_possible(r):
            return NOT_MINE
        if check_bodies:
            body = r[rec.BODY_AT]
            if (crc32(a, body, body + r[rec.BODY_BYTES]) & 0x7FFFFFFF) != r[rec.CRC]:
                return NOT_MINE
        block, block_end = r[rec.PROPERTIES_AT], r[rec.PROPERTIES_AT] + r[rec.PROPERTIES_BYTES]
        if r[rec.STORE_MS] >= whole_before_ms and not _is_written_out(a, block - 2, block, block_end):
            return NOT_MINE
        if prop.scan(a, block, block_end, spans, seen) != prop.REGULAR:
            return NOT_MINE
        row = rows[state[ROWS]]
        for i in range(row.shape[0]):
            row[i] = 0
        row[POSITION], row[SIZE], row[STORE_MS] = base + at, r[rec.SIZE], r[rec.STORE_MS]
        row[QUEUE_ID], row[QUEUE_OFFSET] = r[rec.QUEUE_ID], r[rec.QUEUE_OFFSET]
        topic, topic_end = r[rec.TOPIC_AT], r[rec.TOPIC_AT] + r[rec.TOPIC_BYTES]
        row[TOPIC] = intern_topic(slots, topics, names, used, a, topic, topic_end)
        row[REAL_TOPIC] = -1
        row[FLAGS] = FLAG_DISPATCHED if (r[rec.SYS_FLAG] & SYS_TRANSACTION) in (0, SYS_TRANSACTION_COMMIT) else 0
        if spans[2 * prop.TAGS] >= 0:
            row[TAG_CODE] = java_hash_ascii(a, spans[2 * prop.TAGS], spans[2 * prop.TAGS + 1])
        row[SETTLES] = _settles(a, block, block_end)
        first = np.int64(0)
        if equals(a, topic, topic_end, _TIMER_TOPIC):
            first = np.int64(_TIMER_FIRST)
        elif equals(a, topic, topic_end, _SCHEDULE_TOPIC):
            if row[QUEUE_ID] < 0 or row[QUEUE_ID] >= LEVELS_MAX:
                return NOT_MINE
            first = (_LEVEL_0 + row[QUEUE_ID] + 1) << INDEX_BITS
        if first or equals(a, topic, topic_end, _BLOCK_TOPIC):
            in_timer = first == _TIMER_FIRST
            if not _fill_parked(a, spans, first != 0 and not in_timer, in_timer, row):
                return NOT_MINE
            if first and row[FLAGS] & FLAG_DISPATCHED:
                row[PARKS] = first | row[QUEUE_OFFSET]
            real, real_end = spans[2 * prop.REAL_TOPIC], spans[2 * prop.REAL_TOPIC + 1]
            row[REAL_TOPIC] = intern_topic(slots, topics, names, used, a, real, real_end)
            if row[REAL_TOPIC] < 0:
                return NAMES_FULL
        if row[TOPIC] < 0:
            return NAMES_FULL
        state[AT] = at + r[rec.SIZE]
        state[ROWS] += 1
    return FULL


@free_kernel
def read_parked(
    a: Bytes,
    starts: Integers,
    positions: Integers,
    sizes: Integers,
    due_ms: Integers,
    out_ms: Integers,
    store_ms: Integers,
    origin: Integers,
    topic_hash: Integers,
    magic: Integers,
) -> int:
    """Read parked records into the other arrays. The record with the log position `positions[i]` is at `a[starts[i]]`.

    Leaves due time and slot of messages in level queues unchanged. Returns the number of records read from the front,
    before the first one for the plain code.
    """
    r = np.empty(rec.RECORD, np.int64)
    spans = np.empty(prop.SPANS, np.int64)
    seen = np.empty(2 * prop.PAIRS_MAX, np.int64)
    for i in range(positions.shape[0]):
        at = starts[i]
        stop = at + sizes[i]
        if at < 0 or stop > a.shape[0] or not rec.read_record(a, at, stop, r):
            return i
        if r[rec.POSITION] != positions[i] or not _offset_is_possible(r):
            return i
        topic, topic_end = r[rec.TOPIC_AT], r[rec.TOPIC_AT] + r[rec.TOPIC_BYTES]
        in_level = equals(a, topic, topic_end, _SCHEDULE_TOPIC)
        if not in_level and not equals(a, topic, topic_end, _TIMER_TOPIC):
            return i
        block, block_end = r[rec.PROPERTIES_AT], r[rec.PROPERTIES_AT] + r[rec.PROPERTIES_BYTES]
        if prop.scan(a, block, block_end, spans, seen) != prop.REGULAR:
            return i
        topic, topic_end = spans[2 * prop.REAL_TOPIC], spans[2 * prop.REAL_TOPIC + 1]
        if in_level:  # the queue unit holds the due time
            if topic < 0 or r[rec.QUEUE_ID] < 0 or r[rec.QUEUE_ID] >= LEVELS_MAX:
                return i
            store_ms[i] = r[rec.STORE_MS]
            origin[i] = (_LEVEL_0 + r[rec.QUEUE_ID] + 1) << INDEX_BITS | r[rec.QUEUE_OFFSET]
            topic_hash[i] = java_hash_ascii(a, topic, topic_end)
            magic[i] = MAGIC_DEFAULT
            continue
        due = _due(a, spans)
        slot, slot_end = spans[2 * prop.TIMER_OUT_MS], spans[2 * prop.TIMER_OUT_MS + 1]
        slot_ms = decimal(a, slot, slot_end) if slot >= 0 else np.int64(-1)
        if due == 0 or slot_ms < 0 or topic < 0:
            return i
        due_ms[i] = due
        out_ms[i] = slot_ms
        store_ms[i] = r[rec.STORE_MS]
        origin[i] = _TIMER_FIRST | r[rec.QUEUE_OFFSET]
        topic_hash[i] = java_hash_ascii(a, topic, topic_end)
        magic[i] = MAGIC_DEFAULT | (MAGIC_DELETE if spans[2 * prop.TIMER_DEL_UNIQKEY] >= 0 else 0)
    return positions.shape[0]
