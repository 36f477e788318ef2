"""Due times of the messages in the timer queue, from the details of their units in the timer log.

A turn writes units in queue order, so a binary search finds them. It misses messages that were indexed again.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wheelmq.delay.timer.details import fill_due_times
from wheelmq.delay.timer.log import BLANK_BYTES, TimerLog
from wheelmq.delay.timer.timer import Timer
from wheelmq.formats.disk.queue_unit import BLANK_SIZE
from wheelmq.formats.disk.timer import TIMER_UNIT
from wheelmq.formats.units import QueueOffset

Integers = npt.NDArray[np.int64]

UNITS_PER_MESSAGE_MAX: Final = 4
"""Limit of units per message in a search result. A log with more is not in order. The rest is left out."""
_RECORD_AT: Final = TIMER_UNIT.position_of("record_position")


class DueTimes(NamedTuple):
    """Due time and topic hash of each message of a range of the timer queue. A due time of 0 is unknown."""

    due_ms: Integers
    topic_hashes: Integers


def due_times(timer: Timer, first: int, end: int) -> DueTimes:
    """Return the due times of the queue offsets from `first` to before `end` of the timer queue."""
    found = DueTimes(np.zeros(max(0, end - first), np.int64), np.zeros(max(0, end - first), np.int64))
    stop = min(end, timer.indexed_to)
    if first >= stop:
        return found
    edges = (timer.queue.read(QueueOffset(first), 1), timer.queue.read(QueueOffset(stop - 1), 1))
    if any(unit["size"][0] == BLANK_SIZE for unit in edges):
        return found
    low, high = (int(unit["position"][0]) for unit in edges)
    start = _first_unit_from(timer.log, low)
    units = min(_first_unit_from(timer.log, high + 1) - start, UNITS_PER_MESSAGE_MAX * (stop - first))
    for _, chunk in timer.log.chunks(_position_of(timer.log, start), _position_of(timer.log, start + units)):
        fill_due_times(chunk, first, *found)
    return found


def _units_per_file(timer_log: TimerLog) -> int:
    return (timer_log.files.file_bytes - BLANK_BYTES) // TIMER_UNIT.size


def _position_of(timer_log: TimerLog, number: int) -> int:
    """Return the timer log position of unit `number` of the log. For the unit count, return the end of the log."""
    file, at = divmod(number, _units_per_file(timer_log))
    return min(timer_log.end, timer_log.files.start + file * timer_log.files.file_bytes + at * TIMER_UNIT.size)


def _first_unit_from(timer_log: TimerLog, record_position: int) -> int:
    """Return the number of the first unit whose record is at or after `record_position`, or the unit count."""
    per_file, file_bytes = _units_per_file(timer_log), timer_log.files.file_bytes
    files, at = divmod(timer_log.end - timer_log.files.start, file_bytes)
    low, high = 0, files * per_file + min(per_file, at // TIMER_UNIT.size)
    while low < high:
        middle = (low + high) // 2
        position = _position_of(timer_log, middle)
        start = position % file_bytes + _RECORD_AT
        if int.from_bytes(timer_log.files.file_at(position).view[start : start + 8], "big") < record_position:
            low = middle + 1
        else:
            high = middle
    return low
