"""Origins: the permanent number of one parked message.

An origin has 64 bits: kind (4), stream (20), index (40).

    queue           stream            index
    timer queue     0                 queue offset in rmq_sys_wheel_timer
    level queue     level             queue offset in its queue of SCHEDULE_TOPIC_XXXX
    block           its number        index of the unit

A record that settles a parked message (its release, roll, re-park, cancel) carries the origin as its very last
property. A scan of the log therefore finds the origin at a fixed distance from the end:

    ... | __WMQ_ORIGIN \\x01 <16 upper-case hex digits> \\x02 | end of record
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NewType

import numpy as np
import numpy.typing as npt

from wheelmq.formats.disk.properties import WMQ_ORIGIN

Origin = NewType("Origin", int)
Stream = NewType("Stream", int)
"""Kind and stream together, the upper 24 bits of an origin. All messages of one stream are in one queue."""

NO_ORIGIN: Final = Origin(0)

KIND_LEVEL: Final = 1
KIND_BLOCK: Final = 2
KIND_TIMER: Final = 3
INDEX_BITS: Final = 40
STREAM_BITS: Final = 20
KIND_SHIFT: Final = INDEX_BITS + STREAM_BITS
"""The first bit of the kind."""
LEVELS_MAX: Final = (1 << STREAM_BITS) - 1
INDEX_MASK: Final = (1 << INDEX_BITS) - 1

TIMER_STREAM: Final = Stream(KIND_TIMER << STREAM_BITS)

ORIGIN_PROPERTY_BYTES: Final = len(WMQ_ORIGIN) + 1 + 16 + 1


def level_stream(level: int) -> Stream:
    assert 0 < level <= LEVELS_MAX
    return Stream(KIND_LEVEL << STREAM_BITS | level)


def block_stream(number: int) -> Stream:
    assert 0 < number < 1 << STREAM_BITS
    return Stream(KIND_BLOCK << STREAM_BITS | number)


def origin_of(stream: Stream, index: int) -> Origin:
    assert 0 <= index < 1 << INDEX_BITS
    return Origin(stream << INDEX_BITS | index)


def timer_origin(queue_offset: int) -> Origin:
    return origin_of(TIMER_STREAM, queue_offset)


def level_origin(level: int, queue_offset: int) -> Origin:
    return origin_of(level_stream(level), queue_offset)


def origin_stream(origin: Origin) -> Stream:
    return Stream(origin >> INDEX_BITS)


def origin_index(origin: Origin) -> int:
    """Return the index part: for the timer queue, the queue offset."""
    return origin & INDEX_MASK


def stream_kind(stream: Stream) -> int:
    return stream >> STREAM_BITS


def stream_number(stream: Stream) -> int:
    """Return the number of a stream within its kind: a level or the number of a block."""
    return stream & ((1 << STREAM_BITS) - 1)


def is_level(stream: Stream) -> bool:
    return stream_kind(stream) == KIND_LEVEL


def by_stream(origins: npt.NDArray[np.int64]) -> Iterator[tuple[Stream, slice | npt.NDArray[np.intp]]]:
    """Yield each stream in `origins` with the indexes of its rows, as a slice or an array."""
    if not len(origins):
        return
    streams = origins >> INDEX_BITS
    if (streams == streams[0]).all():
        yield Stream(int(streams[0])), slice(None)
        return
    for stream in np.unique(streams).tolist():
        yield Stream(stream), np.flatnonzero(streams == stream)


def origin_text(origin: Origin) -> str:
    return f"{origin:016X}"


def parse_origin(text: str) -> Origin | None:
    if len(text) != 16 or not all(c in "0123456789ABCDEF" for c in text):
        return None
    origin = Origin(int(text, 16))
    return origin if KIND_LEVEL <= stream_kind(origin_stream(origin)) <= KIND_TIMER else None
