"""The snapshot of done bits: what was settled when a store of Apache RocketMQ was adopted.

What Apache delivered has left no origin in the log, so a walk over the log cannot tell it again, and timercheck is ours
from then on. Everything that we settle stands in the log: so it is written when a store is adopted, and again when
Apache had it in between.
"""

from __future__ import annotations

import errno
import zlib

import numpy as np

from wheelmq.delay.done import IndexBits, Indices
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.disk.timer import TIMER_DONE, TIMER_DONE_MAGIC
from wheelmq.formats.units import LogPosition, QueueOffset
from wheelmq.system.disk import Disk

_NOTHING = (LogPosition(0), np.empty(0, np.int64))


def load_done(disk: Disk, paths: StorePaths) -> tuple[LogPosition, Indices]:
    """The log position of the snapshot and what is settled in it; 0 and nothing without one. Raises OSError."""
    raw = disk.read(paths.timer_done)
    if raw is None:
        return _NOTHING
    if len(raw) >= TIMER_DONE.size:
        head = TIMER_DONE.unpack(raw)
        body = raw[TIMER_DONE.position_of("log_position") :]
        if head["magic"] == TIMER_DONE_MAGIC and head["crc"] == zlib.crc32(body):
            bits = np.unpackbits(np.frombuffer(raw, np.uint8, offset=TIMER_DONE.size), bitorder="little")
            return LogPosition(head["log_position"]), np.flatnonzero(bits) + head["first_queue_offset"]
    raise OSError(
        errno.EIO,
        "this is no snapshot of done bits: put a good copy in its place, or remove it; then what Apache RocketMQ had "
        "delivered is delivered again",
        str(paths.timer_done),
    )


def save_done(
    disk: Disk, paths: StorePaths, done: IndexBits, first: QueueOffset, end: QueueOffset, position: LogPosition
) -> None:
    """Write the bits of the queue offsets from `first` to `end`, which hold for the log up to `position`."""
    bits = np.packbits(done.get(np.arange(first, end)), bitorder="little").tobytes()
    body = TIMER_DONE.pack(0, 0, position, first)[TIMER_DONE.position_of("log_position") :] + bits
    head = TIMER_DONE.pack(TIMER_DONE_MAGIC, zlib.crc32(body), position, first)
    disk.replace(paths.timer_done, head + bits)
