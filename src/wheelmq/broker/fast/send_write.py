"""Write the record of a send: its properties, parked if requested, and the rest around them.

Twin: `delay.park`, `formats.disk.properties`, `formats.disk.message.encode_record`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from wheelmq.broker.fast.send_fields import (
    BLOCK,
    BLOCK_END,
    BODY,
    BORN_MS,
    DELAY_MS_MAX,
    DUE_MS,
    LOG_BASE,
    NOW_MS,
    OUT_MS,
    PEER_IP,
    PEER_PORT,
    PRECISION_MS,
    PROPERTIES,
    PROPERTIES_END,
    QUEUE,
    RAW,
    RECONSUME,
    STOP,
    STORE_IP,
    STORE_MS,
    STORE_PORT,
    SYNC,
    SYS_FLAG,
    TAG,
    TIMER_ON,
    TOPIC,
    TOPIC_END,
    USER_FLAG,
)
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.parked import DUE_DIGITS, ROOM_BYTES
from wheelmq.formats.disk.properties import PROPERTIES_BYTES_MAX
from wheelmq.formats.disk.timer import TIMER_TOPIC
from wheelmq.formats.kernels import journal as journal_of
from wheelmq.formats.kernels import properties as prop
from wheelmq.formats.kernels import record as rec
from wheelmq.formats.kernels.jit import inline, part
from wheelmq.formats.kernels.numbers import (
    FNV_START,
    Bytes,
    copy,
    crc32,
    decimal,
    equals,
    fnv,
    fnv_byte,
    java_hash_ascii,
    literal,
    put_decimal,
    put_digits,
    put_text,
)
from wheelmq.formats.kernels.topics import Integers

PARK_BYTES_MAX: Final = 512
"""Most bytes that parking adds to the properties."""
UNIQ_KEY_BYTES_MAX: Final = 128

_TRUE = literal("true")
_TIMER_TOPIC = literal(TIMER_TOPIC)
_OUT_MS = literal(f"{props.TIMER_OUT_MS}{props.NAME_END}")
_REAL_TOPIC = literal(f"{props.PAIR_END}{props.REAL_TOPIC}{props.NAME_END}")
_REAL_QID = literal(f"{props.PAIR_END}{props.REAL_QID}{props.NAME_END}")
_DUE = literal(f"{props.PAIR_END}{props.WMQ_DUE}{props.NAME_END}")


@part
def unescape(a: Bytes, start: int, end: int, log: Bytes, at: int) -> int:
    """Write the JSON text a[start:end] to log[at:]. Returns the byte after it, or -1 for escapes but \\u0001 and
    \\u0002."""
    p = np.uint64(start)
    stop = np.uint64(end)
    q = np.uint64(at)
    one = np.uint64(1)
    while p < stop:
        c = a[p]
        if c == 92:
            i = np.int64(p)
            if end - i < 6 or a[i + 1] != 117 or a[i + 2] != 48 or a[i + 3] != 48 or a[i + 4] != 48:
                return np.int64(-1)
            if a[i + 5] != 49 and a[i + 5] != 50:
                return np.int64(-1)
            c = a[i + 5] - np.uint8(48)
            p += np.uint64(5)
        log[q] = c
        q += one
        p += one
    return np.int64(q)


@part
def _due_ms(log: Bytes, spans: Integers, now_ms: int, timer_on: int) -> int:
    """Return the requested due time, 0 for immediate delivery, or -1 for the plain code."""
    for name in (prop.TIMER_DELAY_SEC, prop.TIMER_DELAY_MS, prop.TIMER_DELIVER_MS):
        if spans[2 * name] < 0:
            continue
        if timer_on == 0:
            return np.int64(-1)
        value = decimal(log, spans[2 * name], spans[2 * name + 1])
        if value < 0 or value > 1_000_000_000_000_000:
            return np.int64(-1)
        due_ms = value
        if name == prop.TIMER_DELAY_SEC:
            due_ms = now_ms + value * 1000
        elif name == prop.TIMER_DELAY_MS:
            due_ms = now_ms + value
        return due_ms if due_ms > now_ms else np.int64(0)
    return np.int64(0)


@inline
def is_for_the_plain_code(spans: Integers) -> bool:
    """Return whether a property requests something that no kernel does."""
    for name in (
        prop.DELAY,
        prop.TIMER_OUT_MS,
        prop.REAL_TOPIC,
        prop.REAL_QID,
        prop.TIMER_DEL_UNIQKEY,
        prop.TIMER_DELAY_LEVEL,
        prop.WMQ_DUE,
        prop.WMQ_ORIGIN,
        prop.TRAN_MSG,
        prop.INNER_NUM,
        prop.POP_CK,
        prop.DELAY_IN_SECONDS,
        prop.MSG_REGION,
        prop.TRACE_ON,
        prop.CLUSTER,
    ):
        if spans[2 * name] >= 0:
            return True
    return False


@inline
def asks_for_timer(spans: Integers) -> bool:
    for name in (prop.TIMER_DELAY_SEC, prop.TIMER_DELAY_MS, prop.TIMER_DELIVER_MS):
        if spans[2 * name] >= 0:
            return True
    return False


@part
def must_be_escaped(text: Bytes, start: int, end: int) -> bool:
    """Return whether text[start:end] holds a byte that JSON escapes. Kernels write answers without escapes."""
    for k in range(start, end):
        if text[k] < 32 or text[k] == 34 or text[k] == 92:
            return True
    return False


@inline
def _needs_plain_answer(log: Bytes, spans: Integers, sync: int) -> bool:
    """Return whether the plain code must answer.

    It must if WAIT is not true under a synchronous mode, or if the unique key is missing, long or needs escapes.
    """
    wait = spans[2 * prop.WAIT]
    if sync != 0 and wait >= 0 and not equals(log, wait, spans[2 * prop.WAIT + 1], _TRUE):
        return True
    key = spans[2 * prop.UNIQ_KEY]
    key_bytes = spans[2 * prop.UNIQ_KEY + 1] - key
    if key < 0 or key_bytes == 0 or key_bytes > UNIQ_KEY_BYTES_MAX:
        return True
    return must_be_escaped(log, key, key + key_bytes)


@part
def _put_parked(log: Bytes, at: int, out_ms: int, a: Bytes, topic: int, topic_end: int, queue: int, due_ms: int) -> int:
    """Write the properties that parking adds. Returns the byte after them."""
    at = put_text(log, at, _OUT_MS)
    at = put_decimal(log, at, out_ms)
    at = put_text(log, at, _REAL_TOPIC)
    at = copy(a, topic, topic_end, log, at)
    at = put_text(log, at, _REAL_QID)
    at = put_decimal(log, at, queue)
    at = put_text(log, at, _DUE)
    at = put_digits(log, at, due_ms, DUE_DIGITS)
    log[at] = 2
    return at + 1


@part
def _move(a: Bytes, start: int, end: int, by: int) -> None:
    if by > 0:
        for p in range(end - 1, start - 1, -1):
            a[p + by] = a[p]
    elif by < 0:
        for p in range(start, end):
            a[p + by] = a[p]


@part
def place(
    a: Bytes, log: Bytes, at: int, suffix: Bytes, parameters: Integers, spans: Integers, seen: Integers, f: Integers
) -> bool:
    """Write the stored properties at their place in the record at `at`, parked if the message requests it.

    Returns False if a property is for the plain code. The bytes written are then after the log's end.
    """
    block = at + rec.FIXED + (f[STOP] - f[BODY]) + 1 + (f[TOPIC_END] - f[TOPIC]) + 2
    if f[RAW] != 0:
        end = copy(a, f[PROPERTIES], f[PROPERTIES_END], log, block)
    else:
        end = unescape(a, f[PROPERTIES], f[PROPERTIES_END], log, block)
    if end < 0 or prop.scan(log, block, end, spans, seen) != prop.REGULAR:
        return False
    if is_for_the_plain_code(spans) or _needs_plain_answer(log, spans, parameters[SYNC]):
        return False
    due_ms = _due_ms(log, spans, parameters[NOW_MS], parameters[TIMER_ON])
    if due_ms < 0 or due_ms - parameters[NOW_MS] > parameters[DELAY_MS_MAX]:
        return False
    f[TAG] = 0
    if spans[2 * prop.TAGS] >= 0:
        f[TAG] = java_hash_ascii(log, spans[2 * prop.TAGS], spans[2 * prop.TAGS + 1])
    if log[end - 1] != 2:
        log[end] = 2
        end += 1
    end = copy(suffix, 0, suffix.shape[0], log, end)
    room = 0
    if due_ms > 0:
        moved = _TIMER_TOPIC.shape[0] - (f[TOPIC_END] - f[TOPIC])
        _move(log, block, end, moved)
        block += moved
        for i in range(prop.SPANS):
            spans[i] += moved
        f[OUT_MS] = (due_ms - 1) // parameters[PRECISION_MS] * parameters[PRECISION_MS]
        end = _put_parked(log, end + moved, f[OUT_MS], a, f[TOPIC], f[TOPIC_END], f[QUEUE], due_ms)
        room = ROOM_BYTES
    f[DUE_MS] = due_ms
    f[BLOCK], f[BLOCK_END] = block, end
    return end - block + room <= PROPERTIES_BYTES_MAX


@part
def finish_record(
    a: Bytes, log: Bytes, at: int, parameters: Integers, queue_offset: int, head: Integers, f: Integers
) -> int:
    """Write the rest of the record around its properties. Returns its size."""
    block = f[BLOCK]
    if f[DUE_MS] > 0:
        topic_bytes = _TIMER_TOPIC.shape[0]
        put_text(log, block - 2 - topic_bytes, _TIMER_TOPIC)
    else:
        topic_bytes = f[TOPIC_END] - f[TOPIC]
        copy(a, f[TOPIC], f[TOPIC_END], log, block - 2 - topic_bytes)
    copy(a, f[BODY], f[STOP], log, at + rec.FIXED)
    properties_bytes = f[BLOCK_END] - block
    log[block - 3 - topic_bytes] = np.uint8(topic_bytes)
    log[block - 2] = np.uint8(properties_bytes >> 8)
    log[block - 1] = np.uint8(properties_bytes & 255)
    head[rec.CRC] = crc32(a, f[BODY], f[STOP]) & 0x7FFFFFFF
    head[rec.QUEUE_ID] = 0 if f[DUE_MS] > 0 else f[QUEUE]
    head[rec.FLAG] = f[USER_FLAG]
    head[rec.QUEUE_OFFSET] = queue_offset
    head[rec.POSITION] = parameters[LOG_BASE] + at
    head[rec.SYS_FLAG] = f[SYS_FLAG]
    head[rec.BORN_MS] = f[BORN_MS]
    head[rec.BORN_IP], head[rec.BORN_PORT] = parameters[PEER_IP], parameters[PEER_PORT]
    head[rec.STORE_MS] = parameters[STORE_MS]
    head[rec.STORE_IP], head[rec.STORE_PORT] = parameters[STORE_IP], parameters[STORE_PORT]
    head[rec.RECONSUME] = f[RECONSUME]
    head[rec.PREPARED] = 0
    size = f[BLOCK_END] - at
    rec.write_head(log, at, size, f[STOP] - f[BODY], head)
    return size


@part
def add_to_journal(
    journal: Integers,
    row: int,
    parameters: Integers,
    queue_row: int,
    queue_offset: int,
    at: int,
    size: int,
    f: Integers,
) -> None:
    """Write a row of the journal for the record at `at`, which is not parked."""
    for column in range(journal_of.COLUMNS):
        journal[row, column] = 0
    journal[row, journal_of.QUEUE] = queue_row
    journal[row, journal_of.QUEUE_OFFSET] = queue_offset
    journal[row, journal_of.POSITION] = parameters[LOG_BASE] + at
    journal[row, journal_of.SIZE] = size
    journal[row, journal_of.TAG_CODE] = f[TAG]
    journal[row, journal_of.STORE_MS] = parameters[STORE_MS]
    journal[row, journal_of.REAL_QUEUE] = -1


@part
def delete_key_hash(a: Bytes, log: Bytes, spans: Integers, f: Integers) -> int:
    h = fnv_byte(fnv(FNV_START, a, f[TOPIC], f[TOPIC_END]), 43)
    found = np.int64(fnv(h, log, spans[2 * prop.UNIQ_KEY], spans[2 * prop.UNIQ_KEY + 1]))
    return found if found != 0 else np.int64(1)
