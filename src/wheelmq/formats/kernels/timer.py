"""The loops over timer log and wheel: link units into slots, rebuild the wheel, follow a chain.

Twin: `delay.timer.wheel.TimerWheel.put`, `delay.timer.log.TimerLog`, `delay.timer.staging`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from wheelmq.formats.disk.timer import MAGIC_DELETE, TIMER_SLOT, TIMER_UNIT
from wheelmq.formats.kernels.jit import free_kernel, kernel, part
from wheelmq.formats.kernels.numbers import Bytes, copy, get32, get64, put32, put64, signed32
from wheelmq.formats.kernels.topics import Integers

UNIT: Final = TIMER_UNIT.size
SLOT: Final = TIMER_SLOT.size
_MAGIC_AT: Final = TIMER_UNIT.position_of("magic")
_PREVIOUS_AT: Final = TIMER_UNIT.position_of("previous_position")
_WRITE_AT: Final = TIMER_UNIT.position_of("write_ms")
_DELAY_AT: Final = TIMER_UNIT.position_of("delay_ms")


@part
def hang(
    wheel: Bytes, units: npt.NDArray[np.int32], slot_ms: int, precision_ms: int, position: int, deletes: bool
) -> int:
    """Link the unit at timer log position `position` into its slot. Returns the previous unit's position, or -1."""
    time = slot_ms // precision_ms
    place = time % units.shape[0]
    at = place * SLOT
    by = -1 if deletes else 1
    if get64(wheel, at) > time:
        return np.int64(-1)
    if get64(wheel, at) == time:
        previous = get64(wheel, at + 16)
        put64(wheel, at + 16, position)
        put32(wheel, at + 24, (signed32(get32(wheel, at + 24)) + by) & 0xFFFFFFFF)
        units[place] += 1
        return previous
    put64(wheel, at, time)
    put64(wheel, at + 8, position)
    put64(wheel, at + 16, position)
    put32(wheel, at + 24, by & 0xFFFFFFFF)
    put32(wheel, at + 28, 0)
    units[place] = 1
    return np.int64(-1)


@kernel
def append_units(
    wheel: Bytes,
    units: npt.NDArray[np.int32],
    precision_ms: int,
    log: Bytes,
    at: int,
    base: int,
    encoded: Bytes,
    slots_ms: Integers,
) -> None:
    """Write encoded units one after another to the file `log` from byte `at` on, each linked into its slot."""
    for i in range(slots_ms.shape[0]):
        start = i * UNIT
        target = at + start
        copy(encoded, start, start + UNIT, log, target)
        deletes = (get32(encoded, start + _MAGIC_AT) & MAGIC_DELETE) != 0
        previous = hang(wheel, units, slots_ms[i], precision_ms, base + target, deletes)
        put64(log, target + _PREVIOUS_AT, previous)


@kernel
def rebuild(
    wheel: Bytes, units: npt.NDArray[np.int32], precision_ms: int, log: Bytes, at: int, count: int, base: int
) -> None:
    """Link `count` units from byte `at` of the timer log file `log` into the wheel, and repair their chains."""
    for i in range(count):
        p = at + i * UNIT
        slot_ms = get64(log, p + _WRITE_AT) + signed32(get32(log, p + _DELAY_AT))
        deletes = (get32(log, p + _MAGIC_AT) & MAGIC_DELETE) != 0
        previous = hang(wheel, units, slot_ms, precision_ms, base + p, deletes)
        if get64(log, p + _PREVIOUS_AT) != previous:
            put64(log, p + _PREVIOUS_AT, previous)


BROKEN: Final = -2
"""A position of the chain holds no unit, or its unit links to no older one."""


@free_kernel
def chain_in_file(log: Bytes, base: int, position: int, log_end: int, found: Integers) -> int:
    """Follow a chain from `position` to older units within the file `log` that begins at `base`.

    Positions below `log_end` go into `found`, and their count into its last place. Returns the next position, which is
    in another file, or in this one if `found` is full; -1 at the end of the chain; BROKEN for no unit, or a unit that
    links to no older one.
    """
    room = found.shape[0] - 1
    count = 0
    while count < room and position >= base and position < base + log.shape[0]:
        at = position - base
        if at + UNIT > log.shape[0] or get32(log, at) != UNIT:
            return BROKEN
        if position < log_end:
            found[count] = position
            count += 1
        previous = get64(log, at + _PREVIOUS_AT)
        if previous >= position or previous < -1:
            return BROKEN
        position = previous
    found[room] = count
    return position
