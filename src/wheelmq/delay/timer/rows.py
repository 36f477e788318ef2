"""Rows of a turn in the broker: check them, and convert them into units and references.

Most functions call their kernel in `delay.fast.turn`, or else run its plain twin here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from wheelmq.delay import refs as ref
from wheelmq.delay.fast import turn as kernel
from wheelmq.delay.refs import Refs
from wheelmq.delay.timer.wheel import TimerWheel
from wheelmq.formats.disk.origin import INDEX_MASK, Origin
from wheelmq.formats.disk.timer import MAGIC_DELETE, MAGIC_ROLL, TIMER_UNIT
from wheelmq.formats.disk.timer_detail import write_details
from wheelmq.formats.kernels import jit

TurnRows = npt.NDArray[Any]
"""An array of TURN_ROW."""


def are_in_order(rows: TurnRows, first: Origin) -> bool:
    """Return whether `rows`, in their `order`, have the origins from `first` on, each once."""
    if jit.available():
        return bool(kernel.in_queue_order(*kernel.views(rows), first))
    order = rows["order"]
    if len(rows) and (order.min() < 0 or order.max() >= len(rows)):
        return False
    return bool(np.array_equal(rows["origin"][order], np.arange(first, first + len(rows))))


def are_the_origins(rows: TurnRows, origins: npt.NDArray[np.int64]) -> bool:
    order = rows["order"]
    if len(rows) != len(origins) or (len(rows) and (order.min() < 0 or order.max() >= len(rows))):
        return False
    return bool(np.array_equal(rows["origin"][order], origins))


def units_of(rows: TurnRows, write_ms: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Return the timer log units of `rows` in queue order, and the slot of each."""
    units = np.zeros(len(rows), TIMER_UNIT.dtype)
    if jit.available():
        slots_ms = np.empty(len(rows), np.int64)
        kernel.encode_units(*kernel.views(rows), write_ms, units.view(np.uint8), slots_ms)
        return units, slots_ms
    rows = rows[rows["order"]]
    units["size"] = TIMER_UNIT.size
    units["magic"] = rows["magic"]
    units["write_ms"] = write_ms
    units["delay_ms"] = rows["slot_ms"] - write_ms
    units["record_position"] = rows["position"]
    units["record_size"] = rows["size"]
    units["topic_hash"] = rows["topic_hash"]
    write_details(units, rows["origin"] & INDEX_MASK, rows["fire_ms"], ref.is_long(rows["delay_ms"]))
    return units, rows["slot_ms"]


def near_refs(rows: TurnRows, horizon_ms: int, walked_ms: int, wheel: TimerWheel) -> Refs:
    """Return references to the messages to arm now: by `horizon_ms`, or `out_of_reach`; in the order of `rows`.

    They fire later than their rows by the shifts of the rows.
    """
    if jit.available():
        refs = ref.make(len(rows))
        count = kernel.near_references(
            *kernel.views(rows), horizon_ms, walked_ms, wheel.bytes, wheel.precision_ms, refs
        )
        return refs[:count]
    within = (rows["fire_ms"] <= horizon_ms) | out_of_reach(rows["slot_ms"], walked_ms, wheel)
    rows = rows[within & ((rows["magic"] & MAGIC_DELETE) == 0)]
    refs = refs_of_rows(rows)
    refs[:, ref.FIRE_MS] += rows["shift_ms"]
    refs[:, ref.FLAGS] |= np.where(rows["magic"] & MAGIC_ROLL, ref.FLAG_ROLL, 0)
    return refs


def refs_of_rows(rows: TurnRows) -> Refs:
    """Return a reference to each of `rows`. No flag says that its message rolls."""
    return ref.build(rows["fire_ms"], rows["origin"], rows["position"], rows["size"], ref.is_long(rows["delay_ms"]))


def out_of_reach(slots_ms: npt.NDArray[np.int64], walked_ms: int, wheel: TimerWheel) -> npt.NDArray[np.bool_]:
    """Return which slots no scan will reach. Their messages must be armed, however far off they are.

    Such a slot has no place in the wheel, or was already scanned. A record of Apache may be due later than its slot.
    """
    return (slots_ms <= walked_ms) | ~wheel.holds(slots_ms)
