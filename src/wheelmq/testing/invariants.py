"""The invariants of a broker between two ticks, checked from its files and its state (docs/formats/timer.md).

Each check reads the whole log again, which is slow but reliable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from wheelmq.broker.broker import Broker
from wheelmq.delay.done import DoneBits
from wheelmq.delay.timer.mark import MarkFile, TimerCheck, load_check
from wheelmq.delay.timer.snapshot import load_done
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import BLANK, BLANK_MAGIC, Record, decode_record
from wheelmq.formats.disk.origin import (
    KIND_BLOCK,
    TIMER_STREAM,
    Origin,
    block_stream,
    is_level,
    origin_index,
    origin_of,
    origin_stream,
    stream_kind,
    stream_number,
    timer_origin,
)
from wheelmq.formats.disk.parked import delay_facts, due_of
from wheelmq.formats.disk.timer import MAGIC_DELETE, MAGIC_ROLL, TIMER_TOPIC
from wheelmq.formats.disk.timer_detail import read_details
from wheelmq.formats.units import LogPosition
from wheelmq.store.commit_log import CommitLog
from wheelmq.store.snapshot import load_snapshot


class Log(NamedTuple):
    """The log, read from its first record to its end."""

    records: list[Record]
    parked: dict[int, Record]
    """The messages parked in the timer queue, by queue offset, without cancels."""
    settled: dict[int, Record]
    """The records that settle them, by the queue offset of the settled message."""
    cancels: set[int]
    """Queue offsets of cancels that WheelMQ wrote."""
    adopted: DoneBits
    """The messages that were settled when a store of Apache RocketMQ was adopted."""
    in_levels: dict[Origin, Record]
    """The messages parked in level queues."""
    settled_origins: dict[Origin, Record]
    """All messages that records settle."""
    settled_in_blocks: dict[Origin, Record]
    """The records that settle messages in blocks, by the origin of the settled message."""


def read_log(broker: Broker) -> Log:
    """Read the log without the code of recovery. Asserts that each origin is settled once, after its park (I2)."""
    adopted = DoneBits()
    adopted.add_packed(load_done(broker.parts.disk, broker.parts.paths)[1])
    found = Log([], {}, {}, set(), adopted, {}, {}, {})
    settled = found.settled_origins
    for record in records_from(broker.parts.store.log, broker.parts.store.log.start):
        found.records.append(record)
        message = record.message
        facts = delay_facts(message.topic, message.queue_id, message.properties, record.store_ms)
        if facts.settles:
            assert facts.settles not in settled, f"{facts.settles:#x} is settled twice"
            settled[facts.settles] = record
            index, stream = origin_index(facts.settles), origin_stream(facts.settles)
            if stream == TIMER_STREAM:
                has_expired = index < broker.parts.timer.queue.start
                assert has_expired or index in found.parked, f"queue offset {index} is settled before it is parked"
                found.settled[index] = record
            elif stream_kind(stream) == KIND_BLOCK:
                found.settled_in_blocks[facts.settles] = record
            else:
                assert is_level(stream), hex(facts.settles)
                has_expired = index < broker.parts.timer.queue_of(stream).start
                assert has_expired or facts.settles in found.in_levels, (
                    f"{facts.settles:#x} is settled before it is parked"
                )
        if is_level(facts.stream):
            found.in_levels[origin_of(facts.stream, record.queue_offset)] = record
        if message.topic == TIMER_TOPIC:
            if facts.decided:
                found.cancels.add(record.queue_offset)
            else:
                found.parked[record.queue_offset] = record
    return found


def records_from(log: CommitLog, position: LogPosition) -> Iterator[Record]:
    """Yield the records of the commit log, or of a block's log, from `position` on. Asserts that they are whole."""
    files = log.files
    while position < log.end:
        file = files.file_at(position)
        at = position % files.file_bytes
        left, magic = BLANK.unpack_from(file.view, at)
        if magic == BLANK_MAGIC:
            assert left == files.file_bytes - at, f"a blank of {left} bytes at {position}"
            position = LogPosition(position + left)
            continue
        record = decode_record(file.view[at:])
        assert record.position == position and record.body_is_intact, record
        yield record
        position = LogPosition(position + record.size)
    assert position == log.end, f"the log ends at {position}, but the broker's end is {log.end}"


def check(broker: Broker) -> Log:
    """Check all invariants of a broker between ticks. Returns the log."""
    log = read_log(broker)
    _check_store(broker, log)
    _check_done(broker, log)
    _check_counts(broker, log)
    _check_durable(broker, log)
    _check_found_again(broker, log)
    _check_reachable(broker, log)
    _check_details(broker, log)
    _check_blocks(broker, log)
    _check_snapshot(broker, log)
    return log


def _check_details(broker: Broker, log: Log) -> None:
    """Check that the detail of each timer log unit matches its record."""
    timer_log = broker.parts.timer.log
    parked = {record.position: record for record in log.parked.values()}
    for position, units in timer_log.chunks(timer_log.files.start, timer_log.end):
        details = read_details(units)
        for i, unit in enumerate(units):
            record = parked.get(LogPosition(int(unit["record_position"])))
            if record is None or not details.is_known[i]:
                continue
            assert details.queue_offsets[i] == record.queue_offset, (position, i)
            due_ms = due_of(record.message.properties, record.store_ms)
            assert details.due_ms[i] in (0, due_ms), (position, i)
            in_slot = (
                0 < due_ms - int(unit["write_ms"]) - int(unit["delay_ms"]) <= broker.parts.timer.settings.precision_ms
            )
            assert details.due_ms[i] or not in_slot or unit["magic"] & (MAGIC_ROLL | MAGIC_DELETE), (position, i)


def _check_store(broker: Broker, log: Log) -> None:
    """Check that store times never decrease, and that every intact record has its unit."""
    times = [record.store_ms for record in log.records]
    assert times == sorted(times), "store times decrease along the log"
    if broker.parts.store.journal.count:
        return
    for record in log.records:
        if record.position in broker.parts.store.log.damaged:
            continue
        queue = broker.parts.store.queues.find(record.message.topic, record.message.queue_id)
        assert queue is not None and queue.start <= record.queue_offset < queue.end, record
        unit = queue.read(record.queue_offset, 1)[0]
        assert (unit["position"], unit["size"]) == (record.position, record.size), record


def _check_done(broker: Broker, log: Log) -> None:
    """Check I3: the done bits are a function of the log."""
    if broker.parts.store.journal.count:
        return
    for index in range(broker.parts.timer.queue.start, broker.parts.timer.queue.end):
        expected = index in log.settled or index in log.cancels or timer_origin(index) in log.adopted
        assert (timer_origin(index) in broker.parts.timer.pending.done) == expected, (
            f"done bit of queue offset {index} is {not expected}"
        )

    for origin in log.in_levels:
        expected = origin in log.settled_origins or origin in log.adopted
        assert (origin in broker.parts.timer.pending.done) == expected, f"done bit of {origin:#x} is {not expected}"


def _check_counts(broker: Broker, log: Log) -> None:
    """Check that the counts of pending messages by topic match a count over the log.

    A copy may differ for a time: its log may settle a message of a block that has another message there.
    """
    if broker.parts.store.journal.count or broker.parts.block_parts.role.is_copy:
        return
    done = broker.parts.timer.pending.done
    parked = {timer_origin(index): record for index, record in log.parked.items()} | log.in_levels | _in_blocks(broker)
    waiting = [record.message.properties for origin, record in parked.items() if origin not in done]
    expected = Counter(one[props.REAL_TOPIC] for one in waiting if broker.parts.store.real_queue(one) >= 0)
    counted = broker.parts.store.queues.by_topic(broker.parts.timer.pending.counts.by_queue)
    assert counted == expected, f"the broker counts {counted}, but there are {dict(expected)}"


def _check_durable(broker: Broker, log: Log) -> None:
    """Check I4: messages are on disk that the pipeline sees, that are indexed, or that mark or timercheck cover."""
    timer, durable = broker.parts.timer, broker.parts.store.log.synced
    mark = MarkFile(broker.parts.disk, broker.parts.paths).load()
    bounds = {"E": timer.indexed_to}
    if mark is not None:
        bounds["mark"] = mark.queue_offset
        assert mark.queue_offset <= timer.indexed_to and mark.timer_log_position <= timer.log.end
        assert timer.log.files.synced(mark.timer_log_position), "the mark names units that are not on disk"
    if timer.turns.plan is not None:
        bounds["plan"] = timer.turns.plan.index_to
        assert timer.log.files.synced(timer.turns.plan.timer_log_end)
    for name, bound in bounds.items():
        for index, record in log.parked.items():
            assert index >= bound or record.position + record.size <= durable, (
                f"{name} covers a record that is not on disk"
            )
    check = load_check(broker.parts.disk, broker.parts.paths) or TimerCheck()
    for index, record in log.settled.items():
        if index < check.queue_offset and index in log.parked and record.position + record.size > durable:
            slot_ms = int(log.parked[index].message.properties[props.TIMER_OUT_MS])
            assert slot_ms >= check.last_read_ms, (
                f"timercheck says that queue offset {index} is settled, but its release is not on disk"
            )


def _units(broker: Broker, end: int) -> dict[int, list[int]]:
    """Return slot times of the units below `end`, without deletes, by the log position of their record."""
    found: dict[int, list[int]] = {}
    for _, units in broker.parts.timer.log.chunks(broker.parts.timer.log.files.start, end):
        for unit in units[units["magic"] & MAGIC_DELETE == 0]:
            found.setdefault(int(unit["record_position"]), []).append(int(unit["write_ms"] + unit["delay_ms"]))
    return found


def _check_found_again(broker: Broker, log: Log) -> None:
    """Check I5: each pending message is at or after the mark's E, or has a unit below its T."""
    mark = MarkFile(broker.parts.disk, broker.parts.paths).load()
    if mark is None or mark.timer_log_position > broker.parts.timer.log.end:
        return
    units = _units(broker, mark.timer_log_position)
    for index, record in log.parked.items():
        found = index >= mark.queue_offset or record.position in units or timer_origin(index) in log.adopted
        assert found or index in log.settled, f"queue offset {index} is before E, but has no unit before T"


def _check_reachable(broker: Broker, log: Log) -> None:
    """Check that each pending message needs no restart: it is armed, not indexed, or in a slot not scanned yet."""
    timer = broker.parts.timer
    if broker.parts.store.journal.count:
        return
    units, state_of = _units(broker, timer.log.end), broker.parts.generations.state_of
    for index, record in log.parked.items():
        if timer_origin(index) in timer.pending.done or index >= timer.indexed_to:
            continue
        slots = [
            slot
            for slot in units.get(record.position, [])
            if slot > timer.scans.covered_through_ms or slot in timer.scans.skipped
        ]
        hung = any(timer.wheel.last_position(slot) >= 0 for slot in slots)
        assert hung or state_of(timer_origin(index)) == "armed", f"queue offset {index} stays parked until a restart"

    for origin in log.in_levels:
        level = timer.pending.levels.of(origin_stream(origin))
        found = origin in timer.pending.done or origin_index(origin) >= level.staged_to
        assert found or state_of(origin) == "armed", f"{origin:#x} stays parked until a restart"


def _check_blocks(broker: Broker, log: Log) -> None:
    """Check the done bits of blocks: the log settles the message, or a flag of the block says that it once did.

    Each message that is not done must be armed or be due later.
    """
    if broker.parts.store.journal.count:
        return
    done, block_parts = broker.parts.timer.pending.done, broker.parts.block_parts
    state_of = broker.parts.generations.state_of
    assert broker.parts.blocks.synced <= broker.parts.blocks.end
    for block in broker.parts.blocks:
        assert block.durable <= block.queue.end
        flagged = set(block.queue.done().tolist())
        for first, units in block.queue.chunks():
            for i, unit in enumerate(units, first):
                origin = origin_of(block_stream(block.number), i)
                settles = log.settled_in_blocks.get(origin)
                assert (origin in done) == (settles is not None or i in flagged), (
                    f"the done bit of {origin:#x} is wrong"
                )
                if unit["size"] and i in flagged and settles is not None:
                    on_disk = settles.position + settles.size <= broker.parts.store.log.synced
                    assert on_disk, f"{origin:#x} is flagged, but the record that settles it is not on disk"
                if origin in done:
                    continue
                record = broker.parts.blocks.record_of(origin)
                assert record is not None and record.size == unit["size"], f"{origin:#x} has no record"
                is_near = unit["due_ms"] <= block_parts.walk.walked_ms
                assert not is_near or state_of(origin) == "armed", f"{origin:#x} is due soon, but not armed"
    if block_parts.role.is_copy:
        return  # a promotion skips the indices that only the log has
    for settled in map(Origin, log.settled_in_blocks):
        found = broker.parts.blocks.get(stream_number(origin_stream(settled)))
        assert found is None or origin_index(settled) < found.queue.end, f"the index of {settled:#x} may be used again"


def _in_blocks(broker: Broker) -> dict[Origin, Record]:
    origins = (
        origin_of(block_stream(block.number), i)
        for block in broker.parts.blocks
        for first, units in block.queue.chunks()
        for i in range(first, first + len(units))
    )
    records = {
        origin: broker.parts.blocks.record_of(origin)
        for origin in origins
        if origin not in broker.parts.timer.pending.done
    }
    return {origin: record for origin, record in records.items() if record is not None}


def _check_snapshot(broker: Broker, log: Log) -> None:
    """Check that the snapshot covers only records on disk, and agrees with the log before its position."""
    snapshot = load_snapshot(broker.parts.disk, broker.parts.paths)
    if snapshot is None:
        return
    position, timer = snapshot.position, broker.parts.timer
    assert position <= broker.parts.store.log.synced, "the snapshot describes records that are not on disk"
    before = [record for record in log.records if record.position < position]
    assert not before or snapshot.store_ms == before[-1].store_ms
    ends = {(one.message.topic, one.message.queue_id): one.queue_offset + 1 for one in before}
    assert ends.items() <= snapshot.queue_ends.items()
    done = DoneBits()
    done.add_packed(snapshot.done)
    end = next(one.end_index for one in snapshot.done if one.stream == TIMER_STREAM)
    for origin, record in log.in_levels.items():
        if record.position < position:
            by = log.settled_origins.get(origin)
            expected = (by is not None and by.position < position) or origin in log.adopted
            is_set = origin in done and (by is None or by.position < position)  # later records may count already
            assert is_set == expected, f"the snapshot's bit of {origin:#x} is {not expected}"
    settled = {index for index, record in log.settled.items() if record.position < position}
    parked = {index for index, record in log.parked.items() if record.position < position}
    for index in range(timer.queue.start, end):
        expected = index not in parked or index in settled or timer_origin(index) in log.adopted
        is_later = index in parked and index in log.settled and index not in settled
        assert (timer_origin(index) in done and not is_later) == expected, (
            f"the snapshot's bit of queue offset {index} is {not expected}"
        )
