"""Adoption: which parked messages of a store that Apache RocketMQ wrote are out already (RocketMQ: TimerMessageStore).

Its timercheck says it by slot: what it had indexed, in a slot that it had read. A message that it rolled is out too,
though its own slot was not read: its roll stands behind it in the log, a copy that tells one more in TIMER_ROLL_TIMES.
The log is asked for that and not Apache's timer log: a roll that was lost with the last pages of the log leaves its
message pending. So is what it delivered behind its timercheck, in the second before it was killed (delay.redelivery).
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


def what_is_out(parked: Parked, check: TimerCheck | None, files: MappedSequence, last_ms: int) -> Flags:
    """Which of `parked`, the messages of which no record says that they are settled, Apache RocketMQ is through with.

    `files` are those of the log, and `last_ms` the store time of its last record.
    """
    out = np.zeros(len(parked.indices), np.bool_)
    if check is not None:
        indexed = parked.indices < check.queue_offset
        out = indexed & (parked.due_ms + APACHE_PRECISION_MS < check.last_read_ms)  # no slot is later than its due time
        for i in np.flatnonzero(indexed & ~out).tolist():
            out[i] = _slot_ms(read(files, int(parked.positions[i]))) < check.last_read_ms
    for i in _rolled(parked, np.flatnonzero(~out), files):
        out[i] = True
    passed = ~out & (parked.due_ms - APACHE_PRECISION_MS <= last_ms)
    positions = parked.positions[passed].tolist()
    copied = delivered(files, (ParkedRecord(position, _slot_ms(read(files, position))) for position in positions))
    return out | np.isin(parked.positions, list(copied))


def _slot_ms(record: Record) -> int:
    """The slot that Apache counts for the record's own: what it says itself."""
    properties = record.message.properties
    own_ms = java_long(properties.get(props.TIMER_OUT_MS, ""))
    return slot_time(due_of(properties, record.store_ms), APACHE_PRECISION_MS) if own_ms is None else own_ms


def _rolled(parked: Parked, rows: npt.NDArray[np.intp], files: MappedSequence) -> list[int]:
    """Those of `rows` behind which their roll stands: each roll speaks for one message."""
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
