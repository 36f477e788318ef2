"""Hide the units of settled messages from Apache RocketMQ (TimerMessageStore) at a clean stop.

Apache skips a unit with the magic of a delete whose record names no message to delete. A bit of our own in the magic
marks such a unit, so that the next start of WheelMQ restores it (TimerLog.rebuild).

No record is read: the units of the timer queue are in log order. So the log position in a unit of the timer log yields
the queue offset of its message, and the offset yields the done bit.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

import numpy as np
import numpy.typing as npt

from wheelmq.delay.timer.timer import Timer
from wheelmq.formats.disk.origin import TIMER_STREAM
from wheelmq.formats.disk.queue_unit import BLANK_SIZE
from wheelmq.formats.disk.timer import MAGIC_DELETE, MAGIC_HIDDEN, TIMER_UNIT
from wheelmq.formats.units import QueueOffset

UNITS_AT_ONCE: Final = 1 << 16
"""Units per batch. The time limit is checked before each batch."""
_MAGIC: Final = TIMER_UNIT.position_of("magic")
_HIDDEN: Final = np.frombuffer(MAGIC_HIDDEN.to_bytes(4, "big"), np.uint8)

Positions = npt.NDArray[np.int64]


def hide_settled(timer: Timer, after_ms: int, stop_s: float) -> int:
    """Hide the units of settled messages in all slots later than `after_ms`, and write them to disk.

    Stops at the monotonic time `stop_s`. Returns the number of units that were not checked by then. Raises OSError.
    """
    log = timer.log
    first_hidden: int | None = None
    left = 0
    for position, units in log.chunks(log.files.start, log.end):
        raw = log.files.file_at(position).array
        for first in range(0, len(units), UNITS_AT_ONCE):
            if timer.store.clock.monotonic() > stop_s:
                left += len(units) - first
                break
            some = units[first : first + UNITS_AT_ONCE]
            is_ahead = some["write_ms"] + some["delay_ms"].astype(np.int64) > after_ms
            named = np.flatnonzero(is_ahead & (some["magic"] & MAGIC_DELETE == 0))
            hidden = named[_are_settled(timer, some["record_position"][named].astype(np.int64))]
            if len(hidden):
                at = position % log.files.file_bytes + first * TIMER_UNIT.size
                rows = raw[at : at + len(some) * TIMER_UNIT.size].reshape(-1, TIMER_UNIT.size)
                rows[hidden, _MAGIC : _MAGIC + len(_HIDDEN)] = _HIDDEN
                if first_hidden is None:
                    first_hidden = position + (first + int(hidden[0])) * TIMER_UNIT.size
    if first_hidden is not None:
        log.files.sync_job(first_hidden, log.end)()
    return left


def _are_settled(timer: Timer, positions: Positions) -> npt.NDArray[np.bool_]:
    """Return which of the log positions belong to settled messages of the timer queue."""
    queue, done = timer.queue, timer.pending.done.of(TIMER_STREAM)
    order = np.argsort(positions, kind="stable")
    wanted = positions[order]
    settled = np.zeros(len(wanted), np.bool_)
    at = 0
    while at < len(wanted):
        offset = _first_at(timer, int(wanted[at]))
        if offset >= queue.end:
            break
        units = queue.read(offset, UNITS_AT_ONCE)
        messages = np.flatnonzero(units["size"] != BLANK_SIZE)  # the first unit is a message
        there = units["position"][messages].astype(np.int64)
        stop = int(np.searchsorted(wanted, there[-1], "right"))
        places = np.searchsorted(there, wanted[at:stop])
        settled[at:stop] = (there[places] == wanted[at:stop]) & done.get(offset + messages[places])
        at = max(stop, at + 1)
    found = np.zeros(len(wanted), np.bool_)
    found[order] = settled
    return found


def _first_at(timer: Timer, position: int) -> QueueOffset:
    """Return the queue offset of the first message at or after a log position, or the queue's end."""
    queue = timer.queue

    def is_there(offset: int) -> bool:
        found = queue.skip_blanks(QueueOffset(offset))
        return found >= queue.end or int(queue.read(found, 1)["position"][0]) >= position

    offsets = range(queue.start, queue.end)
    return queue.skip_blanks(QueueOffset(queue.start + bisect_left(offsets, True, key=is_there)))
