"""A reader for a closed store, independent of the package's own readers: bytes to columns of integers.

The layout is Apache RocketMQ's (docs/formats). Invalid bytes raise an error and end the reading.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tests.crash.notes import KEY_DIGITS, body

TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
BLOCK_TOPIC: Final = "rmq_sys_wheelmq_block"
KIND_LEVEL, KIND_BLOCK, KIND_TIMER = 1, 2, 3
"""Kinds in the upper four bits of an origin.

The next twenty bits are the level or block, the last forty the index there.
"""
LEVELS_MS: Final = tuple(1000 * s for s in (1, 5, 10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200))
_MAGIC: Final = 0xDAA320A7
_BLANK_MAGIC: Final = 0xCBD43194
_HEAD: Final = struct.Struct(">IIIiiqqiq8sq8siqi")  # size .. body length
_UNIT: Final = np.dtype([("position", ">i8"), ("size", ">i4"), ("tag_code", ">i8")])
_BLOCK_UNIT: Final = np.dtype([("position", ">i8"), ("size", ">i4"), ("due_ms", ">i8"), ("flags", ">i4")])
_ORIGIN: Final = b"\x02__WMQ_ORIGIN\x01"
_ORIGIN_BYTES: Final = len(_ORIGIN) + 16 + 1

COLUMNS: Final = (
    "position",
    "size",
    "store_ms",
    "topic",  # row in `topics`
    "queue_id",
    "queue_offset",
    "number",  # of the message, from its unique key; -1 for a foreign key
    "origin",  # the message that it settles, from the property; -1 without
    "due_ms",  # __WMQ_DUE; without it in a level queue store time + the level's delay, else 0
    "parks",  # origin of the parked message or cancel; -1 for other records
    "cancels",  # the number that a cancel names; -1 for a key of no message, -2 if it is no cancel
    "real_queue",  # of a parked record; -1 without
    "real_topic",
    "body_is_ours",
)

Column = npt.NDArray[np.int64]


class BadBytes(ValueError):
    """The store has invalid bytes. The text gives the place and the reason."""


class Records:
    """Every record of a log (the commit log or a block's), in log order. `of("store_ms")` returns a column."""

    def __init__(self, folder: Path, key_prefix: str) -> None:
        self._prefix = key_prefix.encode()
        self.topics: list[str] = []
        self._topic_rows: dict[bytes, int] = {}
        self._columns: dict[str, Any] = {name: array("q") for name in COLUMNS}
        self.end = 0
        """Log position after the last record."""
        self._read(folder)
        self._columns = {name: np.frombuffer(column, np.int64) for name, column in self._columns.items()}

    def of(self, name: str) -> Column:
        found: Column = self._columns[name]
        return found

    def __len__(self) -> int:
        return len(self._columns["position"])

    def topic_row(self, name: str) -> int:
        """Return the row of a topic; -1 if no record has it."""
        return self._topic_rows.get(name.encode(), -1)

    def _read(self, folder: Path) -> None:
        files = sorted(path for path in folder.glob("*") if path.name.isdigit())
        if not files:
            raise BadBytes(f"{folder} holds no log")
        self.end = int(files[0].name)
        for path in files:
            if int(path.name) != self.end:
                return  # the log ended before this file, which was created ahead
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
                went_on = self._read_file(view)
            if not went_on:
                return

    def _read_file(self, view: mmap.mmap) -> bool:
        """Read the records of one file. Returns False if the log ends in it."""
        base, at, size = self.end, 0, len(view)
        while at + 8 <= size:
            record_bytes, magic = struct.unpack_from(">II", view, at)
            if magic == _BLANK_MAGIC and record_bytes == size - at:
                self.end = base + size
                return True
            if magic != _MAGIC or record_bytes > size - at:
                return False
            self._read_record(bytes(view[at : at + record_bytes]), base + at)
            at += record_bytes
            self.end = base + at
        return True

    def _read_record(self, raw: bytes, position: int) -> None:
        size, _, crc, queue_id, _, queue_offset, own, _, _, _, store_ms, _, _, _, body_bytes = _HEAD.unpack_from(raw)
        topic_at = _HEAD.size + body_bytes + 1
        topic_end = topic_at + raw[topic_at - 1]
        block = raw[topic_end + 2 :]
        if own != position or len(block) != int.from_bytes(raw[topic_end : topic_end + 2], "big"):
            raise BadBytes(f"the record at {position} says it is at {own}, of {size} bytes")
        payload = raw[_HEAD.size : _HEAD.size + body_bytes]
        if zlib.crc32(payload) & 0x7FFF_FFFF != crc:
            raise BadBytes(f"the body of the record at {position} has not the checksum it was stored with")
        block = b"\x02" + block
        number = self._number(_value(block, b"UNIQ_KEY"))
        target = _value(block, b"TIMER_DEL_UNIQKEY")
        origin = int(block[-17:-1], 16) if block[-_ORIGIN_BYTES:-17] == _ORIGIN else -1
        real_topic = _value(block, b"REAL_TOPIC")
        columns = self._columns
        columns["position"].append(position)
        columns["size"].append(size)
        columns["store_ms"].append(store_ms)
        columns["topic"].append(self._topic(raw[topic_at:topic_end]))
        columns["queue_id"].append(queue_id)
        columns["queue_offset"].append(queue_offset)
        columns["number"].append(number)
        columns["origin"].append(origin)
        topic = raw[topic_at:topic_end].decode()
        level_due_ms = store_ms + LEVELS_MS[queue_id] if topic == SCHEDULE_TOPIC else 0
        columns["due_ms"].append(int(_value(block, b"__WMQ_DUE") or level_due_ms))
        columns["parks"].append(_origin(topic, queue_id, queue_offset))
        columns["cancels"].append(self._number(target.partition(b"+")[2]) if target else -2)
        columns["real_queue"].append(int(_value(block, b"REAL_QID") or -1))
        columns["real_topic"].append(self._topic(real_topic) if real_topic else -1)
        columns["body_is_ours"].append(number >= 0 and payload == body(number, body_bytes))

    def _number(self, key: bytes) -> int:
        if not key.startswith(self._prefix):
            return -1
        try:
            return int(key[-KEY_DIGITS:], 16)
        except ValueError:
            return -1

    def _topic(self, name: bytes) -> int:
        row = self._topic_rows.get(name)
        if row is None:
            row = self._topic_rows[name] = len(self.topics)
            self.topics.append(name.decode())
        return row


def _origin(topic: str, queue_id: int, queue_offset: int) -> int:
    if topic == TIMER_TOPIC:
        return KIND_TIMER << 60 | queue_offset
    if topic == SCHEDULE_TOPIC:
        return KIND_LEVEL << 60 | queue_id + 1 << 40 | queue_offset
    return KIND_BLOCK << 60 | queue_id << 40 | queue_offset if topic == BLOCK_TOPIC else -1


def _value(block: bytes, name: bytes) -> bytes:
    """Return the value of a property in a block with a separator before its first; empty if it is missing."""
    at = block.find(b"\x02" + name + b"\x01")
    if at < 0:
        return b""
    at += len(name) + 2
    return block[at : block.index(b"\x02", at)]


def queues(root: Path) -> Iterator[tuple[str, int, npt.NDArray[Any]]]:
    """Yield each consume queue, read to its end: topic, queue id, units from queue offset 0 on."""
    for folder in sorted((root / "consumequeue").glob("*/*")):
        yield folder.parent.name, int(folder.name), _written(folder, _UNIT)


def _written(folder: Path, unit: np.dtype[Any], mark: str = "size") -> npt.NDArray[Any]:
    """Return the units of a queue. A unit was written if its size, or its `mark`, is not 0."""
    files = sorted(path for path in folder.iterdir() if path.name.isdigit())
    units = np.frombuffer(b"".join(path.read_bytes() for path in files), unit)
    written = (units["size"] != 0) | (units[mark] != 0)
    count = int(np.argmin(written)) if not written.all() else len(units)
    if written[count:].any():
        raise BadBytes(f"{folder}: units follow behind the first that was never written, at {count}")
    return units[:count]


class Block(NamedTuple):
    """The content of a block: the records of its log, and the units of its queue up to the first unwritten one."""

    name: str
    records: Records
    units: npt.NDArray[Any]


def blocks(root: Path, key_prefix: str) -> list[Block]:
    """Return each block with a record."""
    found = []
    for folder in sorted((root / "scheduledtempdata").glob("*")):
        if not any((folder / "log").glob("*")):
            continue  # it is empty
        records = Records(folder / "log", key_prefix)
        if len(records):
            found.append(Block(folder.name, records, _written(folder / "queue", _BLOCK_UNIT, "flags")))
    return found
