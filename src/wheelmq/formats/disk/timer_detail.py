"""The detail of a timer log unit: the queue offset and the exact due time of its message (ours).

WheelMQ writes the detail into the last 8 bytes of a unit. Apache RocketMQ writes 0 there and never reads them.

    63       56 55   51   50   49               40 39                         0
    +----------+-------+------+-------------------+----------------------------+
    |  check   |  tag  | long |  due_ms - slot - 1 |        queue offset        |
    +----------+-------+------+-------------------+----------------------------+

The check sets the xor of the bytes of all checked words to 0. Any single changed bit breaks it.
For a unit without a valid detail, a reader reads the record of the message.

Twin: `formats.kernels.timer_detail`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wheelmq.formats.disk.timer import MAGIC_ROLL

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Units = npt.NDArray[Any]
"""An array of TIMER_UNIT.dtype."""

CHECK_SHIFT: Final = 56
TAG_SHIFT: Final = 51
TAG_MASK: Final = 0b11111
TAG: Final = 0b01011
"""Version 1. A later format takes another tag, and 0 is Apache's."""
LONG_BIT: Final = 1 << 50
"""Set when the message is due more than LONG_DELAY_MS after its store time."""
DUE_SHIFT: Final = 40
DUE_MASK: Final = 0x3FF
NO_DUE: Final = DUE_MASK
"""The due time is not in the slot of the unit: the message rolls, or Apache chose the slot."""
OFFSET_MASK: Final = (1 << DUE_SHIFT) - 1


class Details(NamedTuple):
    """The details of units, one row per unit."""

    is_known: Flags
    """Whether the unit has a valid detail. If not, the other columns mean nothing."""
    queue_offsets: Integers
    due_ms: Integers
    """The exact due time, or 0 if the detail does not hold it."""
    is_long: Flags


def write_details(units: Units, queue_offsets: Integers, due_ms: Integers, is_long: Flags) -> None:
    """Write the detail of each unit. Its other fields must be complete, except `previous_position`."""
    after_slot = due_ms - _slots_ms(units) - 1
    is_told = (after_slot >= 0) & (after_slot < NO_DUE) & (units["magic"] & MAGIC_ROLL == 0)
    details = (
        (queue_offsets & OFFSET_MASK)
        | (np.where(is_told, after_slot, NO_DUE) << DUE_SHIFT)
        | np.where(is_long, LONG_BIT, 0)
        | (TAG << TAG_SHIFT)
    )
    units["reserved"] = details | (_folded(details ^ _checked_words(units)) << CHECK_SHIFT)


def read_details(units: Units) -> Details:
    details = units["reserved"].astype(np.int64)
    is_known = ((details >> TAG_SHIFT) & TAG_MASK) == TAG
    is_known &= _folded(details ^ _checked_words(units)) == 0
    after_slot = (details >> DUE_SHIFT) & DUE_MASK
    due_ms = np.where(after_slot == NO_DUE, 0, _slots_ms(units) + 1 + after_slot)
    return Details(is_known, details & OFFSET_MASK, due_ms, (details & LONG_BIT) != 0)


def _slots_ms(units: Units) -> Integers:
    slots_ms: Integers = units["write_ms"].astype(np.int64) + units["delay_ms"]
    return slots_ms


def _checked_words(units: Units) -> Integers:
    words: Integers = units["write_ms"].astype(np.int64) ^ units["record_position"]
    for name in ("delay_ms", "record_size", "topic_hash"):
        words = words ^ units[name].astype(np.int64)
    return words


def _folded(words: Integers) -> Integers:
    for shift in (32, 16, 8):
        words = words ^ (words >> shift)
    return words & 0xFF
