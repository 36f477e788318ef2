"""Read the details of timer log units in batches: due times by queue offset, slots of pending messages.

A detail says which message a unit names and when that message is due (formats.disk.timer_detail). So a start, a count
and a listing need not read the records of these messages. Twin: `formats.kernels.timer_detail`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wheelmq.delay.timer.log import TimerLog, Units
from wheelmq.formats.disk.timer import MAGIC_DELETE, TIMER_UNIT
from wheelmq.formats.disk.timer_detail import read_details
from wheelmq.formats.kernels import jit
from wheelmq.formats.kernels import timer_detail as kernel

Integers = npt.NDArray[np.int64]


def fill_due_times(units: Units, first: int, due_ms: Integers, topic_hashes: Integers) -> None:
    """Fill in due time and topic hash by queue offset from `first` on. Rows without a known due time stay."""
    if jit.available():
        kernel.due_times(_raw(units), 0, len(units), first, due_ms, topic_hashes)
        return
    details = read_details(units)
    indices = details.queue_offsets - first
    chosen = details.is_known & (details.due_ms > 0) & (units["magic"] & MAGIC_DELETE == 0)
    chosen &= (indices >= 0) & (indices < len(due_ms))
    due_ms[indices[chosen]] = details.due_ms[chosen]
    topic_hashes[indices[chosen]] = units["topic_hash"][chosen]


def fill_slots(units: Units, offsets: Integers, positions: Integers, sizes: Integers, slots_ms: Integers) -> None:
    """Fill in the slot of each message that a unit names. The last unit counts.

    `offsets`, sorted, are queue offsets. `positions` and `sizes` describe the messages' records. A unit that names the
    queue offset with another record makes the slot -1.
    """
    if jit.available():
        kernel.slots_of(_raw(units), 0, len(units), offsets, positions, sizes, slots_ms)
        return
    details = read_details(units)
    at = np.minimum(np.searchsorted(offsets, details.queue_offsets), max(0, len(offsets) - 1))
    chosen = details.is_known & (units["magic"] & MAGIC_DELETE == 0)
    chosen &= (offsets[at] == details.queue_offsets) if len(offsets) else False
    units, at = units[chosen], at[chosen]
    is_same = (units["record_position"] == positions[at]) & (units["record_size"] == sizes[at])
    slots_ms[at] = np.where(is_same, units["write_ms"] + units["delay_ms"], -1)


def slots_of(timer_log: TimerLog, end: int, offsets: Integers, positions: Integers, sizes: Integers) -> Integers:
    """Return the slots of messages as `fill_slots` does, from the units before `end`; 0 for no unit."""
    slots_ms = np.zeros(len(offsets), np.int64)
    for _, units in timer_log.chunks(timer_log.files.start, end):
        fill_slots(units, offsets, positions, sizes, slots_ms)
    return slots_ms


def _raw(units: Units) -> npt.NDArray[np.uint8]:
    assert units.dtype == TIMER_UNIT.dtype, units.dtype
    return units.view(np.uint8).reshape(-1)[: len(units) * TIMER_UNIT.size]
