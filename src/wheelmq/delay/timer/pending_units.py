"""Read the units of parked messages in batches, for recovery."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from wheelmq.delay.pending_scan import pending_chunks
from wheelmq.delay.refs import FIRE_MS, ORIGIN, POSITION, SIZE, UNIT_COLUMNS
from wheelmq.delay.timer.timer import Timer
from wheelmq.formats.disk.origin import Stream, by_stream, origin_of
from wheelmq.formats.disk.queue_unit import BLANK_SIZE
from wheelmq.formats.units import LogPosition, QueueOffset
from wheelmq.store.consume_queue import ConsumeQueue
from wheelmq.store.mapped import MappedSequence

SLOT_MS: Final = FIRE_MS
"""The slot of the message's unit in the timer log, in the column of the fire time."""
STEP_ROWS: Final = 1 << 16
"""Rows that `can_be_records` checks at once: they stay in the processor's cache."""
NO_UNITS: Final = np.empty((0, UNIT_COLUMNS), np.int64)


def pending_units(timer: Timer, stream: Stream, end: int) -> npt.NDArray[np.int64]:
    """Return the pending units of a stream before index `end`, as rows of UNIT_COLUMNS. SLOT_MS is not set."""
    queue, done, first = timer.queue_of(stream), timer.pending.done.of(stream), int(timer.queue_of(stream).start)
    stop = min(end, int(queue.end))
    found = np.empty((np.count_nonzero(~done.between(first, stop)), UNIT_COLUMNS), np.int64)
    count = 0
    for indices, units in pending_chunks(done, queue.chunks(ahead=True), first, stop):
        rows = found[count : count + len(indices)]
        rows[:, ORIGIN] = indices
        rows[:, ORIGIN] += origin_of(stream, 0)
        rows[:, POSITION], rows[:, SIZE] = units["position"], units["size"]
        count += len(indices)
    return found[:count]


def pending_in(timer: Timer, ends: Mapping[Stream, int]) -> npt.NDArray[np.int64]:
    found = [rows for stream, end in ends.items() if len(rows := pending_units(timer, stream, end))]
    return found[0] if len(found) == 1 else np.concatenate([NO_UNITS, *found])


def origins_without_record(timer: Timer, stream: Stream) -> npt.NDArray[np.int64]:
    """Return the origins without a readable record: the record is damaged, or the unit is a blank."""
    queue, damaged = timer.queue_of(stream), sorted(timer.store.log.damaged)
    index = int(queue.skip_blanks(queue.start))
    found = [np.empty(0, np.int64)]
    for units in queue.chunks(QueueOffset(index)) if damaged else ():
        is_none = np.isin(units["position"], damaged) | (units["size"] == BLANK_SIZE)
        found.append(origin_of(stream, index) + np.flatnonzero(is_none))
        index += len(units)
    return np.concatenate(found)


def are_queued(timer: Timer, origins: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    found = np.zeros(len(origins), np.bool_)
    for stream, mine in by_stream(origins):
        found[mine] = origins[mine] < origin_of(stream, timer.queue_of(stream).end)
    return found


def tag_codes(queue: ConsumeQueue, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the tag codes of the units at `offsets`, which are sorted."""
    tags = np.empty(len(offsets), np.int64)
    at = 0
    while at < len(offsets):
        units = queue.read(QueueOffset(int(offsets[at])), queue.units_per_file)
        stop = int(np.searchsorted(offsets, offsets[at] + len(units)))
        tags[at:stop] = units["tag_code"][offsets[at:stop] - offsets[at]]
        at = stop
    return tags


def can_be_records(
    positions: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], files: MappedSequence, log_end: LogPosition
) -> bool:
    """Return whether these can be records in order before `log_end`. Reads STEP_ROWS rows at a time, to save memory."""
    end = files.start
    for first in range(0, len(positions), STEP_ROWS):
        begins, mine = positions[first : first + STEP_ROWS].copy(), sizes[first : first + STEP_ROWS].copy()
        ends = begins + mine
        if begins[0] < end or ends[-1] > log_end or mine.min() <= 0:
            return False
        if (begins[1:] < ends[:-1]).any() or (ends <= begins).any():  # the last means an overflow
            return False
        if (begins % files.file_bytes + mine > files.file_bytes).any():
            return False
        end = LogPosition(int(ends[-1]))
    return True
