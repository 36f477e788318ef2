"""Serve the sends and batches at the front of a connection's input: check them, write the records, answer.

Twin: `formats.wire.frame`, `broker.handlers.send`, `delay.park` and `store.Store.append`. The kernel writes the same
bytes of log, journal and answer, and leaves all other requests to the twin.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from wheelmq.broker.fast import send_batch as batch
from wheelmq.broker.fast.send_answer import ANSWER_BYTES_MAX, put_answer
from wheelmq.broker.fast.send_fields import (
    AT,
    BATCH,
    BODY,
    BODY_MAX,
    DONE,
    DUE_MS,
    FIELDS,
    LOG_AT,
    LOG_BASE,
    NOT_MINE,
    ONEWAY,
    OUT,
    OUT_FULL,
    OUT_MS,
    PRECISION_MS,
    PROPERTIES,
    PROPERTIES_END,
    QUEUE,
    QUEUE_ROW,
    ROWS,
    SERVED,
    SERVED_MAX,
    SLOT_LIMIT,
    STATE,
    STOP,
    STORE_MS,
    TAG,
    TIMER_ROW,
    TOPIC,
    TOPIC_END,
)
from wheelmq.broker.fast.send_read import read_request
from wheelmq.broker.fast.send_write import PARK_BYTES_MAX, delete_key_hash, finish_record, place
from wheelmq.delay.fast import congestion
from wheelmq.formats.disk.message import BLANK_BYTES, TOPIC_BYTES_MAX
from wheelmq.formats.disk.origin import timer_origin
from wheelmq.formats.kernels import journal as journal_of
from wheelmq.formats.kernels import json_header as header
from wheelmq.formats.kernels import properties as prop
from wheelmq.formats.kernels import record as rec
from wheelmq.formats.kernels.jit import kernel, part
from wheelmq.formats.kernels.numbers import Bytes, get32
from wheelmq.formats.kernels.topics import FIRST_QUEUE, QUEUES, SENDABLE, Integers, find_topic
from wheelmq.formats.wire.frame import FRAME_BYTES_MAX

_TIMER_FIRST: Final = timer_origin(0)
_TOPIC_BYTES_MAX: Final = 1 + TOPIC_BYTES_MAX + 2 + 1
"""Most bytes of the topic with its length, the length of the properties, and the end of their last pair."""


@part
def _find_queue(
    a: Bytes, slots: Integers, topics: Integers, names: Bytes, queue_rows: Integers, body_max: int, f: Integers
) -> bool:
    """Find the row of the requested queue. Returns False if the queue does not accept this send."""
    row = find_topic(slots, topics, names, a, f[TOPIC], f[TOPIC_END])
    if row < 0 or topics[row, SENDABLE] == 0 or f[QUEUE] >= topics[row, QUEUES]:
        return False
    f[QUEUE_ROW] = queue_rows[topics[row, FIRST_QUEUE] + f[QUEUE]]
    return f[QUEUE_ROW] >= 0 and f[STOP] - f[BODY] <= body_max


@kernel
def accept_sends(
    a: Bytes,
    end: int,
    log: Bytes,
    next_offset: Integers,
    journal: Integers,
    out: Bytes,
    slots: Integers,
    topics: Integers,
    names: Bytes,
    queue_rows: Integers,
    waiting: Integers,
    suffix: Bytes,
    answer_head: Bytes,
    broker: Bytes,
    parameters: Integers,
    state: Integers,
) -> int:
    """Serve the complete frames of a[:end] from AT on. Returns DONE, NOT_MINE or OUT_FULL."""
    text = np.empty(batch.TEXT_BYTES, np.uint8)
    shared = np.empty(batch.SHARED, np.int64)
    h = np.empty(header.HEADER, np.int64)
    f = np.zeros(FIELDS, np.int64)
    spans = np.empty(prop.SPANS, np.int64)
    seen = np.empty(2 * prop.PAIRS_MAX, np.int64)
    head = np.empty(rec.HEAD, np.int64)
    while True:
        p = state[AT]
        if end - p < 4:
            return DONE
        length = get32(a, p)
        if length < 4 or length > FRAME_BYTES_MAX:
            return NOT_MINE
        stop = p + 4 + length
        if stop > end:
            return DONE
        if state[SERVED] >= parameters[SERVED_MAX] or not read_request(a, p, stop, h, f):
            return NOT_MINE
        if not _find_queue(a, slots, topics, names, queue_rows, parameters[BODY_MAX], f):
            return NOT_MINE
        if f[BATCH]:
            outcome = batch.append_batch(
                a, log, next_offset, journal, out, suffix, answer_head, text, shared, parameters, spans, seen, head, f,
                state,
            )  # fmt: skip
            if outcome != DONE:
                return outcome
            state[AT] = stop
            state[SERVED] += 1
            continue
        at = state[LOG_AT]
        raw = f[PROPERTIES_END] - f[PROPERTIES]
        most = rec.FIXED + (stop - f[BODY]) + _TOPIC_BYTES_MAX + raw + suffix.shape[0] + PARK_BYTES_MAX + BLANK_BYTES
        row = state[ROWS]
        if at + most > log.shape[0] or row >= journal.shape[0]:
            return NOT_MINE
        if out.shape[0] - state[OUT] < ANSWER_BYTES_MAX:
            return OUT_FULL
        if not place(a, log, at, suffix, parameters, spans, seen, f):
            return NOT_MINE
        parked = f[DUE_MS] > 0
        if parked and parameters[SLOT_LIMIT] >= 0:
            time, now = f[OUT_MS] // parameters[PRECISION_MS], parameters[STORE_MS] // parameters[PRECISION_MS]
            if not congestion.take(waiting, time, now, parameters[SLOT_LIMIT]):
                return NOT_MINE
        stored_row = parameters[TIMER_ROW] if parked else f[QUEUE_ROW]
        queue_offset = next_offset[stored_row]
        size = finish_record(a, log, at, parameters, queue_offset, head, f)
        position = parameters[LOG_BASE] + at
        next_offset[stored_row] = queue_offset + 1
        journal[row, journal_of.QUEUE] = stored_row
        journal[row, journal_of.QUEUE_OFFSET] = queue_offset
        journal[row, journal_of.POSITION] = position
        journal[row, journal_of.SIZE] = size
        journal[row, journal_of.TAG_CODE] = f[TAG]
        journal[row, journal_of.STORE_MS] = parameters[STORE_MS]
        journal[row, journal_of.DUE_MS] = f[DUE_MS]
        journal[row, journal_of.SETTLES] = 0
        journal[row, journal_of.KEY_HASH] = delete_key_hash(a, log, spans, f) if parked else 0
        journal[row, journal_of.FLAGS] = 0
        journal[row, journal_of.REAL_QUEUE] = f[QUEUE_ROW] if parked else -1
        journal[row, journal_of.PARKS] = _TIMER_FIRST | queue_offset if parked else 0
        state[ROWS] = row + 1
        state[LOG_AT] = at + size
        if not f[ONEWAY]:
            state[OUT] = put_answer(
                out, state[OUT], a, answer_head, broker, log, parameters, queue_offset, position, spans, f
            )
        state[AT] = stop
        state[SERVED] += 1


__all__ = ["AT", "DONE", "LOG_AT", "NOT_MINE", "OUT", "OUT_FULL", "ROWS", "SERVED", "STATE", "accept_sends"]
