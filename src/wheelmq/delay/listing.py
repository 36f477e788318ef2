"""Looking over what is pending, many messages at a time: which are due when, and for which topic.

A glance reads the due time and the hash of the topic of each record with a kernel; what a listing shows of a message
is read from its record only when it is to be shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wheelmq.delay.pending import Pending, describe
from wheelmq.delay.timer.timer import Timer
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.origin import TIMER_STREAM, timer_origin
from wheelmq.formats.disk.parked import due_of
from wheelmq.formats.disk.queue_unit import BLANK_SIZE
from wheelmq.formats.java import java_hash
from wheelmq.formats.kernels import jit, scan
from wheelmq.formats.units import LogPosition, Millis, QueueOffset
from wheelmq.store.store import Store

LOOKED_AT_MAX: Final = 5000
"""Queue offsets that one glance looks at: a listing of millions takes many, none of them long."""

PLAIN_MAX: Final = 100
"""Records that a glance reads with the plain code."""

Integers = npt.NDArray[np.int64]


_scratch: Final = np.empty((4, LOOKED_AT_MAX), np.int64)
"""What the kernel reads and a glance does not need."""


class Wanted(NamedTuple):
    """What is asked for: messages of one topic or of all, due from `from_ms` to before `to_ms`."""

    topic: str | None = None
    from_ms: Millis = Millis(0)
    to_ms: Millis = Millis((1 << 63) - 1)


class Glance(NamedTuple):
    """Pending messages, in queue order."""

    offsets: Integers
    positions: Integers
    due_ms: Integers
    next_offset: QueueOffset
    """Where the next glance begins; the end of the timer queue when this was the last."""


def glance(store: Store, timer: Timer, offset: QueueOffset, wanted: Wanted) -> Glance:
    """What is pending at queue offset `offset` and behind it, as far as one glance goes.

    Topics whose names have one Java hash are not told apart.
    """
    start = max(offset, timer.queue.start, timer.done.of(TIMER_STREAM).floor)
    stop = min(start + LOOKED_AT_MAX, timer.queue.end)
    offsets, positions, sizes = _pending_units(timer, start, stop)
    due_ms, topic_hash = np.zeros(len(offsets), np.int64), np.zeros(len(offsets), np.int64)
    read = _read_records(store, positions, sizes, due_ms, topic_hash)
    if read < len(offsets):
        stop = int(offsets[read])
        offsets, positions, due_ms, topic_hash = offsets[:read], positions[:read], due_ms[:read], topic_hash[:read]
    mine = (due_ms >= max(wanted.from_ms, 1)) & (due_ms < wanted.to_ms)
    if wanted.topic is not None:
        mine &= topic_hash == java_hash(wanted.topic)
    return Glance(offsets[mine], positions[mine], due_ms[mine], QueueOffset(max(start, stop)))


def lines(store: Store, timer: Timer, seen: Glance, wanted: Wanted) -> Iterator[Pending]:
    """What a listing shows of the messages in a glance."""
    for offset, position in zip(seen.offsets.tolist(), seen.positions.tolist(), strict=True):
        record = store.log.record_at(LogPosition(position))
        if record is not None:
            pending = describe(record, timer.state_of(timer_origin(offset)))
            if wanted.topic in (None, pending.topic):
                yield pending


def count_by(seen: Glance, step_ms: int) -> dict[int, int]:
    """How many are due in each step of time, by when it begins; steps are multiples of `step_ms`."""
    steps, counts = np.unique(seen.due_ms // step_ms * step_ms, return_counts=True)
    return dict(zip(steps.tolist(), counts.tolist(), strict=True))


def _pending_units(timer: Timer, start: int, stop: int) -> tuple[Integers, Integers, Integers]:
    """Queue offsets, log positions and sizes of what is not settled."""
    parts: list[tuple[Integers, Integers, Integers]] = []
    offset = start
    while offset < stop:
        units = timer.queue.read(QueueOffset(offset), stop - offset)
        offsets = np.arange(offset, offset + len(units))
        mine = ~timer.done.of(TIMER_STREAM).get(offsets) & (units["size"] != BLANK_SIZE)
        parts.append((offsets[mine], units["position"][mine].astype(np.int64), units["size"][mine].astype(np.int64)))
        offset += len(units)
    nothing = np.empty(0, np.int64)
    columns = zip(*parts, strict=True) if parts else ((nothing,),) * 3
    offsets, positions, sizes = (np.concatenate(column) for column in columns)
    return offsets, positions, sizes


def _read_records(store: Store, positions: Integers, sizes: Integers, due_ms: Integers, topic_hash: Integers) -> int:
    """Fill in due times, 0 for what is no record, and the hashes of real topics; how many, from the front.

    It ends early when many records are for the plain code, which takes fifty times as long.
    """
    at = plain = 0
    while at < len(positions) and plain < PLAIN_MAX:
        at += _read_many(store, positions[at:], sizes[at:], due_ms[at:], topic_hash[at:]) if jit.available() else 0
        if at < len(positions):
            record = store.log.record_at(LogPosition(int(positions[at])))
            if record is not None:
                due_ms[at] = due_of(record.message.properties, record.store_ms)
                topic_hash[at] = java_hash(record.message.properties.get(props.REAL_TOPIC, ""))
            at += 1
            plain += 1
    return at


def _read_many(store: Store, positions: Integers, sizes: Integers, due_ms: Integers, topic_hash: Integers) -> int:
    """Fill in those at the front that stand in one log file, as far as the kernel reads them; how many."""
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
