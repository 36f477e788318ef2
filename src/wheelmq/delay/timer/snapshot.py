"""The snapshot of done bits: the messages that were settled when a store of Apache RocketMQ was adopted.

Apache's deliveries leave no origin in the log, as WheelMQ's do. So each adoption of a store writes a snapshot.
"""

from __future__ import annotations

import errno
import zlib
from collections.abc import Mapping

from wheelmq.delay.done import DoneBits
from wheelmq.formats.disk.done_bits import StreamBits, pack_streams, unpack_streams
from wheelmq.formats.disk.origin import Stream
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.disk.timer import TIMER_DONE, TIMER_DONE_MAGIC
from wheelmq.formats.units import LogPosition
from wheelmq.system.disk import Disk


def load_done(disk: Disk, paths: StorePaths) -> tuple[LogPosition, tuple[StreamBits, ...]]:
    """Return the snapshot's log position and its settled messages; 0 and nothing without one. Raises OSError."""
    raw = disk.read(paths.timer_done)
    if raw is None:
        return LogPosition(0), ()
    found = decode_done(raw)
    if found is not None:
        return found
    raise OSError(
        errno.EIO,
        "this is not a snapshot of done bits: put a good copy in its place, or remove it; without it, messages "
        "that Apache RocketMQ had delivered are delivered again",
        str(paths.timer_done),
    )


def decode_done(raw: bytes) -> tuple[LogPosition, tuple[StreamBits, ...]] | None:
    """Return the log position and the settled messages in the bytes of a snapshot; None if they are no snapshot."""
    if len(raw) < TIMER_DONE.size:
        return None
    head = TIMER_DONE.unpack(raw)
    body = raw[TIMER_DONE.position_of("log_position") :]
    if head["magic"] != TIMER_DONE_MAGIC or head["crc"] != zlib.crc32(body):
        return None
    return LogPosition(head["log_position"]), unpack_streams(raw, TIMER_DONE.size, head["streams"])[0]


def save_done(disk: Disk, paths: StorePaths, done: DoneBits, ends: Mapping[Stream, int], position: LogPosition) -> None:
    """Write the done bits of the streams in `ends`, each to its end. They hold for the log up to `position`."""
    streams = done.packed(ends)
    bits = pack_streams(streams)
    body = TIMER_DONE.pack(0, 0, position, len(streams))[TIMER_DONE.position_of("log_position") :] + bits
    head = TIMER_DONE.pack(TIMER_DONE_MAGIC, zlib.crc32(body), position, len(streams))
    disk.replace(paths.timer_done, head + bits)
