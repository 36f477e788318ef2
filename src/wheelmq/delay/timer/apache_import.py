"""Find the parked messages that Apache RocketMQ settled in a store that it wrote (RocketMQ: TimerMessageStore).

There are three cases:

- By its timercheck, Apache had indexed the message and had read its slot.
- Apache rolled the message before it read the slot. The log has a copy whose TIMER_ROLL_TIMES is one higher.
- Apache delivered the message after its last timercheck. The log has the copy (delay.redelivery).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wheelmq.delay.done import Flags, Indices
from wheelmq.delay.redelivery import ParkedRecord, delivered, read
from wheelmq.delay.timer.mark import TimerCheck
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Record
from wheelmq.formats.disk.parked import due_of
from wheelmq.formats.disk.timer import slot_time
from wheelmq.formats.java import java_int, java_long
from wheelmq.store.mapped import MappedSequence

APACHE_PRECISION_MS: Final = 1000


class Parked(NamedTuple):
    """Columns of parked messages in the order of the timer queue."""

    indices: Indices
    due_ms: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    key_hashes: npt.NDArray[np.int64]


def settled_by_apache(parked: Parked, check: TimerCheck | None, files: MappedSequence, last_ms: int) -> Flags:
    """Return which of `parked` Apache settled. `last_ms` is the store time of the last record in `files`, the log."""
    out = np.zeros(len(parked.indices), np.bool_)
    if check is not None:
        indexed = parked.indices < max(check.queue_offset, check.master_queue_offset)  # of a slave, its master's counts
        out = indexed & (
            parked.due_ms + APACHE_PRECISION_MS < check.last_read_ms
        )  # a slot is no later than its due time
        for i in np.flatnonzero(indexed & ~out).tolist():
            out[i] = _slot_ms(read(files, int(parked.positions[i]))) < check.last_read_ms
    for i in _rolled(parked, np.flatnonzero(~out), files):
        out[i] = True
    passed = ~out & (parked.due_ms - APACHE_PRECISION_MS <= last_ms)
    positions = parked.positions[passed].tolist()
    copied = delivered(files, (ParkedRecord(position, _slot_ms(read(files, position))) for position in positions))
    return out | np.isin(parked.positions, list(copied))


def _slot_ms(record: Record) -> int:
    """Return the slot in which Apache puts a record: its TIMER_OUT_MS, or else the slot of its due time."""
    properties = record.message.properties
    own_ms = java_long(properties.get(props.TIMER_OUT_MS, ""))
    return slot_time(due_of(properties, record.store_ms), APACHE_PRECISION_MS) if own_ms is None else own_ms


def _rolled(parked: Parked, rows: npt.NDArray[np.intp], files: MappedSequence) -> list[int]:
    """Return the rows of `rows` that a roll follows in the log. Each roll settles one message."""
    _, which, counts = np.unique(parked.key_hashes[rows], return_inverse=True, return_counts=True)
    waiting: dict[tuple[object, ...], list[int]] = {}
    found: list[int] = []
    for i in rows[(counts[which] > 1) & (parked.key_hashes[rows] != 0)].tolist():
        record = read(files, int(parked.positions[i]))
        properties = record.message.properties
        times = java_int(properties.get(props.TIMER_ROLL_TIMES, "0")) or 0
        names = (props.REAL_TOPIC, props.REAL_QID, props.UNIQ_KEY, props.TIMER_OUT_MS)
        message = (record.message.born_ms, *(properties.get(name) for name in names))
        before = waiting.get((*message, times - 1))
        if before:
            found.append(before.pop(0))
        waiting.setdefault((*message, times), []).append(i)
    return found
