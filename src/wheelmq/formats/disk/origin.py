"""Origins: the name of one parked message, for ever.

An origin is 64 bits: kind (4), stream (20), index (40). For the timer queue the stream is 0 and the index is the
queue offset in rmq_sys_wheel_timer; for a level queue the stream is the level, and the index the queue offset in its
queue of SCHEDULE_TOPIC_XXXX. A record that settles a parked message (its release, roll, re-park, cancel)
carries the origin as its very last property, so that a scan of the log finds it at a fixed distance from the end:

    ... | __WMQ_ORIGIN \\x01 <16 upper-case hex digits> \\x02 | end of record
"""

from __future__ import annotations

from typing import Final, NewType

import numpy as np
import numpy.typing as npt

from wheelmq.formats.disk.properties import WMQ_ORIGIN

Origin = NewType("Origin", int)

NO_ORIGIN: Final = Origin(0)

KIND_LEVEL: Final = 1
KIND_TIMER: Final = 3
INDEX_BITS: Final = 40
STREAM_BITS: Final = 20

ORIGIN_PROPERTY_BYTES: Final = len(WMQ_ORIGIN) + 1 + 16 + 1


def timer_origin(queue_offset: int) -> Origin:
    """The origin of the message at `queue_offset` of the timer queue."""
    assert 0 <= queue_offset < 1 << INDEX_BITS
    return Origin(KIND_TIMER << (STREAM_BITS + INDEX_BITS) | queue_offset)


def level_origin(level: int, queue_offset: int) -> Origin:
    """The origin of the message at `queue_offset` of the queue of `level`."""
    assert 0 < level < 1 << STREAM_BITS and 0 <= queue_offset < 1 << INDEX_BITS
    return Origin((KIND_LEVEL << STREAM_BITS | level) << INDEX_BITS | queue_offset)


def are_of(origins: npt.NDArray[np.int64], kind: int, stream: int = 0) -> npt.NDArray[np.bool_]:
    """Which of `origins` are of a kind and a stream."""
    found: npt.NDArray[np.bool_] = origins >> INDEX_BITS == kind << STREAM_BITS | stream
    return found


def indices_of(origins: npt.NDArray[np.int64], kind: int, stream: int = 0) -> npt.NDArray[np.int64]:
    """The index parts of those of `origins` that are of a kind and a stream."""
    return origins[are_of(origins, kind, stream)] & ((1 << INDEX_BITS) - 1)


def origin_index(origin: Origin) -> int:
    """The index part: for the timer queue, the queue offset."""
    return origin & ((1 << INDEX_BITS) - 1)


def origin_stream(origin: Origin) -> tuple[int, int]:
    """Kind and stream."""
    return origin >> (STREAM_BITS + INDEX_BITS), origin >> INDEX_BITS & ((1 << STREAM_BITS) - 1)


def origin_text(origin: Origin) -> str:
    """The value of the property."""
    return f"{origin:016X}"


def parse_origin(text: str) -> Origin | None:
    """The origin in a property's value; None when it is none."""
    if len(text) != 16 or not all(c in "0123456789ABCDEF" for c in text):
        return None
    return Origin(int(text, 16))
