"""List and count pending messages, many at a time, by due time and topic.

A glance takes due times and topics from the details of the timer log. It reads a record only where there is no
detail. A listing reads the record of a message only to show it. The unit of a message in a block has its due time, so
a glance reads records of blocks only for their topics.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wheelmq.delay.blocks.block import Block
from wheelmq.delay.blocks.blocks import Blocks
from wheelmq.delay.blocks.records import UnitRecords
from wheelmq.delay.blocks.search import END as END
from wheelmq.delay.due_times import due_times
from wheelmq.delay.parked import state_of
from wheelmq.delay.pending_message import PendingMessage, describe
from wheelmq.delay.pending_scan import are_pending, pending_chunks
from wheelmq.delay.timer.timer import Timer
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Record
from wheelmq.formats.disk.origin import (
    INDEX_MASK,
    KIND_BLOCK,
    TIMER_STREAM,
    Origin,
    Stream,
    block_stream,
    is_level,
    origin_of,
    origin_stream,
    stream_kind,
    stream_number,
)
from wheelmq.formats.disk.parked import due_of
from wheelmq.formats.java import java_hash
from wheelmq.formats.kernels import jit, scan
from wheelmq.formats.units import NEVER_MS, LogPosition, Millis, QueueOffset
from wheelmq.store.store import Store

LOOKED_AT_MAX: Final = 5000
"""Places that one glance reads. A listing of millions of messages takes many short glances."""

PLACES_MAX: Final = 1 << 16
"""Places of one glance that counts or chooses the soonest messages. It reads at most LOOKED_AT_MAX records."""

PLAIN_MAX: Final = 100
"""Records that a glance reads with the plain code."""

RECORDS_AT_ONCE: Final = 500
"""Records of a block that are read together. Then the time is checked, as some records need the slow plain code."""
SLICE_S: Final = 0.005
"""After this time a glance begins no other stream and reads no more records of a block."""

STEPS_PER_MESSAGE_MAX: Final = 4
"""With more steps per message than this, sorting the steps costs less than a counter for each step."""

STREAM_PLACES: Final = 50
"""Approximate cost of beginning another stream, in places."""

Integers = npt.NDArray[np.int64]


_scratch: Final = np.empty((4, LOOKED_AT_MAX), np.int64)
"""Columns that the kernel fills and a glance does not need."""

_NOTHING: Final = np.empty(0, np.int64)


class Wanted(NamedTuple):
    """The messages to find: those of one topic or of all, due from `from_ms` to before `to_ms`."""

    topic: str | None = None
    from_ms: Millis = Millis(0)
    to_ms: Millis = NEVER_MS


class Glance(NamedTuple):
    """Pending messages, in the order of their origins."""

    origins: Integers
    positions: Integers
    """Positions in the commit log. For a message in a block, the position in that block's log."""
    due_ms: Integers
    next_place: Origin
    """The place at which the next glance begins; `END` when this was the last."""


class _Part(NamedTuple):
    """The result of a glance in one stream. `stop` is the index after the last place that it read."""

    indices: Integers
    positions: Integers
    due_ms: Integers
    stop: int


def glance(timer: Timer, blocks: Blocks, place: int, wanted: Wanted, places: int = 0) -> Glance:
    """Return the pending messages from `place` on, of at most `places` places. 0 means LOOKED_AT_MAX.

    Places are origins, and 0 is the first. Topics whose names have the same Java hash count as one.
    """
    found = [(_NOTHING, _NOTHING, _NOTHING)]
    most = left = places or LOOKED_AT_MAX
    until = timer.store.clock.monotonic() + SLICE_S
    next_place = END
    for stream in _streams(timer, blocks, wanted):
        if place >= origin_of(stream, INDEX_MASK):
            continue
        if left < most and (left <= 0 or timer.store.clock.monotonic() >= until):
            next_place = origin_of(stream, 0)
            break
        first = max(0, place - origin_of(stream, 0), timer.pending.done.of(stream).floor)
        block = blocks.get(stream_number(stream)) if stream_kind(stream) == KIND_BLOCK else None
        if block is not None:
            end = block.queue.end
            part = _scan_block(timer, block, first, min(first + left, end), wanted, until)
        else:
            queue = timer.queue_of(stream)
            first, end = max(first, queue.start), queue.end
            part = _scan_queue(timer, stream, first, min(first + left, end), wanted)
        found.append((origin_of(stream, 0) + part.indices, part.positions, part.due_ms))
        if part.stop < end:
            next_place = origin_of(stream, part.stop)
            break
        left -= max(0, part.stop - first) + STREAM_PLACES
    joined = [np.concatenate(column) for column in zip(*found, strict=True)]
    return Glance(joined[0], joined[1], joined[2], next_place)


def _streams(timer: Timer, blocks: Blocks, wanted: Wanted) -> list[Stream]:
    """Return the streams that may have wanted messages, in the order of places."""
    in_time = (block for block in blocks if block.start_ms < wanted.to_ms and block.end_ms > wanted.from_ms)
    return sorted([*timer.ends(), *(block_stream(block.number) for block in in_time)])


def _scan_queue(timer: Timer, stream: Stream, start: int, stop: int, wanted: Wanted) -> _Part:
    """Find the wanted messages of the timer queue or a level queue, from index `start` to before `stop`."""
    store = timer.store
    offsets, positions, sizes, tags = _pending_units(timer, stream, start, stop)
    due_ms, topic_hash = np.zeros(len(offsets), np.int64), np.zeros(len(offsets), np.int64)
    if is_level(stream):
        now_ms = store.clock.now_ms()
        due_ms[:] = np.where(tags > now_ms + timer.pending.levels.of(stream).delay_ms, now_ms, tags)
    unread = np.arange(len(offsets))
    if stream == TIMER_STREAM and len(offsets):
        known = due_times(timer, start, stop)
        due_ms[:], topic_hash[:] = known.due_ms[offsets - start], known.topic_hashes[offsets - start]
        unread = np.flatnonzero(due_ms == 0)
    some = unread[:LOOKED_AT_MAX]
    read_ms, read_hash = due_ms[some], topic_hash[some]
    read = _read_records(store, positions[some], sizes[some], read_ms, read_hash)
    due_ms[some], topic_hash[some] = read_ms, read_hash
    if read < len(unread):
        cut = int(unread[read])
        stop = int(offsets[cut])
        offsets, positions, due_ms, topic_hash = offsets[:cut], positions[:cut], due_ms[:cut], topic_hash[:cut]
    mine = (due_ms >= max(wanted.from_ms, 1)) & (due_ms < wanted.to_ms)
    if wanted.topic is not None:
        mine &= topic_hash == java_hash(wanted.topic)
    return _Part(offsets[mine], positions[mine], due_ms[mine], max(start, stop))


def _scan_block(timer: Timer, block: Block, start: int, stop: int, wanted: Wanted, until: float) -> _Part:
    """Find the wanted messages of a block, from index `start` to before `stop`. Stop at the time `until`."""
    done = timer.pending.done.of(block_stream(block.number))
    records = UnitRecords(block.log.files, block.number, check_bodies=False)
    found = [(_NOTHING, _NOTHING, _NOTHING)]
    first = start
    while first < stop:
        units = block.queue.read(first, min(stop - first, RECORDS_AT_ONCE if wanted.topic is not None else stop))
        indices, due_ms = first + np.arange(len(units)), units["due_ms"].astype(np.int64)
        mine = (due_ms >= wanted.from_ms) & (due_ms < wanted.to_ms) & are_pending(done, first, units)
        first += len(units)
        if wanted.topic is not None:
            at = np.flatnonzero(mine)
            rows = records.read(indices[at], units[at])
            topic = records.names.intern(wanted.topic)
            mine[at] = (rows[:, scan.SIZE] > 0) & (rows[:, scan.REAL_TOPIC] == topic)
            if timer.store.clock.monotonic() >= until:
                stop = first
        found.append((indices[mine], units["position"][mine].astype(np.int64), due_ms[mine]))
    joined = [np.concatenate(column) for column in zip(*found, strict=True)]
    return _Part(joined[0], joined[1], joined[2], max(start, stop))


def lines(timer: Timer, blocks: Blocks, seen: Glance, wanted: Wanted) -> Iterator[tuple[Origin, PendingMessage]]:
    """Yield the lines of a listing for the messages in a glance, each with its place."""
    for origin, position in zip(seen.origins.tolist(), seen.positions.tolist(), strict=True):
        record = _record(timer, blocks, origin, LogPosition(position))
        if record is not None:
            pending = describe(record, state_of(timer, origin), timer.pending.levels.due_of(origin))
            if wanted.topic in (None, pending.topic):
                yield origin, pending


def _record(timer: Timer, blocks: Blocks, origin: Origin, position: LogPosition) -> Record | None:
    if stream_kind(origin_stream(origin)) == KIND_BLOCK:
        return blocks.record_of(origin)
    return timer.store.log.record_at(position)


def count_by(seen: Glance, step_ms: int) -> dict[int, int]:
    """Return the number of messages due in each step, by the start of the step. Steps are multiples of `step_ms`."""
    steps = seen.due_ms // step_ms
    if not len(steps):
        return {}
    first = int(steps.min())
    if int(steps.max()) - first > STEPS_PER_MESSAGE_MAX * len(steps):
        found, counts = np.unique(steps, return_counts=True)
    else:
        every = np.bincount(steps - first)
        found = np.flatnonzero(every)
        counts, found = every[found], found + first
    return dict(zip((found * step_ms).tolist(), counts.tolist(), strict=True))


def soonest(seen: Glance, before_ms: int, count: int | None) -> Glance:
    """Return the first `count` or all messages of a glance that are due before `before_ms`, by due time."""
    chosen = np.flatnonzero(seen.due_ms < before_ms)
    if count is not None and len(chosen) > count:
        limit_ms = np.partition(seen.due_ms[chosen], count - 1)[count - 1]
        chosen = chosen[seen.due_ms[chosen] <= limit_ms]
    chosen = chosen[np.lexsort((seen.origins[chosen], seen.due_ms[chosen]))][:count]
    return Glance(seen.origins[chosen], seen.positions[chosen], seen.due_ms[chosen], seen.next_place)


def _pending_units(
    timer: Timer, stream: Stream, start: int, stop: int
) -> tuple[Integers, Integers, Integers, Integers]:
    """Return queue offsets, log positions, sizes and tag codes of the pending messages."""
    parts: list[tuple[Integers, ...]] = [(_NOTHING, _NOTHING, _NOTHING, _NOTHING)]
    chunks = timer.queue_of(stream).chunks(QueueOffset(start)) if start < stop else ()
    for offsets, units in pending_chunks(timer.pending.done.of(stream), chunks, start, stop):
        columns = (units[name].astype(np.int64) for name in ("position", "size", "tag_code"))
        parts.append((offsets, *columns))
    joined = tuple(np.concatenate(column) for column in zip(*parts, strict=True))
    return joined[0], joined[1], joined[2], joined[3]


def _read_records(store: Store, positions: Integers, sizes: Integers, due_ms: Integers, topic_hash: Integers) -> int:
    """Fill in due times and hashes of real topics, from the front. Returns the number of positions done.

    A due time of 0 means that there is no record. The due times of messages in a level queue are there already. The
    function ends early when many records need the plain code, which takes fifty times as long.
    """
    at = plain = 0
    while at < len(positions) and plain < PLAIN_MAX:
        at += _read_many(store, positions[at:], sizes[at:], due_ms[at:], topic_hash[at:]) if jit.available() else 0
        if at < len(positions):
            record = store.log.record_at(LogPosition(int(positions[at])))
            if record is None:
                due_ms[at] = 0
            else:
                if due_ms[at] == 0:
                    due_ms[at] = due_of(record.message.properties, record.store_ms)
                topic_hash[at] = java_hash(record.message.properties.get(props.REAL_TOPIC, ""))
            at += 1
            plain += 1
    return at


def _read_many(store: Store, positions: Integers, sizes: Integers, due_ms: Integers, topic_hash: Integers) -> int:
    """Fill in the values of the records at the front that share one log file, as far as the kernel reads them.

    Returns the number of records read.
    """
    file_bytes = store.log.files.file_bytes
    base = int(positions[0]) // file_bytes * file_bytes
    count = int(np.searchsorted(positions, base + file_bytes))
    out_ms, store_ms, offsets, magic = _scratch[:, :count]
    file = store.log.files.file_at(base)
    return int(
        scan.read_parked(
            file.array, base, positions[:count], sizes[:count], due_ms[:count], out_ms, store_ms, offsets,
            topic_hash[:count], magic,
        )
    )  # fmt: skip
