"""Measure the rows of an uploaded chunk, and append their records.

Twin: `formats.disk.batch.rows_of`, `broker.batches.batches`, `Puts.put_marked`. All rows of a slice are measured before
the first is written, because the mark before them has their keys.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from wheelmq.broker.fast.send_fields import (
    BLOCK,
    BLOCK_END,
    BODY,
    FIELDS,
    LOG_AT,
    QUEUE,
    ROWS,
    STOP,
    TAG,
    TOPIC_END,
)
from wheelmq.broker.fast.send_write import add_to_journal, asks_for_timer, finish_record, is_for_the_plain_code
from wheelmq.formats.disk.batch import ROW
from wheelmq.formats.disk.properties import PROPERTIES_BYTES_MAX
from wheelmq.formats.kernels import properties as prop
from wheelmq.formats.kernels import record as rec
from wheelmq.formats.kernels.jit import kernel
from wheelmq.formats.kernels.numbers import Bytes, copy, get32, java_hash_ascii, put_text, signed32
from wheelmq.formats.kernels.topics import Integers

HEAD_BYTES: Final = ROW.size

# Columns of a measured row. Positions are bytes of `a`.
ROW_BODY: Final = 0
ROW_PROPERTIES: Final = 1
"""The end of the body, too."""
ROW_END: Final = 2
QUEUE_ID: Final = 3
KEY: Final = 4
"""The first byte of the unique key."""
KEY_END: Final = 5
TAG_CODE: Final = 6
QUEUE_ROW: Final = 7
"""The row of the queue in the store's table. The caller finds it."""
COLUMNS: Final = 8

# Limits of a measurement.
TOPIC_BYTES: Final = 0
QUEUES: Final = 1
BODY_MAX: Final = 2
RECORD_MAX: Final = 3
ROWS_MAX: Final = 4
SIZE_MAX: Final = 5
"""Maximum bytes of a slice: of bodies and properties, and ROW_ROOM for each row."""
ROW_ROOM: Final = 6
LIMITS: Final = 7

# State of a measurement, read and written.
AT: Final = 0
COUNT: Final = 1
SIZE: Final = 2
"""Bytes of the slice, as SIZE_MAX counts them."""
RECORD_BYTES: Final = 3
BODY_BYTES: Final = 4
MEASURED: Final = 5

# Results of a measurement.
CHUNK_ENDS: Final = 0
SLICE_ENDS: Final = 1
"""The next row exceeds a limit of the slice."""
NOT_MINE: Final = 2
"""The row at AT is for the plain code."""


@kernel
def measure_rows(a: Bytes, suffix: Bytes, limits: Integers, table: Integers, state: Integers) -> int:
    """Add the rows of a[AT:] to the table. Returns CHUNK_ENDS, SLICE_ENDS or NOT_MINE.

    The kernel accepts rows that the plain code would append without a change but `suffix`, which ends their properties.
    """
    spans = np.empty(prop.SPANS, np.int64)
    seen = np.empty(2 * prop.PAIRS_MAX, np.int64)
    end = a.shape[0]
    fixed = rec.FIXED + 1 + limits[TOPIC_BYTES] + 2 + suffix.shape[0]
    while state[AT] < end:
        p, row = state[AT], state[COUNT]
        if row >= limits[ROWS_MAX]:
            return SLICE_ENDS
        if end - p < HEAD_BYTES:
            return NOT_MINE
        queue_id, body_bytes = signed32(get32(a, p)), signed32(get32(a, p + 4))
        properties_bytes = (np.int64(a[p + 8]) << 8) | np.int64(a[p + 9])
        if body_bytes < 1 or body_bytes + properties_bytes > end - p - HEAD_BYTES:
            return NOT_MINE
        size = state[SIZE] + body_bytes + properties_bytes + limits[ROW_ROOM]
        if row > 0 and size > limits[SIZE_MAX]:
            return SLICE_ENDS
        body = p + HEAD_BYTES
        block = body + body_bytes
        stop = block + properties_bytes
        if queue_id < 0 or queue_id >= limits[QUEUES] or body_bytes > limits[BODY_MAX]:
            return NOT_MINE
        if prop.scan(a, block, stop, spans, seen) != prop.REGULAR or spans[2 * prop.UNIQ_KEY] < 0:
            return NOT_MINE
        if is_for_the_plain_code(spans) or asks_for_timer(spans):
            return NOT_MINE
        added = 0 if a[stop - 1] == 2 else 1
        record_bytes = fixed + body_bytes + properties_bytes + added
        if properties_bytes + added + suffix.shape[0] > PROPERTIES_BYTES_MAX or record_bytes > limits[RECORD_MAX]:
            return NOT_MINE
        table[row, ROW_BODY], table[row, ROW_PROPERTIES], table[row, ROW_END] = body, block, stop
        table[row, QUEUE_ID] = queue_id
        table[row, KEY], table[row, KEY_END] = spans[2 * prop.UNIQ_KEY], spans[2 * prop.UNIQ_KEY + 1]
        tags = spans[2 * prop.TAGS]
        table[row, TAG_CODE] = java_hash_ascii(a, tags, spans[2 * prop.TAGS + 1]) if tags >= 0 else 0
        state[SIZE] = size
        state[RECORD_BYTES] += record_bytes
        state[BODY_BYTES] += body_bytes
        state[COUNT] = row + 1
        state[AT] = stop
    return CHUNK_ENDS


@kernel
def append_rows(
    a: Bytes,
    table: Integers,
    log: Bytes,
    next_offset: Integers,
    journal: Integers,
    suffix: Bytes,
    parameters: Integers,
    f: Integers,
    state: Integers,
) -> int:
    """Append the measured rows of `table`, which all fit into the log file. Returns their number.

    `parameters`, `f` and `state` are those of a send. `f` has the fields that the rows share, and the topic is the
    front of `a`.
    """
    head = np.empty(rec.HEAD, np.int64)
    for i in range(table.shape[0]):
        at, row = state[LOG_AT], state[ROWS]
        f[BODY], f[STOP] = table[i, ROW_BODY], table[i, ROW_PROPERTIES]
        f[QUEUE], f[TAG] = table[i, QUEUE_ID], table[i, TAG_CODE]
        f[BLOCK] = at + rec.FIXED + f[STOP] - f[BODY] + 1 + f[TOPIC_END] + 2
        block_end = copy(a, table[i, ROW_PROPERTIES], table[i, ROW_END], log, f[BLOCK])
        if log[block_end - 1] != 2:
            log[block_end] = 2
            block_end += 1
        f[BLOCK_END] = put_text(log, block_end, suffix)
        queue_row = table[i, QUEUE_ROW]
        size = finish_record(a, log, at, parameters, next_offset[queue_row], head, f)
        add_to_journal(journal, row, parameters, queue_row, next_offset[queue_row], at, size, f)
        next_offset[queue_row] += 1
        state[LOG_AT], state[ROWS] = at + size, row + 1
    return table.shape[0]


__all__ = ["FIELDS", "LOG_AT", "ROWS", "append_rows", "measure_rows"]
