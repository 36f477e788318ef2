"""Copies: find the messages that Apache RocketMQ had delivered before it was killed, though its files do not say so.

Apache writes timercheck and delayOffset.json every few seconds. A message that it delivered since then has a copy in
the log after its parked record. The copy is a record of the real queue with the same body, birth and properties, except
for two properties that delivery adds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Record, decode_record
from wheelmq.formats.kernels import scan as col
from wheelmq.formats.units import LogPosition
from wheelmq.store.mapped import MappedSequence
from wheelmq.store.recovery import LogScan

_ADDED: Final = frozenset((props.TIMER_ENQUEUE_MS, props.TIMER_DEQUEUE_MS))


class ParkedRecord(NamedTuple):
    """A parked record, and the earliest time at which Apache delivers it."""

    position: int
    from_ms: int


def read(files: MappedSequence, position: int) -> Record:
    """Return the record at a position of the log. The caller knows that a record begins there."""
    return decode_record(files.file_at(position).view[position % files.file_bytes :])


def delivered(files: MappedSequence, waiting: Iterable[ParkedRecord]) -> set[LogPosition]:
    """Return the log positions of the records in `waiting` with a later copy. Each copy counts for one record."""
    without: dict[bytes, list[ParkedRecord]] = {}
    topics: set[str] = set()
    found: set[LogPosition] = set()
    in_order = sorted(waiting)
    if not in_order:
        return found
    for one in in_order:
        record = read(files, one.position)
        without.setdefault(_key(record), []).append(one)
        topics.add(record.message.properties.get(props.REAL_TOPIC, ""))
    scan = LogScan(files, LogPosition(in_order[0].position), check_bodies=False)
    for rows in scan.chunks():
        wanted = np.isin(rows[:, col.TOPIC], [scan.names.intern(topic) for topic in topics])
        for position in rows[wanted, col.POSITION].tolist():
            copy = read(files, position)
            ones = without.get(_key(copy)) if _is_in_its_own_queue(copy) else None
            if ones and ones[0].from_ms <= copy.store_ms:
                found.add(LogPosition(ones.pop(0).position))
    return found


def _is_in_its_own_queue(record: Record) -> bool:
    message = record.message
    real = message.properties.get(props.REAL_TOPIC), message.properties.get(props.REAL_QID)
    return real == (message.topic, str(message.queue_id))


def _key(record: Record) -> bytes:
    message = record.message
    properties = sorted(pair for pair in message.properties.items() if pair[0] not in _ADDED)
    common = (message.born_ms, message.born_host, message.reconsume_times, record.body_crc, properties)
    return hashlib.blake2b(repr(common).encode(), digest_size=16).digest()
