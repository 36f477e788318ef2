"""The truth about a store at each complete step of a shipper, and what a restore to a time must contain.

It is kept as whole copies of all records, so it shares nothing with the chunks and points of the shipper.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from wheelmq.broker.broker import Broker
from wheelmq.formats.disk.message import Record, RecordError, decode_record
from wheelmq.formats.disk.origin import NO_ORIGIN, Origin, block_stream, origin_of, parse_origin
from wheelmq.formats.disk.parked import delay_facts
from wheelmq.formats.disk.properties import WMQ_ORIGIN
from wheelmq.formats.names import BLOCK_TOPIC
from wheelmq.store.commit_log import CommitLog


class Stored(NamedTuple):
    """A record and its place."""

    log: str
    """`log`, or the number of a block."""
    position: int
    raw: bytes

    @property
    def record(self) -> Record:
        return decode_record(self.raw)

    @property
    def store_ms(self) -> int:
        return self.record.store_ms


@dataclass
class Copy:
    """The store at the time of one capture."""

    made_ms: int
    log_start: int
    records: list[Stored] = field(default_factory=list)
    """All records that were ever stored and are not lost, in the order of each log. Those that have expired stay."""
    logs: set[str] = field(default_factory=set)
    """The logs that the store has."""


def records_of(name: str, log: CommitLog) -> list[Stored]:
    """Return the records of a log."""
    found = []
    position = log.start
    while position < log.end:
        file, at = log.files.file_at(position), position % log.files.file_bytes
        try:
            record = decode_record(file.view[at:])
        except RecordError:
            position += log.files.file_bytes - at
            continue
        found.append(Stored(name, position, bytes(file.view[at : at + record.size])))
        position += record.size
    return found


def copy_of(broker: Broker, made_ms: int, before: Copy | None) -> Copy:
    """Return the copy of a broker's store. Records that have expired come from the copy `before`."""
    engine = broker.parts.engine
    log = engine.store.log
    now = records_of("log", log)
    blocks = {str(block.number): records_of(str(block.number), block.log) for block in engine.blocks}
    for block in engine.blocks:
        now += blocks[str(block.number)]
    old = [] if before is None else before.records
    expired = [one for one in old if one.log == "log" and one.position < log.start]
    settled = settled_by(expired + now)
    # a block that is gone with a pending message was lost in a power cut
    deleted = [one for one in old if one.log not in ("log", *blocks) and block_origin(one.record) in settled]
    return Copy(made_ms, log.start, expired + deleted + now, {"log", *blocks})


def block_origin(record: Record) -> Origin:
    return origin_of(block_stream(record.message.queue_id), record.queue_offset)


def expected(copies: list[Copy], at_ms: int) -> list[Stored]:
    """Return the records that a restore must have, apart from those that have expired."""
    first = max(i for i, copy in enumerate(copies) if copy.made_ms <= at_ms)
    state = copies[first].records
    for copy in copies[first + 1 :]:
        known, there = set(state), set(copy.records)
        fresh = [one for one in copy.records if one not in known]
        lost = {one for one in state if one not in there}
        last_ms = {one.log: -1 for one in fresh}
        for one in state:
            if any(other.log == one.log for other in lost):
                last_ms[one.log] = max(last_ms.get(one.log, -1), one.store_ms)
        if not any(last_ms[one.log] < one.store_ms <= at_ms for one in fresh):
            break
        state = copy.records
        if any(one.store_ms > at_ms for one in fresh):
            break
    # a block may be deleted before its last records are shipped
    shipped = {one for copy in copies for one in copy.records if one.log in copy.logs}
    return [one for one in state if one.store_ms <= at_ms and (one.log == "log" or one in shipped)]


def settled_by(records: list[Stored]) -> set[Origin]:
    found = set()
    for one in records:
        if one.log == "log":
            origin = parse_origin(one.record.message.properties.get(WMQ_ORIGIN, ""))
            found.add(origin or NO_ORIGIN)
    return found


def pending_in(records: list[Stored]) -> list[bytes]:
    """Return the bodies of the pending messages, sorted."""
    settled = settled_by(records)
    found = []
    for one in records:
        record = one.record
        message = record.message
        if message.topic == BLOCK_TOPIC:
            origin = block_origin(record)
        else:
            facts = delay_facts(message.topic, message.queue_id, message.properties, record.store_ms)
            if not facts.stream or facts.deletes:
                continue
            origin = origin_of(facts.stream, record.queue_offset)
        if origin not in settled:
            found.append(message.body)
    return sorted(found)


def queue_ends(records: list[Stored]) -> dict[tuple[str, int], int]:
    """Return the end of each queue."""
    ends: dict[tuple[str, int], int] = {}
    for one in records:
        if one.log == "log":
            record = one.record
            key = record.message.topic, record.message.queue_id
            ends[key] = max(ends.get(key, 0), record.queue_offset + 1)
    return ends
