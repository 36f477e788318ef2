"""Append the messages of a batch in their order, with one record each.

Twin: `broker.handlers.send` with `split_batch`, and `store.Store.append`. The kernel checks all messages before it
writes the first, so the log holds nothing of a batch that is left to the plain code.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from wheelmq.broker.fast.send_answer import ANSWER_BYTES_MAX, put_batch_answer
from wheelmq.broker.fast.send_fields import (
    BLOCK,
    BLOCK_END,
    BODY,
    DONE,
    DUE_MS,
    LOG_AT,
    NOT_MINE,
    ONEWAY,
    OUT,
    OUT_FULL,
    PROPERTIES,
    PROPERTIES_END,
    QUEUE_ROW,
    RAW,
    ROWS,
    STOP,
    SYNC,
    TAG,
    TOPIC,
    TOPIC_END,
    USER_FLAG,
)
from wheelmq.broker.fast.send_write import (
    add_to_journal,
    asks_for_timer,
    finish_record,
    is_for_the_plain_code,
    must_be_escaped,
    unescape,
)
from wheelmq.formats.disk.message import BLANK_BYTES
from wheelmq.formats.disk.properties import PROPERTIES_BYTES_MAX
from wheelmq.formats.kernels import properties as prop
from wheelmq.formats.kernels import record as rec
from wheelmq.formats.kernels.jit import inline, part
from wheelmq.formats.kernels.numbers import Bytes, copy, equals, get32, java_hash_ascii, literal
from wheelmq.formats.kernels.topics import Integers
from wheelmq.formats.wire.headers.sending import BATCH_HEAD

HEAD_BYTES: Final = BATCH_HEAD.size
ID_BYTES: Final = 33
"""Bytes of a message in the answer: its id and a comma."""
SHARED_BYTES_MAX: Final = 510
"""Limit of the properties of the whole batch, as the header holds them. A longer text is for the plain code."""
TEXT_BYTES: Final = SHARED_BYTES_MAX + 2

# A property of the whole batch. It replaces a message's own property.
NAME: Final = 0
"""Its index in `properties.NAMES`, or -1 for none."""
PAIR: Final = 1
"""The first byte of the pair."""
VALUE: Final = 2
VALUE_END: Final = 3
"""The byte that ends the pair."""
PAIR_FIELDS: Final = 4
PAIRS: Final = 2
"""A batch may have a key, and a property that says whether it waits."""
SHARED: Final = PAIRS * PAIR_FIELDS

_TRUE = literal("true")


@part
def _read_shared(a: Bytes, text: Bytes, shared: Integers, spans: Integers, seen: Integers, f: Integers) -> bool:
    """Write the batch's properties to `text`, and fill `shared` in their order. Returns False for the plain code."""
    if f[PROPERTIES_END] - f[PROPERTIES] > SHARED_BYTES_MAX:
        return False
    start = np.int64(0)  # for the constant 0, Numba would compile its callees once more
    if f[RAW] != 0:
        end = copy(a, f[PROPERTIES], f[PROPERTIES_END], text, start)
    else:
        end = unescape(a, f[PROPERTIES], f[PROPERTIES_END], text, start)
    if end < 0:
        return False
    for i in range(PAIRS):
        shared[i * PAIR_FIELDS + NAME] = -1
    if end == 0:  # the messages have all properties
        return True
    if prop.scan(text, start, end, spans, seen) != prop.REGULAR:
        return False
    if text[end - 1] != 2:
        text[end] = 2
        end += 1
    p = i = 0
    while p < end:
        value = prop.text_end(text, p, end) + 1
        name = -1
        if spans[2 * prop.UNIQ_KEY] == value:
            name = prop.UNIQ_KEY
        elif spans[2 * prop.WAIT] == value:
            name = prop.WAIT
        if name < 0:
            return False
        if must_be_escaped(text, value, spans[2 * name + 1]):
            return False
        row = i * PAIR_FIELDS
        shared[row + NAME], shared[row + PAIR] = name, p
        shared[row + VALUE], shared[row + VALUE_END] = value, spans[2 * name + 1]
        p = spans[2 * name + 1] + 1
        i += 1
    return True


@inline
def _row_of(shared: Integers, name: int) -> int:
    """Return the first entry of a property in `shared`, or -1 if the batch does not have it."""
    found = -1
    for i in range(PAIRS):
        if shared[i * PAIR_FIELDS + NAME] == name:
            found = i * PAIR_FIELDS
    return found


@part
def _read(a: Bytes, p: int, end: int, spans: Integers, seen: Integers, f: Integers) -> int:
    """Fill `f` and `spans` from the message at `p`. Returns the byte after it, or -1 for the plain code."""
    if end - p < HEAD_BYTES + 2:
        return np.int64(-1)
    f[USER_FLAG] = get32(a, p + 12)
    body_bytes = get32(a, p + 16)
    if body_bytes > end - p - HEAD_BYTES - 2:
        return np.int64(-1)
    f[BODY] = p + HEAD_BYTES
    f[STOP] = f[BODY] + body_bytes
    start = f[STOP] + 2
    stop = start + ((np.int64(a[start - 2]) << 8) | np.int64(a[start - 1]))
    if a[start - 2] > 127 or stop > end or prop.scan(a, start, stop, spans, seen) != prop.REGULAR:
        return np.int64(-1)
    if is_for_the_plain_code(spans) or asks_for_timer(spans):
        return np.int64(-1)
    return stop


@part
def _block_bytes(a: Bytes, start: int, stop: int, shared: Integers, spans: Integers, suffix: Bytes) -> int:
    count = stop - start + suffix.shape[0]
    if stop > start and a[stop - 1] != 2:
        count += 1
    for i in range(PAIRS):
        row = i * PAIR_FIELDS
        name = shared[row + NAME]
        if name < 0:
            continue
        if spans[2 * name] >= 0:
            count += shared[row + VALUE_END] - shared[row + VALUE] - (spans[2 * name + 1] - spans[2 * name])
        else:
            count += shared[row + VALUE_END] + 1 - shared[row + PAIR]
    return count


@part
def _put_block(
    a: Bytes,
    start: int,
    stop: int,
    text: Bytes,
    shared: Integers,
    spans: Integers,
    suffix: Bytes,
    log: Bytes,
    at: int,
) -> int:
    """Write the stored properties. Returns the byte after them.

    The order is: the message's own with the batch's values in place, the batch's others, then the broker's.
    """
    p = start
    while p < stop:
        next_value = stop
        found = -1
        for i in range(PAIRS):
            row = i * PAIR_FIELDS
            if shared[row + NAME] < 0:
                continue
            value = spans[2 * shared[row + NAME]]
            if value >= p and value < next_value:
                next_value, found = value, row
        at = copy(a, p, next_value, log, at)
        p = next_value
        if found >= 0:
            at = copy(text, shared[found + VALUE], shared[found + VALUE_END], log, at)
            p = spans[2 * shared[found + NAME] + 1]
    if stop > start and a[stop - 1] != 2:
        log[at] = 2
        at += 1
    for i in range(PAIRS):
        row = i * PAIR_FIELDS
        if shared[row + NAME] >= 0 and spans[2 * shared[row + NAME]] < 0:
            at = copy(text, shared[row + PAIR], shared[row + VALUE_END] + 1, log, at)
    return copy(suffix, 0, suffix.shape[0], log, at)


@part
def _measure(
    a: Bytes, end: int, suffix: Bytes, shared: Integers, spans: Integers, seen: Integers, fixed: int, f: Integers
) -> tuple[int, int]:
    """Return the number of messages in a[f[BODY]:end] and the bytes of their records. It is 0 for the plain code."""
    has_key = _row_of(shared, prop.UNIQ_KEY) >= 0
    p, count, size = f[BODY], np.int64(0), np.int64(0)
    while p < end:
        stop = _read(a, p, end, spans, seen, f)
        if stop < 0 or not (has_key or spans[2 * prop.UNIQ_KEY] >= 0):
            return np.int64(0), np.int64(0)
        block_bytes = _block_bytes(a, f[STOP] + 2, stop, shared, spans, suffix)
        if block_bytes > PROPERTIES_BYTES_MAX:
            return np.int64(0), np.int64(0)
        size += fixed + f[STOP] - f[BODY] + block_bytes
        count += 1
        p = stop
    return count, size


@part
def append_batch(
    a: Bytes,
    log: Bytes,
    next_offset: Integers,
    journal: Integers,
    out: Bytes,
    suffix: Bytes,
    answer_head: Bytes,
    text: Bytes,
    shared: Integers,
    parameters: Integers,
    spans: Integers,
    seen: Integers,
    head: Integers,
    f: Integers,
    state: Integers,
) -> int:
    """Append the messages of the batch in `f`, and answer. Returns DONE. NOT_MINE and OUT_FULL have no effect."""
    first, end, fixed = f[BODY], f[STOP], rec.FIXED + 1 + (f[TOPIC_END] - f[TOPIC]) + 2
    if not _read_shared(a, text, shared, spans, seen, f):
        return NOT_MINE
    wait, key = _row_of(shared, prop.WAIT), _row_of(shared, prop.UNIQ_KEY)
    if parameters[SYNC] != 0 and (wait < 0 or not equals(text, shared[wait + VALUE], shared[wait + VALUE_END], _TRUE)):
        return NOT_MINE
    count, size = _measure(a, end, suffix, shared, spans, seen, fixed, f)
    at, row, queue_row = state[LOG_AT], state[ROWS], f[QUEUE_ROW]
    if count == 0 or at + size + BLANK_BYTES > log.shape[0] or row + count > journal.shape[0]:
        return NOT_MINE
    if out.shape[0] - state[OUT] < ANSWER_BYTES_MAX + count * ID_BYTES:
        return OUT_FULL if state[OUT] > 0 else NOT_MINE
    f[DUE_MS] = 0
    p = first
    while p < end:
        stop = _read(a, p, end, spans, seen, f)
        f[TAG] = 0
        if spans[2 * prop.TAGS] >= 0:
            f[TAG] = java_hash_ascii(a, spans[2 * prop.TAGS], spans[2 * prop.TAGS + 1])
        f[BLOCK] = at + fixed + f[STOP] - f[BODY]
        f[BLOCK_END] = _put_block(a, f[STOP] + 2, stop, text, shared, spans, suffix, log, f[BLOCK])
        size = finish_record(a, log, at, parameters, next_offset[queue_row], head, f)
        add_to_journal(journal, row, parameters, queue_row, next_offset[queue_row], at, size, f)
        next_offset[queue_row] += 1
        at += size
        row += 1
        p = stop
    if not f[ONEWAY]:
        key_at = shared[key + VALUE] if key >= 0 else -1
        key_end = shared[key + VALUE_END] if key >= 0 else -1
        state[OUT] = put_batch_answer(
            out, state[OUT], answer_head, journal, state[ROWS], row, text, key_at, key_end, parameters, f
        )
    state[LOG_AT], state[ROWS] = at, row
    return DONE
