"""Release parked messages, many in one call: read each record, rebuild it for its real topic, append it.

Twin: `delay.rebuild.rebuild` with `store.Store.append`. The twin takes all other cases: an IPv6 host, a message that
rolls, one with DELAY and TIMER_DELAY_LEVEL, a deleted topic, a due time in the future.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import BLANK_BYTES, SYS_TRANSACTION, SYS_TRANSACTION_COMMIT, TOPIC_BYTES_MAX
from wheelmq.formats.disk.origin import (
    INDEX_BITS,
    INDEX_MASK,
    KIND_BLOCK,
    KIND_LEVEL,
    ORIGIN_PROPERTY_BYTES,
    STREAM_BITS,
    TIMER_STREAM,
)
from wheelmq.formats.disk.parked import DUE_DIGITS
from wheelmq.formats.disk.timer import TIMER_TOPIC
from wheelmq.formats.kernels import journal as journal_of
from wheelmq.formats.kernels import layout
from wheelmq.formats.kernels import properties as prop
from wheelmq.formats.kernels import record as rec
from wheelmq.formats.kernels import refs as ref
from wheelmq.formats.kernels.jit import kernel, part
from wheelmq.formats.kernels.numbers import (
    Bytes,
    copy,
    decimal,
    equals,
    java_hash_ascii,
    literal,
    put_decimal,
    put_hex,
    put_text,
)
from wheelmq.formats.kernels.topics import FIRST_QUEUE, QUEUES, Integers, find_topic
from wheelmq.formats.names import BLOCK_TOPIC, SCHEDULE_TOPIC

DONE: Final = 0
"""All references are released."""
NOT_MINE: Final = 1
"""The reference at NEXT is for the plain code."""
NO_ROOM: Final = 2
"""The log file may be too short for the next record, or the journal is full. The plain code continues at NEXT."""

# State, read and written.
NEXT: Final = 0
LOG_AT: Final = 1
ROWS: Final = 2
STATE: Final = 3

# Parameters.
NOW_MS: Final = 0
STORE_MS: Final = 1
STORE_IP: Final = 2
STORE_PORT: Final = 3
LOG_BASE: Final = 4
SOURCE_BASE: Final = 5
PARAMETERS: Final = 6

_PROPERTIES_BYTES_MAX: Final = props.PROPERTIES_BYTES_MAX
_TIMER_TOPIC = literal(TIMER_TOPIC)
_BLOCK_TOPIC = literal(BLOCK_TOPIC)
_SCHEDULE_TOPIC = literal(SCHEDULE_TOPIC)
_ENQUEUE = literal(props.TIMER_ENQUEUE_MS + props.NAME_END)
_DEQUEUE = literal(props.TIMER_DEQUEUE_MS + props.NAME_END)
_LEVEL = literal(props.DELAY + props.NAME_END)
_PARKED_LEVEL = literal(props.TIMER_DELAY_LEVEL)
_ORIGIN = literal(props.WMQ_ORIGIN + props.NAME_END)
_ADDED_BYTES_MAX: Final = 128
"""Most property bytes that a release adds. A new time in place of an old one is never longer than its whole pair."""

assert ORIGIN_PROPERTY_BYTES < _ADDED_BYTES_MAX


@part
def _is_plain(source: Bytes, spans: Integers, now_ms: int) -> bool:
    """Return whether the parked properties belong to a message that is due and is no cancel."""
    if spans[2 * prop.TIMER_DEL_UNIQKEY] >= 0:
        return False
    if spans[2 * prop.TIMER_DELAY_LEVEL] >= 0 and spans[2 * prop.DELAY] >= 0:
        return False
    due, due_end = spans[2 * prop.WMQ_DUE], spans[2 * prop.WMQ_DUE + 1]
    if due < 0 or due_end - due != DUE_DIGITS or source[due] == 48:
        return False
    due_ms = decimal(source, due, due_end)
    return 0 < due_ms <= now_ms


@part
def _is_parked_in(source: Bytes, stream: int, r: Integers) -> bool:
    """Return whether the record is in the level, the block or the timer queue of `stream`."""
    topic, topic_end = r[rec.TOPIC_AT], r[rec.TOPIC_AT] + r[rec.TOPIC_BYTES]
    number = stream & ((1 << STREAM_BITS) - 1)
    if stream >> STREAM_BITS == KIND_BLOCK:
        return r[rec.QUEUE_ID] == number and equals(source, topic, topic_end, _BLOCK_TOPIC)
    if stream >> STREAM_BITS == KIND_LEVEL:
        return r[rec.QUEUE_ID] == number - 1 and equals(source, topic, topic_end, _SCHEDULE_TOPIC)
    return stream == TIMER_STREAM and equals(source, topic, topic_end, _TIMER_TOPIC)


@part
def _is_due(source: Bytes, spans: Integers, due_ms: int, now_ms: int) -> bool:
    """Return whether a message of a level is due. Its due time is in its properties, else it is `due_ms`."""
    due, due_end = spans[2 * prop.WMQ_DUE], spans[2 * prop.WMQ_DUE + 1]
    if due >= 0:
        if due_end - due != DUE_DIGITS or source[due] == 48:
            return False
        due_ms = decimal(source, due, due_end)
    return 0 < due_ms <= now_ms


@part
def _real_queue(
    source: Bytes, spans: Integers, slots: Integers, topics: Integers, names: Bytes, queue_rows: Integers
) -> int:
    """Return the row of the message's real queue, or -1 for the plain code, as for a topic over TOPIC_BYTES_MAX."""
    topic = spans[2 * prop.REAL_TOPIC]
    if topic < 0 or spans[2 * prop.REAL_QID] < 0 or spans[2 * prop.REAL_TOPIC + 1] - topic > TOPIC_BYTES_MAX:
        return np.int64(-1)
    row = find_topic(slots, topics, names, source, topic, spans[2 * prop.REAL_TOPIC + 1])
    queue = decimal(source, spans[2 * prop.REAL_QID], spans[2 * prop.REAL_QID + 1])
    if row < 0 or queue < 0 or queue >= topics[row, QUEUES]:
        return np.int64(-1)
    return queue_rows[topics[row, FIRST_QUEUE] + queue]


@part
def _copy_edited(
    source: Bytes, start: int, stop: int, log: Bytes, at: int, enqueue_ms: int, now_ms: int, spans: Integers
) -> int:
    """Copy the properties source[start:stop] to log[at:] in their released form. Returns the byte after the copy.

    An old origin is left out. In a record of the timer queue or of a block, the level is left out too, and earlier
    times are replaced in place. A record of a level queue has an `enqueue_ms` of -1.
    """
    p = start
    while True:
        value, found = np.int64(stop), np.int64(-1)
        for name in (prop.WMQ_ORIGIN, prop.TIMER_DELAY_LEVEL, prop.TIMER_ENQUEUE_MS, prop.TIMER_DEQUEUE_MS):
            if enqueue_ms < 0 and name != prop.WMQ_ORIGIN:
                continue
            if spans[2 * name] >= p and spans[2 * name] < value:
                value, found = spans[2 * name], np.int64(name)
        if found < 0:
            return copy(source, p, stop, log, at) if p < stop else at
        end = spans[2 * found + 1]
        if found == prop.TIMER_ENQUEUE_MS or found == prop.TIMER_DEQUEUE_MS:
            at = copy(source, p, value, log, at)
            at = put_decimal(log, at, enqueue_ms if found == prop.TIMER_ENQUEUE_MS else now_ms)
            p = end
        else:  # leave out the pair and the separator after it
            name_bytes = _ORIGIN.shape[0] - 1 if found == prop.WMQ_ORIGIN else _PARKED_LEVEL.shape[0]
            at = copy(source, p, value - 1 - name_bytes, log, at)
            p = end + 1


@part
def _write(
    source: Bytes, log: Bytes, at: int, origin: int, enqueue_ms: int, now_ms: int, spans: Integers, r: Integers
) -> int:
    """Write the released record at `at`. Returns its size, or 0 if its properties would be too long.

    A record of a level queue has an `enqueue_ms` of -1. It keeps its properties, except an earlier origin.
    """
    topic, topic_end = spans[2 * prop.REAL_TOPIC], spans[2 * prop.REAL_TOPIC + 1]
    p = copy(source, r[rec.BODY_AT], r[rec.BODY_AT] + r[rec.BODY_BYTES], log, at + rec.FIXED)
    log[p] = np.uint8(topic_end - topic)
    block = copy(source, topic, topic_end, log, p + 1) + 2
    block_end = r[rec.PROPERTIES_AT] + r[rec.PROPERTIES_BYTES]
    level, level_end = spans[2 * prop.TIMER_DELAY_LEVEL], spans[2 * prop.TIMER_DELAY_LEVEL + 1]
    end = _copy_edited(source, r[rec.PROPERTIES_AT], block_end, log, block, enqueue_ms, now_ms, spans)
    if end > block and log[end - 1] != 2:
        log[end] = 2
        end += 1
    if enqueue_ms >= 0:
        if spans[2 * prop.TIMER_ENQUEUE_MS] < 0:
            end = put_text(log, end, _ENQUEUE)
            end = put_decimal(log, end, enqueue_ms)
            log[end] = 2
            end += 1
        if spans[2 * prop.TIMER_DEQUEUE_MS] < 0:
            end = put_text(log, end, _DEQUEUE)
            end = put_decimal(log, end, now_ms)
            log[end] = 2
            end += 1
        if level >= 0:
            end = put_text(log, end, _LEVEL)
            end = copy(source, level, level_end, log, end)
            log[end] = 2
            end += 1
    end = put_text(log, end, _ORIGIN)
    end = put_hex(log, end, origin)
    log[end] = 2
    end += 1
    properties_bytes = end - block
    if properties_bytes > _PROPERTIES_BYTES_MAX:
        return np.int64(0)
    log[block - 2] = np.uint8(properties_bytes >> 8)
    log[block - 1] = np.uint8(properties_bytes & 255)
    return end - at


@part
def _read_due(
    source: Bytes,
    refs: Integers,
    i: int,
    levels_ms: Integers,
    parameters: Integers,
    r: Integers,
    spans: Integers,
    seen: Integers,
    texts: Bytes,
    facts: Integers,
) -> bool:
    """Read the parked record of refs[i] into `r`, and the positions of its properties into `spans`.

    Returns whether the record exists, is due, and is a plain case. `texts` and `facts` are those of `layout`.
    """
    origin = refs[i, ref.ORIGIN]
    stream = origin >> INDEX_BITS
    if refs[i, ref.FLAGS] & ref.FLAG_ROLL:
        return False
    start = refs[i, ref.POSITION] - parameters[SOURCE_BASE]
    stop = start + refs[i, ref.SIZE]
    if start < 0 or stop > source.shape[0] or not rec.read_record(source, start, stop, r):
        return False
    if r[rec.POSITION] != refs[i, ref.POSITION] or r[rec.QUEUE_OFFSET] != origin & INDEX_MASK:
        return False
    if (r[rec.SYS_FLAG] & SYS_TRANSACTION) not in (0, SYS_TRANSACTION_COMMIT) or not _is_parked_in(source, stream, r):
        return False
    block, block_end = r[rec.PROPERTIES_AT], r[rec.PROPERTIES_AT] + r[rec.PROPERTIES_BYTES]
    if layout.scan(source, block, block_end, spans, seen, texts, facts) != prop.REGULAR:
        return False
    if stream >> STREAM_BITS == KIND_LEVEL:
        level = stream & ((1 << STREAM_BITS) - 1)
        by_level_ms = r[rec.STORE_MS] + levels_ms[min(level, levels_ms.shape[0]) - 1]
        return level > 0 and _is_due(source, spans, by_level_ms, parameters[NOW_MS])
    return _is_plain(source, spans, parameters[NOW_MS])


@kernel
def release(
    refs: Integers,
    source: Bytes,
    log: Bytes,
    next_offset: Integers,
    journal: Integers,
    slots: Integers,
    topics: Integers,
    names: Bytes,
    queue_rows: Integers,
    levels_ms: Integers,
    parameters: Integers,
    state: Integers,
) -> int:
    """Release refs[NEXT:] in order. All are in the log file `source`. Returns DONE, NOT_MINE or NO_ROOM."""
    r = np.empty(rec.RECORD, np.int64)
    spans = np.empty(prop.SPANS, np.int64)
    seen = np.empty(2 * prop.PAIRS_MAX, np.int64)
    texts = np.empty(layout.TEXTS, np.uint8)
    facts = np.zeros(layout.FACTS, np.int64)
    while state[NEXT] < refs.shape[0]:
        i = state[NEXT]
        origin = refs[i, ref.ORIGIN]
        in_level = origin >> (INDEX_BITS + STREAM_BITS) == KIND_LEVEL
        if not _read_due(source, refs, i, levels_ms, parameters, r, spans, seen, texts, facts):
            return NOT_MINE
        queue_row = _real_queue(source, spans, slots, topics, names, queue_rows)
        if queue_row < 0:
            return NOT_MINE
        tag = np.int64(0)
        if spans[2 * prop.TAGS] >= 0:
            tag = java_hash_ascii(source, spans[2 * prop.TAGS], spans[2 * prop.TAGS + 1])
        at = state[LOG_AT]
        row = state[ROWS]
        most = refs[i, ref.SIZE] + _ADDED_BYTES_MAX + TOPIC_BYTES_MAX + BLANK_BYTES
        if at + most > log.shape[0] or row >= journal.shape[0]:
            return NO_ROOM
        enqueue_ms = np.int64(-1) if in_level else refs[i, ref.ENQUEUE_MS]
        size = _write(source, log, at, origin, enqueue_ms, parameters[NOW_MS], spans, r)
        if size == 0:
            return NOT_MINE
        queue_offset = next_offset[queue_row]
        r[rec.QUEUE_ID] = decimal(source, spans[2 * prop.REAL_QID], spans[2 * prop.REAL_QID + 1])
        r[rec.QUEUE_OFFSET] = queue_offset
        r[rec.POSITION] = parameters[LOG_BASE] + at
        r[rec.STORE_MS] = parameters[STORE_MS]
        r[rec.STORE_IP], r[rec.STORE_PORT] = parameters[STORE_IP], parameters[STORE_PORT]
        r[rec.PREPARED] = 0
        rec.write_head(log, at, size, r[rec.BODY_BYTES], r)
        next_offset[queue_row] = queue_offset + 1
        journal[row, journal_of.QUEUE] = queue_row
        journal[row, journal_of.QUEUE_OFFSET] = queue_offset
        journal[row, journal_of.POSITION] = r[rec.POSITION]
        journal[row, journal_of.SIZE] = size
        journal[row, journal_of.TAG_CODE] = tag
        journal[row, journal_of.STORE_MS] = parameters[STORE_MS]
        journal[row, journal_of.DUE_MS] = 0
        journal[row, journal_of.SETTLES] = origin
        journal[row, journal_of.KEY_HASH] = 0
        journal[row, journal_of.FLAGS] = 0
        journal[row, journal_of.REAL_QUEUE] = queue_row
        journal[row, journal_of.PARKS] = 0
        state[ROWS] = row + 1
        state[LOG_AT] = at + size
        state[NEXT] = i + 1
    return DONE
