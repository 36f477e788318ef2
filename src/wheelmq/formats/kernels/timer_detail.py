"""The loops over the details of timer log units: due times by queue offset, and the slots of pending messages.

Twins: `formats.disk.timer_detail`, `delay.timer.details`.
"""

from __future__ import annotations

from typing import Final

from wheelmq.formats.disk.timer import MAGIC_DELETE, MAGIC_ROLL, TIMER_UNIT
from wheelmq.formats.disk.timer_detail import (
    CHECK_SHIFT,
    DUE_MASK,
    DUE_SHIFT,
    LONG_BIT,
    NO_DUE,
    OFFSET_MASK,
    TAG,
    TAG_MASK,
    TAG_SHIFT,
)
from wheelmq.formats.kernels.jit import free_kernel, part
from wheelmq.formats.kernels.numbers import Bytes, get32, get64, put64, signed32
from wheelmq.formats.kernels.topics import Integers

UNIT: Final = TIMER_UNIT.size
_MAGIC_AT: Final = TIMER_UNIT.position_of("magic")
_WRITE_AT: Final = TIMER_UNIT.position_of("write_ms")
_DELAY_AT: Final = TIMER_UNIT.position_of("delay_ms")
_RECORD_AT: Final = TIMER_UNIT.position_of("record_position")
_RECORD_SIZE_AT: Final = TIMER_UNIT.position_of("record_size")
_TOPIC_AT: Final = TIMER_UNIT.position_of("topic_hash")
_DETAIL_AT: Final = TIMER_UNIT.position_of("reserved")


@part
def _fold(log: Bytes, p: int, detail: int) -> int:
    word = detail ^ get64(log, p + _WRITE_AT) ^ get64(log, p + _RECORD_AT)
    word ^= signed32(get32(log, p + _DELAY_AT))
    word ^= signed32(get32(log, p + _RECORD_SIZE_AT))
    word ^= signed32(get32(log, p + _TOPIC_AT))
    word ^= word >> 32
    word ^= word >> 16
    word ^= word >> 8
    return word & 0xFF


@part
def put_detail(log: Bytes, p: int, queue_offset: int, due_ms: int, is_long: bool) -> None:
    """Write the detail of the unit at byte `p`. Its other fields must be complete, except the previous position."""
    after_slot = due_ms - get64(log, p + _WRITE_AT) - signed32(get32(log, p + _DELAY_AT)) - 1
    if after_slot < 0 or after_slot >= NO_DUE or get32(log, p + _MAGIC_AT) & MAGIC_ROLL:
        after_slot = NO_DUE
    detail = (queue_offset & OFFSET_MASK) | (after_slot << DUE_SHIFT) | (TAG << TAG_SHIFT)
    if is_long:
        detail |= LONG_BIT
    put64(log, p + _DETAIL_AT, detail | (_fold(log, p, detail) << CHECK_SHIFT))


@part
def get_detail(log: Bytes, p: int) -> int:
    detail = get64(log, p + _DETAIL_AT)
    if (detail >> TAG_SHIFT) & TAG_MASK != TAG or _fold(log, p, detail) != 0:
        return 0
    return detail


@free_kernel
def due_times(log: Bytes, at: int, count: int, first: int, due_ms: Integers, topic_hashes: Integers) -> None:
    """Fill in due times and topic hashes by queue offset less `first`, from `count` units at byte `at`.

    Uses a unit if its detail is valid and holds the due time, and if it is no delete.
    """
    for i in range(count):
        p = at + i * UNIT
        detail = get_detail(log, p)
        index = (detail & OFFSET_MASK) - first
        if detail == 0 or index < 0 or index >= due_ms.shape[0] or get32(log, p + _MAGIC_AT) & MAGIC_DELETE:
            continue
        after_slot = (detail >> DUE_SHIFT) & DUE_MASK
        if after_slot != NO_DUE:
            due_ms[index] = get64(log, p + _WRITE_AT) + signed32(get32(log, p + _DELAY_AT)) + 1 + after_slot
            topic_hashes[index] = signed32(get32(log, p + _TOPIC_AT))


@free_kernel
def slots_of(
    log: Bytes, at: int, count: int, offsets: Integers, positions: Integers, sizes: Integers, slots_ms: Integers
) -> None:
    """Fill in the slot of each message that a unit with a valid detail names, from `count` units at byte `at`.

    `offsets` holds the messages' queue offsets in order, with the positions and sizes of their records. The last unit
    that names all three and is no delete counts. A unit with another record sets the slot to -1.
    """
    last = offsets.shape[0]
    k = 0
    for i in range(count):
        p = at + i * UNIT
        detail = get_detail(log, p)
        if detail == 0 or get32(log, p + _MAGIC_AT) & MAGIC_DELETE:
            continue
        offset = detail & OFFSET_MASK
        if k >= last or offsets[k] != offset:
            low, high = 0, last
            if k < last and offsets[k] < offset:
                low = k + 1
                if low < last and offsets[low] >= offset:
                    high = low
            while low < high:
                middle = (low + high) // 2
                if offsets[middle] < offset:
                    low = middle + 1
                else:
                    high = middle
            k = low
            if k >= last or offsets[k] != offset:
                continue
        if get64(log, p + _RECORD_AT) == positions[k] and signed32(get32(log, p + _RECORD_SIZE_AT)) == sizes[k]:
            slots_ms[k] = get64(log, p + _WRITE_AT) + signed32(get32(log, p + _DELAY_AT))
        else:
            slots_ms[k] = -1
        k += 1
