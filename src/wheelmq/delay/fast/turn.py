"""The loops over the rows of a turn: check them, encode units, select near references. Twin: `delay.timer.rows`.

Rows come as two views of the same bytes: 7 columns of 64 bits and 14 of 32 (`formats.disk.turn_row`).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wheelmq.formats.disk.origin import INDEX_MASK
from wheelmq.formats.disk.timer import MAGIC_DELETE, MAGIC_ROLL, TIMER_SLOT, TIMER_UNIT
from wheelmq.formats.disk.turn_row import TURN_ROW
from wheelmq.formats.kernels import refs as ref
from wheelmq.formats.kernels.arrays import read_only
from wheelmq.formats.kernels.jit import kernel
from wheelmq.formats.kernels.numbers import Bytes, get64, put32, put64
from wheelmq.formats.kernels.timer_detail import put_detail
from wheelmq.formats.kernels.topics import Integers

Ints = npt.NDArray[np.int32]


def _column(name: str, width: int) -> int:
    assert TURN_ROW.fields is not None
    return int(TURN_ROW.fields[name][1]) // width


_FIRE: Final = _column("fire_ms", 8)
_ORIGIN: Final = _column("origin", 8)
_SLOT: Final = _column("slot_ms", 8)
_POSITION: Final = _column("position", 8)
_DELAY: Final = _column("delay_ms", 8)
_SIZE: Final = _column("size", 4)
_TOPIC_HASH: Final = _column("topic_hash", 4)
_MAGIC: Final = _column("magic", 4)
_ORDER: Final = _column("order", 4)

_UNIT: Final = TIMER_UNIT.size
_UNIT_SIZE_AT: Final = TIMER_UNIT.position_of("size")
_UNIT_MAGIC_AT: Final = TIMER_UNIT.position_of("magic")
_UNIT_WRITE_AT: Final = TIMER_UNIT.position_of("write_ms")
_UNIT_DELAY_AT: Final = TIMER_UNIT.position_of("delay_ms")
_UNIT_RECORD_AT: Final = TIMER_UNIT.position_of("record_position")
_UNIT_RECORD_SIZE_AT: Final = TIMER_UNIT.position_of("record_size")
_UNIT_TOPIC_AT: Final = TIMER_UNIT.position_of("topic_hash")
_SLOT_BYTES: Final = TIMER_SLOT.size


def views(rows: npt.NDArray[Any]) -> tuple[Integers, Ints]:
    return (
        read_only(rows.view(np.int64).reshape(-1, TURN_ROW.itemsize // 8)),
        read_only(rows.view(np.int32).reshape(-1, TURN_ROW.itemsize // 4)),
    )


@kernel
def in_queue_order(longs: Integers, ints: Ints, first: int) -> bool:
    """Return whether the rows in queue order have the origins from `first` on, each exactly once."""
    count = longs.shape[0]
    for i in range(count):
        row = np.int64(ints[i, _ORDER])
        if row < 0 or row >= count or longs[row, _ORIGIN] != first + i:
            return False
    return True


@kernel
def encode_units(longs: Integers, ints: Ints, write_ms: int, encoded: Bytes, slots_ms: Integers) -> None:
    """Write the unit of each row and its slot, in queue order. `encoded` must hold zeros."""
    for i in range(longs.shape[0]):
        row = np.int64(ints[i, _ORDER])
        slot_ms = longs[row, _SLOT]
        at = i * _UNIT
        put32(encoded, at + _UNIT_SIZE_AT, _UNIT)
        put32(encoded, at + _UNIT_MAGIC_AT, np.int64(ints[row, _MAGIC]))
        put64(encoded, at + _UNIT_WRITE_AT, write_ms)
        put32(encoded, at + _UNIT_DELAY_AT, slot_ms - write_ms)
        put64(encoded, at + _UNIT_RECORD_AT, longs[row, _POSITION])
        put32(encoded, at + _UNIT_RECORD_SIZE_AT, np.int64(ints[row, _SIZE]))
        put32(encoded, at + _UNIT_TOPIC_AT, np.int64(ints[row, _TOPIC_HASH]))
        is_long = longs[row, _DELAY] > ref.LONG_DELAY_MS
        put_detail(encoded, at, longs[row, _ORIGIN] & INDEX_MASK, longs[row, _FIRE], is_long)
        slots_ms[i] = slot_ms


@kernel
def near_references(
    longs: Integers,
    ints: Ints,
    horizon_ms: int,
    walked_ms: int,
    wheel: Bytes,
    precision_ms: int,
    refs: Integers,
) -> int:
    """Write the references of the rows to arm now into `refs`, in row order. Returns their number.

    These fire by `horizon_ms`, or no later scan finds their slots. The caller fills in ENQUEUE_MS.
    """
    slots = wheel.shape[0] // _SLOT_BYTES
    count = 0
    for i in range(longs.shape[0]):
        magic = np.int64(ints[i, _MAGIC])
        if magic & MAGIC_DELETE:
            continue
        slot_ms = longs[i, _SLOT]
        if longs[i, _FIRE] > horizon_ms and slot_ms > walked_ms:
            time = slot_ms // precision_ms
            if get64(wheel, time % slots * _SLOT_BYTES) == time:
                continue
        refs[count, ref.FIRE_MS] = longs[i, _FIRE]
        refs[count, ref.ORIGIN] = longs[i, _ORIGIN]
        refs[count, ref.POSITION] = longs[i, _POSITION]
        refs[count, ref.SIZE] = np.int64(ints[i, _SIZE])
        refs[count, ref.FLAGS] = (ref.FLAG_ROLL if magic & MAGIC_ROLL else 0) | (
            ref.FLAG_LONG if longs[i, _DELAY] > ref.LONG_DELAY_MS else 0
        )
        count += 1
    return count
