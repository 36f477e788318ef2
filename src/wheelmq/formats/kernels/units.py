"""Encode the queue units of a tick's records, grouped by queue. Twin: `store.queues.QueueTable.write`."""

from __future__ import annotations

from typing import Final

from wheelmq.formats.disk.queue_unit import QUEUE_UNIT
from wheelmq.formats.kernels import journal as row
from wheelmq.formats.kernels.jit import kernel
from wheelmq.formats.kernels.numbers import Bytes, put32, put64
from wheelmq.formats.kernels.topics import Integers

GROUP_QUEUE: Final = 0
"""Row of the queue."""
GROUP_OFFSET: Final = 1
"""Queue offset of its first unit."""
GROUP_END: Final = 2
"""End of its units in the encoded bytes. They begin at the end of the previous group's units."""
GROUP_BYTES: Final = 3
"""Bytes of its records."""
GROUP_COLUMNS: Final = 4

_UNIT: Final = QUEUE_UNIT.size
_POSITION_AT: Final = QUEUE_UNIT.position_of("position")
_SIZE_AT: Final = QUEUE_UNIT.position_of("size")
_TAG_CODE_AT: Final = QUEUE_UNIT.position_of("tag_code")


@kernel
def by_queue(rows: Integers, place: Integers, groups: Integers, encoded: Bytes) -> int:
    """Encode the units of journal rows, queue by queue, in order within a queue. Returns the number of queues.

    `place` has an element for each queue. All are zero before and after.
    """
    count = 0
    for i in range(rows.shape[0]):
        queue = rows[i, row.QUEUE]
        if place[queue] == 0:
            groups[count, GROUP_QUEUE] = queue
            groups[count, GROUP_OFFSET] = rows[i, row.QUEUE_OFFSET]
            count += 1
        place[queue] += 1
    at = 0
    for g in range(count):
        queue = groups[g, GROUP_QUEUE]
        size = place[queue] * _UNIT
        groups[g, GROUP_END] = at
        groups[g, GROUP_BYTES] = 0
        place[queue] = g
        at += size
    for i in range(rows.shape[0]):
        g = place[rows[i, row.QUEUE]]
        at = groups[g, GROUP_END]
        put64(encoded, at + _POSITION_AT, rows[i, row.POSITION])
        put32(encoded, at + _SIZE_AT, rows[i, row.SIZE])
        put64(encoded, at + _TAG_CODE_AT, rows[i, row.TAG_CODE])
        groups[g, GROUP_END] = at + _UNIT
        groups[g, GROUP_BYTES] += rows[i, row.SIZE]
    for g in range(count):
        place[groups[g, GROUP_QUEUE]] = 0
    return count
