"""Find the pending messages whose records a start need not read, because their timer log units are intact.

The snapshot names E, up to where the timer queue is indexed, T, the end of those units in the timer log, and a checksum
of each file of it. A start does not read the record of a message below E under three conditions:

- the unit of the message in the timer queue and its unit in the timer log name the same record,
- the unit in the timer log has a detail with the queue offset, or else the record begins at that position,
- the key of the message is in the message index.

The snapshot counts such a message for its real queue, and the unit says its slot. The broker reads the record when the
due time is near.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wheelmq.delay.refs import ORIGIN, POSITION, SIZE
from wheelmq.delay.timer.details import slots_of
from wheelmq.delay.timer.log import TimerLog
from wheelmq.delay.timer.pending_units import SLOT_MS
from wheelmq.delay.timer.timer import Timer
from wheelmq.formats.disk.message import MAGIC_V1, MAGIC_V2
from wheelmq.formats.disk.origin import INDEX_MASK, timer_origin
from wheelmq.formats.disk.snapshot import Snapshot
from wheelmq.formats.disk.timer import MAGIC_DELETE, MAGIC_ROLL
from wheelmq.formats.field import Field, Layout
from wheelmq.store.mapped import MappedSequence

log = logging.getLogger(__name__)

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

RECORD_HEAD: Final = Layout(
    "beginning of a record",
    Field("size", "int32", "size of the record"),
    Field("magic", "uint32", "its format"),
    Field("body_crc", "uint32", "crc32 of the body"),
    Field("queue_id", "int32", "queue"),
    Field("flag", "int32", "the sender's"),
    Field("queue_offset", "int64", "place in the queue"),
    Field("position", "int64", "log position of the record"),
)
STEP_RECORDS: Final = 1 << 16
"""Number of records whose heads are read in one step."""


class RecordUnits(NamedTuple):
    """Fields of timer log units, sorted by record position. The first row means no unit, before any position."""

    positions: Integers
    sizes: Integers
    slots_ms: Integers
    rolls: Flags

    @classmethod
    def of(cls, timer_log: TimerLog, wanted: Integers, end: int) -> RecordUnits:
        """Return the units before `end` whose records are at the positions `wanted`, which are sorted."""
        chosen = [(np.array([-1]), np.array([0]), np.array([0]), np.array([False]))]
        for _, units in timer_log.chunks(timer_log.files.start, end) if len(wanted) else ():
            positions = units["record_position"].astype(np.int64)
            near = np.flatnonzero((positions >= wanted[0]) & (positions <= wanted[-1]))
            at = np.searchsorted(wanted, positions[near])
            kept = units[near[wanted[at] == positions[near]]]
            kept = kept[kept["magic"] & MAGIC_DELETE == 0]
            slots_ms = kept["write_ms"].astype(np.int64) + kept["delay_ms"]
            sizes, positions = kept["record_size"].astype(np.int64), kept["record_position"].astype(np.int64)
            chosen.append((positions, sizes, slots_ms, kept["magic"] & MAGIC_ROLL != 0))
        positions, sizes, slots_ms, rolls = (np.concatenate(column) for column in zip(*chosen, strict=True))
        if (np.diff(positions) < 0).any():
            order = np.argsort(positions, kind="stable")
            positions, sizes, slots_ms, rolls = positions[order], sizes[order], slots_ms[order], rolls[order]
        return cls(positions, sizes, slots_ms, rolls)

    def newest_of(self, positions: Integers) -> tuple[npt.NDArray[np.intp], Flags]:
        rows = np.searchsorted(self.positions, positions, "right") - 1
        return rows, self.positions[rows] == positions


def is_of_use(timer: Timer, snapshot: Snapshot) -> bool:
    """Return whether the snapshot suffices. It does not with limited slots: only records say when messages are due."""
    return snapshot.timers is not None and snapshot.message_index is not None and not timer.congestion.is_limited


def disagreement(timer: Timer, snapshot: Snapshot, pending: int) -> str | None:
    """Return why the snapshot does not fit the timer log or the number of pending messages; None when it fits."""
    timers, mark = snapshot.timers, timer.mark_file.load()
    assert timers is not None
    if sum(snapshot.waiting.values()) != pending or min(snapshot.waiting.values(), default=0) < 0:
        return f"the snapshot counts {sum(snapshot.waiting.values())} pending messages, but there are {pending}"
    if mark is None or mark.queue_offset < timers.queue_offset or mark.timer_log_position < timers.log_position:
        return "the timer's mark is older than the snapshot"
    if not timer.log.files.start <= timers.log_position <= timer.log.files.end:
        return "the timer log is not the one of the snapshot"
    sums = timer.log.sums_job(timers.log_position)()
    changed = [start for start, crc in sums.items() if timers.sums.get(start) != crc]
    return f"the timer log has changed after {changed[0]}" if changed else None


def not_to_be_read(timer: Timer, snapshot: Snapshot, pending: Integers) -> tuple[Integers, Flags]:
    """Return the rows of `pending` that need not be read, with slots, and a flag per row. All are in log order."""
    assert snapshot.timers is not None and snapshot.message_index is not None
    log_end = snapshot.timers.log_position
    first, end = timer_origin(0), timer_origin(snapshot.timers.queue_offset)
    origins = pending[:, ORIGIN]
    found = (origins >= first) & (origins < end) & (pending[:, POSITION] < snapshot.message_index.position)
    asked = pending if found.all() else pending[found]
    slots_ms = _slots_by_details(timer.log, log_end, asked)
    without_detail = slots_ms == 0
    if without_detail.any():
        slots_ms[without_detail] = _slots_by_records(timer, log_end, asked[without_detail])
    is_known = slots_ms > 0
    found[found] = is_known
    asked[:, SLOT_MS] = slots_ms
    return asked if is_known.all() else asked[is_known], found


def _slots_by_details(timer_log: TimerLog, end: int, pending: Integers) -> Integers:
    """Return the slot of each message, from the details of the units before timer log position `end`.

    The slot is 0 when no unit with a detail names the message, and -1 when one names it with another record.
    """
    offsets = pending[:, ORIGIN] & INDEX_MASK
    order = None
    if (offsets[1:] < offsets[:-1]).any():
        order = np.argsort(offsets, kind="stable")
        pending, offsets = pending[order], offsets[order]
    positions, sizes = (np.ascontiguousarray(pending[:, column]) for column in (POSITION, SIZE))
    slots_ms = slots_of(timer_log, end, offsets, positions, sizes)
    del positions, sizes
    if order is None:
        return slots_ms
    unsorted = np.empty_like(slots_ms)
    unsorted[order] = slots_ms
    return unsorted


def _slots_by_records(timer: Timer, end: int, pending: Integers) -> Integers:
    """Return the slot of each message whose unit has no detail; 0 when unit and record do not agree.

    Reads the head of each record, because such a unit does not name its message.
    """
    units = RecordUnits.of(timer.log, pending[:, POSITION], end)
    newest, found = units.newest_of(pending[:, POSITION])
    found &= units.sizes[newest] == pending[:, SIZE]
    found[found] = _begin_records(timer.store.log.files, pending[found])
    return np.where(found, units.slots_ms[newest], 0)


def _begin_records(files: MappedSequence, pending: Integers) -> Flags:
    """Return which rows of `pending`, in log order, have a record of their size and origin at their position."""
    is_one = np.zeros(len(pending), np.bool_)
    positions = pending[:, POSITION]
    for first in range(0, len(positions), STEP_RECORDS):
        numbers = positions[first : first + STEP_RECORDS] // files.file_bytes
        for number in np.unique(numbers).tolist():
            mine = np.flatnonzero(numbers == number) + first
            file, at = files.file_at(number * files.file_bytes), positions[mine] % files.file_bytes
            file.read_ahead(int(at[0]), min(file.size, int(at[-1]) + RECORD_HEAD.size))
            heads = file.array[at[:, None] + np.arange(RECORD_HEAD.size)].view(RECORD_HEAD.dtype)[:, 0]
            is_one[mine] = (
                (heads["size"] == pending[mine, SIZE])
                & np.isin(heads["magic"], (MAGIC_V1, MAGIC_V2))
                & (heads["queue_id"] == 0)
                & (heads["queue_offset"] == pending[mine, ORIGIN] & INDEX_MASK)
                & (heads["position"] == positions[mine])
            )
    return is_one
