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
from wheelmq.formats.disk.origin import INDEX_MASK, Origin, Stream, is_level, origin_of
from wheelmq.formats.disk.parked import due_of
from wheelmq.formats.disk.queue_unit import BLANK_SIZE
from wheelmq.formats.java import java_hash
from wheelmq.formats.kernels import jit, scan
from wheelmq.formats.units import LogPosition, Millis, QueueOffset
from wheelmq.store.store import Store

LOOKED_AT_MAX: Final = 5000
"""Places that one glance looks at: a listing of millions takes many, none of them long."""

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
    """Pending messages of one queue, in its order."""

    origins: Integers
    positions: Integers
    due_ms: Integers
    next_place: Origin
    """Where the next glance begins; `END` when this was the last."""


END: Final = Origin(1 << 62)
"""Behind all places."""


def glance(store: Store, timer: Timer, place: int, wanted: Wanted) -> Glance:
    """What is pending at `place` and behind it, as far as one glance goes.

    Places are origins, and 0 is the first. Topics whose names have one Java hash are not told apart.
    """
    stream, first = _begin(timer, place)
    if stream is None:
        nothing = np.empty(0, np.int64)
        return Glance(nothing, nothing, nothing, END)
    queue = timer.queue_of(stream)
    start = max(first, queue.start, timer.done.of(stream).floor)
    stop = min(start + LOOKED_AT_MAX, queue.end)
    offsets, positions, sizes, tags = _pending_units(timer, stream, start, stop)
    due_ms, topic_hash = np.zeros(len(offsets), np.int64), np.zeros(len(offsets), np.int64)
    if is_level(stream):
        now_ms = store.clock.now_ms()
        due_ms[:] = np.where(tags > now_ms + timer.levels.of(stream).delay_ms, now_ms, tags)
    read = _read_records(store, positions, sizes, due_ms, topic_hash)
    if read < len(offsets):
        stop = int(offsets[read])
        offsets, positions, due_ms, topic_hash = offsets[:read], positions[:read], due_ms[:read], topic_hash[:read]
    mine = (due_ms >= max(wanted.from_ms, 1)) & (due_ms < wanted.to_ms)
    if wanted.topic is not None:
        mine &= topic_hash == java_hash(wanted.topic)
    is_through = max(start, stop) >= queue.end
    next_place = _behind(timer, stream) if is_through else origin_of(stream, max(start, stop))
    return Glance(origin_of(stream, 0) + offsets[mine], positions[mine], due_ms[mine], next_place)


def _begin(timer: Timer, place: int) -> tuple[Stream | None, int]:
    """The stream in which to look from `place` on, and the index there; None behind the last."""
    for stream in sorted(timer.ends()):
        if place < origin_of(stream, INDEX_MASK):
            return stream, max(0, place - origin_of(stream, 0))
    return None, 0


def _behind(timer: Timer, stream: Stream) -> Origin:
    """The first place behind a stream."""
    return min((origin_of(other, 0) for other in timer.ends() if other > stream), default=END)


def lines(store: Store, timer: Timer, seen: Glance, wanted: Wanted) -> Iterator[tuple[Origin, Pending]]:
    """What a listing shows of the messages in a glance, each with its place."""
    for origin, position in zip(seen.origins.tolist(), seen.positions.tolist(), strict=True):
        record = store.log.record_at(LogPosition(position))
        if record is not None:
            pending = describe(record, timer.state_of(origin), timer.due_of(origin))
            if wanted.topic in (None, pending.topic):
                yield origin, pending


def count_by(seen: Glance, step_ms: int) -> dict[int, int]:
    """How many are due in each step of time, by when it begins; steps are multiples of `step_ms`."""
    steps, counts = np.unique(seen.due_ms // step_ms * step_ms, return_counts=True)
    return dict(zip(steps.tolist(), counts.tolist(), strict=True))


def _pending_units(
    timer: Timer, stream: Stream, start: int, stop: int
) -> tuple[Integers, Integers, Integers, Integers]:
    """Queue offsets, log positions, sizes and tag codes of what is not settled."""
    nothing = np.empty(0, np.int64)
    parts = [(nothing, nothing, nothing, nothing)]
    offset = start
    while offset < stop:
        units = timer.queue_of(stream).read(QueueOffset(offset), stop - offset)
        offsets = np.arange(offset, offset + len(units))
        mine = ~timer.done.of(stream).get(offsets) & (units["size"] != BLANK_SIZE)
        columns = (units[name][mine].astype(np.int64) for name in ("position", "size", "tag_code"))
        parts.append((offsets[mine], *columns))
        offset += len(units)
    joined = tuple(np.concatenate(column) for column in zip(*parts, strict=True))
    return joined[0], joined[1], joined[2], joined[3]


def _read_records(store: Store, positions: Integers, sizes: Integers, due_ms: Integers, topic_hash: Integers) -> int:
    """Fill in due times, 0 for what is no record, and the hashes of real topics; how many, from the front.

    The due times of what is in a level queue are there already.

    It ends early when many records are for the plain code, which takes fifty times as long.
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
