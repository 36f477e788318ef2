"""Find the pending messages of a consume queue by due time and topic: of the timer queue or a level's queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from wheelmq.delay.api import Found, Integers, Wanted
from wheelmq.delay.done import IndexBits
from wheelmq.delay.pending_scan import pending_chunks
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.parked import due_of
from wheelmq.formats.java import java_hash
from wheelmq.formats.kernels import jit, scan
from wheelmq.formats.units import LogPosition, QueueOffset
from wheelmq.store.consume_queue import ConsumeQueue
from wheelmq.store.store import Store

LOOKED_AT_MAX: Final = 5000
"""Records that one page reads. A listing of millions of messages takes many short pages."""

PLAIN_MAX: Final = 100
"""Records that a page reads with the plain code."""

_scratch: Final = np.empty((4, LOOKED_AT_MAX), np.int64)
"""Columns that the kernel fills and a page does not need."""

Known = Callable[[Integers, Integers], tuple[Integers, Integers, Integers]]
"""Takes queue offsets and tag codes of messages.

Returns their due times, the hashes of their real topics, and the places of the messages whose records must be read.
"""


def find_in_queue(
    store: Store, queue: ConsumeQueue, done: IndexBits, first: int, stop: int, wanted: Wanted, known: Known
) -> Found:
    """Find the wanted pending messages of `queue` from index `first` to before `stop`."""
    offsets, positions, sizes, tags = _pending_units(queue, done, first, stop)
    due_ms, topic_hash, unread = known(offsets, tags)
    some = unread[:LOOKED_AT_MAX]
    read_ms, read_hash = due_ms[some], topic_hash[some]
    read = _read_records(store, positions[some], sizes[some], read_ms, read_hash)
    due_ms[some], topic_hash[some] = read_ms, read_hash
    if read < len(unread):
        cut = int(unread[read])
        stop = int(offsets[cut])
        offsets, due_ms, topic_hash = offsets[:cut], due_ms[:cut], topic_hash[:cut]
    mine = (due_ms >= max(wanted.from_ms, 1)) & (due_ms < wanted.to_ms)
    if wanted.topic is not None:
        mine &= topic_hash == java_hash(wanted.topic)
    return Found(offsets[mine], due_ms[mine], max(first, stop))


def _pending_units(queue: ConsumeQueue, done: IndexBits, first: int, stop: int) -> tuple[Integers, ...]:
    """Return queue offsets, log positions, sizes and tag codes of the pending messages."""
    nothing = np.empty(0, np.int64)
    parts: list[tuple[Integers, ...]] = [(nothing, nothing, nothing, nothing)]
    chunks = queue.chunks(QueueOffset(first)) if first < stop else ()
    for offsets, units in pending_chunks(done, chunks, first, stop):
        parts.append((offsets, *(units[name].astype(np.int64) for name in ("position", "size", "tag_code"))))
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))


def _read_records(store: Store, positions: Integers, sizes: Integers, due_ms: Integers, topic_hash: Integers) -> int:
    """Fill in due times and hashes of real topics, from the front. Returns the number of positions done.

    A due time of 0 means no record. Messages of a level queue have due times already. Ends early when many records need
    the plain code, which takes fifty times as long.
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
    """Fill in the values of the records at the front that share one log file. Returns the number of records read."""
    file_bytes = store.log.files.file_bytes
    base = int(positions[0]) // file_bytes * file_bytes
    count = int(np.searchsorted(positions, base + file_bytes))
    out_ms, store_ms, offsets, magic = _scratch[:, :count]
    file = store.log.files.file_at(base)
    return int(
        scan.read_parked(
            file.read_array, positions[:count] - base, positions[:count], sizes[:count], due_ms[:count], out_ms,
            store_ms, offsets, topic_hash[:count], magic,
        )
    )  # fmt: skip
