"""`snapshot`: the result of a scan of the log up to a position, so that a start scans only the rest (ours).

    +------+----------------------+------------------+--------------------+------------------+------------------+
    | head | for each stream of   | 8 bytes for each | for each queue: 24 | 12 bytes for     | 12 bytes for     |
    |      | origins its done     | damaged record   | bytes and its      | each file of the | each block that  |
    |      | bits                 |                  | topic              | timer log        | is deleted       |
    +------+----------------------+------------------+--------------------+------------------+------------------+

The log holds all of these facts too. A change of the format takes another magic. A start ignores a snapshot that it
cannot read, and a new one replaces it.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple, Self

import numpy as np

from wheelmq.formats.disk.done_bits import StreamBits, pack_streams, unpack_streams
from wheelmq.formats.disk.index import IndexMark
from wheelmq.formats.field import Field, Layout
from wheelmq.formats.units import LogPosition, Millis, QueueOffset

SNAPSHOT: Final = Layout(
    "snapshot",
    Field("magic", "int32", "0x574D5158, WMQX"),
    Field("crc", "uint32", "crc32 of all later bytes"),
    Field("log_position", "int64", "P: all of this holds for the log before"),
    Field("record_position", "int64", "log position of the last record before P that has a queue unit"),
    Field("record_crc", "uint32", "crc32 of that record, which identifies the log"),
    Field("queues", "int32", "number of queues that follow"),
    Field("store_ms", "int64", "store time of the last record before P"),
    Field("damaged", "int64", "number of records before P that are known to be damaged"),
    Field("streams", "int64", "number of streams whose done bits follow"),
    Field("index_file", "int64", "name of the last file of the message index; 0 when it is not known"),
    Field("index_count", "int64", "number of the next unit in it: the earlier units are on disk"),
    Field("index_position", "int64", "log position before which each record is in the message index"),
    Field("timer_queue_offset", "int64", "E: each lower queue offset of the timer queue has its unit before T"),
    Field("timer_log_position", "int64", "T: timer log position before which the sums of its files hold"),
    Field("timer_log_files", "int64", "number of timer log files that follow; 0 when E and T are not known"),
    Field("blocks_gone", "int64", "number of deleted blocks that follow"),
)
SNAPSHOT_QUEUE: Final = Layout(
    "queue in a snapshot",
    Field("end_queue_offset", "int64", "end of the queue"),
    Field("waiting", "int64", "messages for this queue that wait in the timer queue and in level queues"),
    Field("queue_id", "int32", "its id"),
    Field("topic_bytes", "int32", "length of its topic, which follows"),
)
SNAPSHOT_TIMER_FILE: Final = Layout(
    "timer log file in a snapshot",
    Field("start", "int64", "timer log position of its first byte"),
    Field("crc", "uint32", "crc32 of bytes 16 to 51 of each of its units before T"),
)
SNAPSHOT_BLOCK: Final = Layout(
    "block in a snapshot",
    Field("number", "int32", "number of a deleted block"),
    Field("log_position", "int64", "the log names its messages only before this position"),
)
SNAPSHOT_MAGIC: Final = 0x574D5158
SHORT_SUMS_MAGIC: Final = 0x574D5157
"""WMQW, of an older WheelMQ. A start does not use its sums of the timer log: they cover bytes 16 to 39 of a unit."""


class SnapshotDamaged(ValueError):
    """The bytes are no snapshot, or only part of one."""


class IndexedTimers(NamedTuple):
    """The part of the timer queue that is in a part of the timer log. Both are on disk."""

    queue_offset: QueueOffset
    """E: all lower queue offsets have their units before T."""
    log_position: int
    """T."""
    sums: dict[int, int]
    """The checksum of each file's units before T. The key is the timer log position of the file's first byte."""


class Snapshot(NamedTuple):
    """The state of the log before `position`."""

    position: LogPosition
    record_position: LogPosition
    record_crc: int
    store_ms: Millis
    damaged: tuple[LogPosition, ...]
    """Positions of records with a damaged body."""
    queue_ends: dict[tuple[str, int], QueueOffset]
    """The end of every queue that has units, by topic and queue id."""
    done: tuple[StreamBits, ...]
    message_index: IndexMark | None = None
    """The part of the message index that is on disk, or None if it is unknown."""
    waiting: dict[tuple[str, int], int] = {}
    """Number of pending messages of the timer queue and of level queues, by topic and queue id of the real queue."""
    timers: IndexedTimers | None = None
    """None if it is unknown."""
    blocks_gone: dict[int, LogPosition] = {}
    """The log position before which the log may name messages of a deleted block, by the number of the block."""

    def encode(self) -> bytes:
        parts = [pack_streams(self.done), np.array(self.damaged, ">i8").tobytes()]
        queues = dict.fromkeys((*self.queue_ends, *self.waiting))
        for topic, queue_id in queues:
            name, key = topic.encode(), (topic, queue_id)
            end, waiting = self.queue_ends.get(key, 0), self.waiting.get(key, 0)
            parts += (SNAPSHOT_QUEUE.pack(end, waiting, queue_id, len(name)), name)
        timers = self.timers or IndexedTimers(QueueOffset(0), 0, {})
        parts += (SNAPSHOT_TIMER_FILE.pack(start, crc) for start, crc in timers.sums.items())
        parts += (SNAPSHOT_BLOCK.pack(number, position) for number, position in self.blocks_gone.items())
        counts = (len(queues), self.store_ms, len(self.damaged), len(self.done))
        known = self.message_index
        index = (0, 0, 0) if known is None else (int(known.name), known.next_unit, known.position)
        more = (*counts, *index, timers.queue_offset, timers.log_position, len(timers.sums), len(self.blocks_gone))
        head = SNAPSHOT.pack(0, 0, self.position, self.record_position, self.record_crc, *more)
        body = head[_CHECKED_FROM:] + b"".join(parts)
        return struct.pack(">iI", SNAPSHOT_MAGIC, zlib.crc32(body)) + body

    @classmethod
    def decode(cls, raw: bytes) -> Self:
        """Return the snapshot in `raw`. Raises SnapshotDamaged."""
        if len(raw) < SNAPSHOT.size:
            raise SnapshotDamaged(f"{len(raw)} bytes are too few for a snapshot")
        head = SNAPSHOT.unpack(raw)
        if head["magic"] not in (SNAPSHOT_MAGIC, SHORT_SUMS_MAGIC) or head["crc"] != zlib.crc32(
            memoryview(raw)[_CHECKED_FROM:]
        ):
            raise SnapshotDamaged("its checksum is wrong")
        done, at = unpack_streams(raw, SNAPSHOT.size, head["streams"])
        damaged = np.frombuffer(raw, ">i8", head["damaged"], at).tolist()
        at += 8 * len(damaged)
        ends: dict[tuple[str, int], QueueOffset] = {}
        waiting: dict[tuple[str, int], int] = {}
        for _ in range(head["queues"]):
            queue = SNAPSHOT_QUEUE.unpack(raw, at)
            at += SNAPSHOT_QUEUE.size + queue["topic_bytes"]
            key = raw[at - queue["topic_bytes"] : at].decode(), queue["queue_id"]
            if queue["end_queue_offset"]:
                ends[key] = queue["end_queue_offset"]
            if queue["waiting"]:
                waiting[key] = queue["waiting"]
        sums: dict[int, int] = {}
        for _ in range(head["timer_log_files"]):
            file = SNAPSHOT_TIMER_FILE.unpack(raw, at)
            at += SNAPSHOT_TIMER_FILE.size
            sums[file["start"]] = file["crc"]
        blocks_gone: dict[int, LogPosition] = {}
        for _ in range(head["blocks_gone"]):
            block = SNAPSHOT_BLOCK.unpack(raw, at)
            at += SNAPSHOT_BLOCK.size
            blocks_gone[block["number"]] = LogPosition(block["log_position"])
        timers = IndexedTimers(head["timer_queue_offset"], head["timer_log_position"], sums)
        return cls(
            head["log_position"],
            head["record_position"],
            head["record_crc"],
            head["store_ms"],
            tuple(damaged),
            ends,
            done,
            _index_mark(head),
            waiting,
            timers if sums and head["magic"] == SNAPSHOT_MAGIC else None,
            blocks_gone,
        )


def _index_mark(head: dict[str, int]) -> IndexMark | None:
    if not head["index_file"]:
        return None
    return IndexMark(f"{head['index_file']:017d}", head["index_count"], LogPosition(head["index_position"]))


_CHECKED_FROM: Final = SNAPSHOT.position_of("log_position")
