"""Write the answer to a send or batch. Twin: `handlers.send`, `puts.recall_handle`, `formats.wire.frame.encode`."""

from __future__ import annotations

from typing import Final

import numpy as np

from wheelmq.broker.fast.send_fields import (
    DUE_MS,
    OPAQUE,
    OUT_MS,
    QUEUE,
    STORE_IP,
    STORE_PORT,
    TOPIC,
    TOPIC_END,
)
from wheelmq.formats.kernels import properties as prop
from wheelmq.formats.kernels.jit import inline, part
from wheelmq.formats.kernels.journal import POSITION, QUEUE_OFFSET
from wheelmq.formats.kernels.numbers import Bytes, copy, literal, put32, put_decimal, put_hex, put_text
from wheelmq.formats.kernels.topics import Integers
from wheelmq.formats.wire.frame import FLAG_RESPONSE, LANGUAGE, VERSION

ANSWER_BYTES_MAX: Final = 2048
"""The longest answer, and the room in which a recall handle is built."""

_QUEUE_ID = literal('","queueId":"')
_QUEUE_OFFSET = literal('","queueOffset":"')
_TRANSACTION = literal('","transactionId":"')
_RECALL = literal('","recallHandle":"')
_TAIL = literal(f'"}},"flag":{FLAG_RESPONSE},"language":"{LANGUAGE}","opaque":')
_END = literal(f',"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}')
_BASE64 = literal("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
_V1 = literal("v1 ")


@part
def _put_base64(out: Bytes, at: int, start: int, end: int) -> int:
    """Write the padded URL-safe base64 of out[start:end] to out[at:]. Returns the byte after it."""
    p = start
    while p < end:
        left = end - p
        x = np.int64(out[p]) << 16
        if left > 1:
            x |= np.int64(out[p + 1]) << 8
        if left > 2:
            x |= np.int64(out[p + 2])
        out[at] = _BASE64[x >> 18]
        out[at + 1] = _BASE64[(x >> 12) & 63]
        out[at + 2] = _BASE64[(x >> 6) & 63] if left > 1 else np.uint8(61)
        out[at + 3] = _BASE64[x & 63] if left > 2 else np.uint8(61)
        at += 4
        p += 3
    return at


@part
def _put_recall_handle(out: Bytes, at: int, a: Bytes, broker: Bytes, log: Bytes, spans: Integers, f: Integers) -> int:
    """Write the recall handle of a timer, whose text is built in free room of `out`. Returns the byte after it."""
    text = at + ANSWER_BYTES_MAX // 2
    p = put_text(out, text, _V1)
    p = copy(a, f[TOPIC], f[TOPIC_END], out, p)
    out[p] = 32
    p = put_text(out, p + 1, broker)
    out[p] = 32
    p = put_decimal(out, p + 1, f[OUT_MS] + 1)
    out[p] = 32
    p = copy(log, spans[2 * prop.UNIQ_KEY], spans[2 * prop.UNIQ_KEY + 1], out, p + 1)
    return _put_base64(out, at, text, p)


@inline
def _put_end(out: Bytes, at: int, p: int, opaque: int) -> int:
    """End the frame that begins at `at`. Returns the byte after it."""
    p = put_text(out, p, _TAIL)
    p = put_decimal(out, p, opaque)
    p = put_text(out, p, _END)
    put32(out, at, p - at - 4)
    put32(out, at + 4, p - at - 8)
    return p


@part
def put_batch_answer(
    out: Bytes,
    at: int,
    answer_head: Bytes,
    journal: Integers,
    row: int,
    end: int,
    text: Bytes,
    key: int,
    key_end: int,
    parameters: Integers,
    f: Integers,
) -> int:
    """Write the frame of the answer for the messages of journal[row:end]. Returns the byte after it.

    The key of the batch is text[key:key_end]. Without a key, `key` is negative.
    """
    p = put_text(out, at + 8, answer_head)
    for i in range(row, end):
        if i > row:
            out[p] = 44
            p += 1
        p = put_hex(out, p, (parameters[STORE_IP] << 32) | parameters[STORE_PORT])
        p = put_hex(out, p, journal[i, POSITION])
    p = put_text(out, p, _QUEUE_ID)
    p = put_decimal(out, p, f[QUEUE])
    p = put_text(out, p, _QUEUE_OFFSET)
    p = put_decimal(out, p, journal[row, QUEUE_OFFSET])
    if key >= 0:
        p = put_text(out, p, _TRANSACTION)
        p = copy(text, key, key_end, out, p)
    return _put_end(out, at, p, f[OPAQUE])


@part
def put_answer(
    out: Bytes,
    at: int,
    a: Bytes,
    answer_head: Bytes,
    broker: Bytes,
    log: Bytes,
    parameters: Integers,
    queue_offset: int,
    position: int,
    spans: Integers,
    f: Integers,
) -> int:
    """Write the frame of the answer. Returns the byte after it."""
    p = put_text(out, at + 8, answer_head)
    p = put_hex(out, p, (parameters[STORE_IP] << 32) | parameters[STORE_PORT])
    p = put_hex(out, p, position)
    p = put_text(out, p, _QUEUE_ID)
    p = put_decimal(out, p, f[QUEUE])
    p = put_text(out, p, _QUEUE_OFFSET)
    p = put_decimal(out, p, queue_offset)
    p = put_text(out, p, _TRANSACTION)
    p = copy(log, spans[2 * prop.UNIQ_KEY], spans[2 * prop.UNIQ_KEY + 1], out, p)
    if f[DUE_MS] > 0:
        p = put_text(out, p, _RECALL)
        p = _put_recall_handle(out, p, a, broker, log, spans, f)
    return _put_end(out, at, p, f[OPAQUE])
