"""The commit log record: Apache RocketMQ's bytes (RocketMQ: MessageExtEncoder).

```
 0        4        8        12       16       20                28                36       40
 | size   | magic  |bodyCRC |queueId | flag   | queue offset    | log position    | sysFlag| born ms ...
48                56                64                72       76                84       88
 | born host+port | store ms        |store host+port |reconsume| prepared pos.   |body len| body ...
 ... | topic length 1 (V2: 2) | topic | properties length 2 | properties |
```

A host has 4 + 4 bytes. It has 16 + 4 if sysFlag says IPv6 (bit 0x10 born, 0x20 store), and all later fields move.
A file ends with a blank: its size in bytes and BLANK_MAGIC, written where a record did not fit.

Version rule: the layout is Apache's. We never add a field, only properties.
"""

from __future__ import annotations

import ipaddress
import struct
import zlib
from typing import Final, NamedTuple

import msgspec

from wheelmq.formats.buffer import Buffer
from wheelmq.formats.disk import properties as props
from wheelmq.formats.units import LogPosition, Millis, QueueOffset

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
MAGIC_PREFIX: Final = b"\xda\xa3\x20"
"""The first bytes of both magics."""
MAGIC_AT: Final = 4
SEARCHED_BYTES: Final = 1 << 20
"""Number of bytes of a log file that one step searches for a record."""
BLANK_MAGIC: Final = 0xCBD43194
BLANK_BYTES: Final = 8
"""Bytes that must stay free after a record in its file, for the blank."""

TOPIC_BYTES_MAX: Final = 127
"""A longer topic (only retry and dead-letter topics may be) needs V2's two length bytes."""

SECTOR_BYTES: Final = 512
"""The smallest unit that a disk writes whole."""

SYS_COMPRESSED: Final = 0x1
SYS_MULTI_TAGS: Final = 0x2
SYS_TRANSACTION: Final = 0xC
SYS_TRANSACTION_COMMIT: Final = 0x8
SYS_BORN_HOST_V6: Final = 0x10
SYS_STORE_HOST_V6: Final = 0x20
SYS_COMPRESSION_KIND: Final = 0x700
"""The bits with the kind of compression, for `SYS_COMPRESSED`."""

FIXED_BYTES_V4: Final = 88
"""Bytes before the body if both hosts are IPv4, as in nearly all records."""

RECORD_BYTES_MIN: Final = FIXED_BYTES_V4 + 3
"""The size of the smallest record, and so the least log space of each message of a queue."""

OFFSETS_LOST_MAX: Final = 1 << 24
"""The largest number of released messages that a power cut can remove from a block's log, because they were not on
disk. No later message gets their indexes."""

_BEFORE_HOSTS = struct.Struct(">IIIiiqqiq")  # size .. born ms
_BETWEEN_HOSTS = struct.Struct(">iq")  # born port, store ms
_BEHIND_HOSTS = struct.Struct(">iiqi")  # store port, reconsume times, prepared position, body size
_SIZE_AND_MAGIC = struct.Struct(">II")
_SYS_FLAG = struct.Struct(">i")
_POSITION = struct.Struct(">q")
POSITION_AT: Final = 28
SYS_FLAG_AT: Final = 36
PREPARED_AT: Final = 76
"""Byte of the prepared position in a record with IPv4 hosts. Each IPv6 host adds 12."""
BLANK = struct.Struct(">II")


class RecordError(ValueError):
    """The bytes are no commit log record. The message names the rule that they break."""


class Host(NamedTuple):
    """An address in a record: 4 or 16 packed bytes, and the port."""

    address: bytes
    port: int

    def __str__(self) -> str:
        host = ipaddress.ip_address(self.address)
        return f"[{host}]:{self.port}" if host.version == 6 else f"{host}:{self.port}"


class Message(msgspec.Struct):
    topic: str
    queue_id: int
    body: bytes
    properties: dict[str, str]
    flag: int = 0
    sys_flag: int = 0
    born_ms: Millis = Millis(0)
    born_host: Host = Host(b"\0\0\0\0", 0)
    reconsume_times: int = 0
    prepared_position: LogPosition = LogPosition(0)

    def again(self, topic: str, queue_id: int, properties: dict[str, str]) -> Message:
        """Return this stored message for a new record of this broker in another queue."""
        return msgspec.structs.replace(
            self,
            topic=topic,
            queue_id=queue_id,
            properties=properties,
            sys_flag=self.sys_flag & ~SYS_STORE_HOST_V6,
            prepared_position=LogPosition(0),
        )


class Record(msgspec.Struct):
    message: Message
    size: int
    queue_offset: QueueOffset
    position: LogPosition
    store_ms: Millis
    store_host: Host
    body_crc: int

    @property
    def offset_is_possible(self) -> bool:
        """Whether the log before the record is long enough for `queue_offset` messages, less OFFSETS_LOST_MAX."""
        return 0 <= self.queue_offset <= self.position // RECORD_BYTES_MIN + OFFSETS_LOST_MAX

    @property
    def body_is_intact(self) -> bool:
        return zlib.crc32(self.message.body) & 0x7FFF_FFFF == self.body_crc


def record_bytes(topic_bytes: int, body_bytes: int, properties_bytes: int, *, hosts_bytes: int = 8) -> int:
    """Return the size of a message's record. `hosts_bytes` counts both addresses without their ports."""
    topic_length_bytes = 1 if topic_bytes <= TOPIC_BYTES_MAX else 2
    return 80 + hosts_bytes + body_bytes + topic_length_bytes + topic_bytes + 2 + properties_bytes


def encode_record(
    message: Message,
    properties: bytes,
    *,
    queue_offset: QueueOffset,
    position: LogPosition,
    store_ms: Millis,
    store_host: Host,
) -> bytes:
    """Return the record of `message` at `position`. `properties` is the encoded block of the record."""
    topic = message.topic.encode()
    assert len(properties) <= props.PROPERTIES_BYTES_MAX
    sys_flag = message.sys_flag & ~(SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6)
    sys_flag |= SYS_BORN_HOST_V6 if len(message.born_host.address) == 16 else 0
    sys_flag |= SYS_STORE_HOST_V6 if len(store_host.address) == 16 else 0
    short = len(topic) <= TOPIC_BYTES_MAX
    hosts_bytes = len(message.born_host.address) + len(store_host.address)
    size = record_bytes(len(topic), len(message.body), len(properties), hosts_bytes=hosts_bytes)
    return b"".join(
        (
            _BEFORE_HOSTS.pack(
                size,
                MAGIC_V1 if short else MAGIC_V2,
                zlib.crc32(message.body) & 0x7FFF_FFFF,
                message.queue_id,
                message.flag,
                queue_offset,
                position,
                sys_flag,
                message.born_ms,
            ),
            message.born_host.address,
            _BETWEEN_HOSTS.pack(message.born_host.port, store_ms),
            store_host.address,
            _BEHIND_HOSTS.pack(store_host.port, message.reconsume_times, message.prepared_position, len(message.body)),
            message.body,
            len(topic).to_bytes(1 if short else 2, "big"),
            topic,
            len(properties).to_bytes(2, "big"),
            properties,
        )
    )


def decode_record(buffer: Buffer, at: int = 0) -> Record:
    """Return the record at byte `at` of `buffer`. Raises RecordError if the bytes there are no record."""
    view = memoryview(buffer)
    try:
        size, magic, body_crc, queue_id, flag, queue_offset, position, sys_flag, born_ms = _BEFORE_HOSTS.unpack_from(
            view, at
        )
        if magic not in (MAGIC_V1, MAGIC_V2):
            raise RecordError(f"magic {magic:#x} is not the magic of a record")
        if size < RECORD_BYTES_MIN or at + size > len(view):
            raise RecordError(f"size {size} does not fit the {len(view) - at} available bytes")
        end = at + size
        p = at + _BEFORE_HOSTS.size
        born_address, p = _take(view, p, 16 if sys_flag & SYS_BORN_HOST_V6 else 4)
        born_port, store_ms = _BETWEEN_HOSTS.unpack_from(view, p)
        p += _BETWEEN_HOSTS.size
        store_address, p = _take(view, p, 16 if sys_flag & SYS_STORE_HOST_V6 else 4)
        store_port, reconsume_times, prepared_position, body_size = _BEHIND_HOSTS.unpack_from(view, p)
        p += _BEHIND_HOSTS.size
        if body_size < 0 or p + body_size > end - 3:
            raise RecordError(f"body size {body_size} exceeds the record")
        body, p = _take(view, p, body_size)
        length_bytes = 1 if magic == MAGIC_V1 else 2
        topic_length, p = _take(view, p, length_bytes)
        topic, p = _take(view, p, int.from_bytes(topic_length, "big"))
        properties_length, p = _take(view, p, 2)
        properties, p = _take(view, p, int.from_bytes(properties_length, "big"))
    except struct.error as error:
        raise RecordError(f"the bytes end inside the fixed part: {error}") from None
    if p != end:
        raise RecordError(f"the fields end at byte {p - at}, but the record ends at byte {size}")
    message = Message(
        topic=topic.decode("utf-8", "replace"),
        queue_id=queue_id,
        body=body,
        properties=props.parse(properties.decode("utf-8", "replace")),
        flag=flag,
        sys_flag=sys_flag,
        born_ms=born_ms,
        born_host=Host(born_address, born_port),
        reconsume_times=reconsume_times,
        prepared_position=prepared_position,
    )
    return Record(
        message=message,
        size=size,
        queue_offset=queue_offset,
        position=position,
        store_ms=store_ms,
        store_host=Host(store_address, store_port),
        body_crc=body_crc,
    )


class _Layout(NamedTuple):
    """The positions of the parts of a possible record in a buffer, from the lengths in it."""

    size: int
    """The size in its first field."""
    topic_at: int
    properties_at: int
    end: int


def _layout(buffer: Buffer, at: int) -> _Layout | None:
    """Return the layout at byte `at`. Returns None without a record's magic, or if its lengths leave the buffer."""
    if at + RECORD_BYTES_MIN > len(buffer):
        return None
    size, magic = _SIZE_AND_MAGIC.unpack_from(buffer, at)
    (sys_flag,) = _SYS_FLAG.unpack_from(buffer, at + SYS_FLAG_AT)
    if magic not in (MAGIC_V1, MAGIC_V2):
        return None
    wide_hosts = bool(sys_flag & SYS_BORN_HOST_V6) + bool(sys_flag & SYS_STORE_HOST_V6)
    body_at = at + FIXED_BYTES_V4 + 12 * wide_hosts
    if body_at > len(buffer):
        return None
    topic_length_at = body_at + _number(buffer, body_at - 4, body_at)
    topic_at = topic_length_at + (1 if magic == MAGIC_V1 else 2)
    if topic_at > len(buffer):
        return None
    properties_at = topic_at + _number(buffer, topic_length_at, topic_at) + 2
    if properties_at > len(buffer):
        return None
    end = properties_at + _number(buffer, properties_at - 2, properties_at)
    return _Layout(size, topic_at, properties_at, end) if end <= len(buffer) else None


def _number(buffer: Buffer, start: int, stop: int) -> int:
    return int.from_bytes(buffer[start:stop], "big")


def has_form(buffer: Buffer, at: int, size: int, position: int) -> bool:
    """Return whether the bytes at `at` have the form of the record of `size` bytes at log position `position`.

    They must name that size and position, and the lengths inside must agree. The body is not read.
    """
    found = _layout(buffer, at)
    if found is None or found.size != size or found.end != at + size:
        return False
    return bool(_POSITION.unpack_from(buffer, at + POSITION_AT)[0] == position)


def head_store_ms(buffer: Buffer, at: int, position: int) -> Millis | None:
    """Return the store time in the head of the record at byte `at`; None if the head is not that of `position`.

    Only the head is read, so a long body is not loaded from the disk.
    """
    magic = _SIZE_AND_MAGIC.unpack_from(buffer, at)[1]
    if magic not in (MAGIC_V1, MAGIC_V2) or _POSITION.unpack_from(buffer, at + POSITION_AT)[0] != position:
        return None
    (sys_flag,) = _SYS_FLAG.unpack_from(buffer, at + SYS_FLAG_AT)
    born_host_bytes = 16 if sys_flag & SYS_BORN_HOST_V6 else 4
    return Millis(_BETWEEN_HOSTS.unpack_from(buffer, at + _BEFORE_HOSTS.size + born_host_bytes)[1])


def prepared_position_of(buffer: Buffer, at: int = 0) -> int:
    """Return the prepared position in the head of the record at byte `at`, without decoding the rest."""
    (sys_flag,) = _SYS_FLAG.unpack_from(buffer, at + SYS_FLAG_AT)
    wide_hosts = bool(sys_flag & SYS_BORN_HOST_V6) + bool(sys_flag & SYS_STORE_HOST_V6)
    return int(_POSITION.unpack_from(buffer, at + PREPARED_AT + 12 * wide_hosts)[0])


def find_record(view: memoryview, start: int, base: int) -> int | None:
    """Return the first byte from `start` with the form of a record, or None. `base` is the file's log position."""
    for piece in range(start, len(view), SEARCHED_BYTES):
        raw = bytes(view[piece : piece + SEARCHED_BYTES + RECORD_BYTES_MIN])
        found = raw.find(MAGIC_PREFIX, MAGIC_AT)
        while found >= 0:
            at = piece + found - MAGIC_AT
            size = int.from_bytes(view[at : at + MAGIC_AT], "big")
            if has_form(view, at, size, base + at):
                return at
            found = raw.find(MAGIC_PREFIX, found + 1)
    return None


def stored_properties(buffer: Buffer, at: int = 0) -> props.StoredProperties:
    """Return the properties of the record at byte `at`, without decoding the rest. Raises RecordError."""
    view = memoryview(buffer)
    found = _layout(view, at)
    if found is None or found.end != at + found.size:
        raise RecordError(f"the lengths at byte {at} are not those of a record")
    return props.StoredProperties(str(view[found.properties_at : found.end], "utf-8", "replace"))


def is_written_out(buffer: Buffer, at: int, record: Record) -> bool:
    """Return whether topic and properties of `record`, decoded at byte `at` of its file, reached the disk.

    Only the body has a checksum. Bytes that a power cut leaves out are zeros, from the start of a sector. No topic or
    property holds a NUL. So a NUL at the end, or at the first byte of a sector in the properties, is a loss.
    """
    view = memoryview(buffer)
    found = _layout(view, at)
    assert found is not None and found.end == at + record.size, record
    start, end = found.properties_at, found.end
    if start == end:
        return view[start - 3] != 0
    first_sector = -(-start // SECTOR_BYTES) * SECTOR_BYTES
    return view[end - 1] != 0 and all(view[i] != 0 for i in range(first_sector, end, SECTOR_BYTES))


def _take(view: memoryview, at: int, count: int) -> tuple[bytes, int]:
    taken = bytes(view[at : at + count])
    if len(taken) != count:
        raise RecordError(f"{count - len(taken)} bytes are missing")
    return taken, at + count
