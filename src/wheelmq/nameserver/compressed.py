"""Registrations of Apache's brokers with compressedRegister (RocketMQ: RegisterBrokerBody).

    zlib( length | dataVersion as JSON
          count  | length | one topic as text, `count` times
          length | list of filter servers as JSON
          count  | length | one mapping of a static topic as JSON, `count` times )

Lengths and counts are 32-bit integers. A topic is `name readQueues writeQueues perm filterType attributes`, separated
by blanks, without its flags. The parts after the topics are not read.

Brokers of 5.x always deny in the header that a body is compressed. So this module checks the first byte: zlib data
begin with an x, and JSON never does.
"""

from __future__ import annotations

import zlib
from typing import Final

from wheelmq.formats.java import java_int
from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.bodies import BodyError, DataVersion, Registration, TopicConfig, TopicConfigTable

INFLATED_BYTES_MAX: Final = 64 << 20
"""Greatest size of a broker's registration after decompression."""


_ZLIB: Final = b"x"
"""First byte of zlib data with the usual window size."""


def is_compressed(raw: bytes) -> bool:
    return raw.startswith(_ZLIB)


def read(raw: bytes) -> Registration:
    """Return the registration in `raw`. Raises BodyError."""
    parts = _Parts(_inflated(raw))
    version = bodies.read(parts.next(), DataVersion)
    topics = [_topic(parts.next()) for _ in range(parts.number())]
    table = {topic.topic_name: topic for topic in topics}
    return Registration(topic_config_serialize_wrapper=TopicConfigTable(data_version=version, topic_config_table=table))


def _inflated(raw: bytes) -> bytes:
    """Return the decompressed body. Raises BodyError if it is incomplete, or longer than the limit."""
    unpack = zlib.decompressobj()
    try:
        text = unpack.decompress(raw, INFLATED_BYTES_MAX)
    except zlib.error as error:
        raise BodyError(f"a body with the compressed flag is not compressed: {error}") from None
    if not unpack.eof:
        raise BodyError(f"a compressed body is incomplete, or inflates to more than {INFLATED_BYTES_MAX} bytes")
    return text


class _Parts:
    """Reads numbers, and texts with their lengths in front, one after another. Raises BodyError at an early end."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = 0

    def number(self) -> int:
        return int.from_bytes(self._bytes(4), "big", signed=True)

    def next(self) -> bytes:
        return self._bytes(self.number())

    def _bytes(self, count: int) -> bytes:
        end = self._at + count
        if count < 0 or end > len(self._raw):
            raise BodyError(f"a compressed registration has a part of {count} bytes at {self._at} of {len(self._raw)}")
        found = self._raw[self._at : end]
        self._at = end
        return found


def _topic(raw: bytes) -> TopicConfig:
    text = raw.decode("utf-8", "replace")
    name, *fields = text.split(" ")
    counts = [java_int(field) for field in fields[:3]]
    if len(fields) < 4 or None in counts:
        told = f"a compressed registration has the topic {text[:200]!r}"
        raise BodyError(f"{told}: a topic has a name, three numbers and a filter type")
    read_queues, write_queues, perm = (count or 0 for count in counts)
    return TopicConfig(
        topic_name=name,
        read_queue_nums=read_queues,
        write_queue_nums=write_queues,
        perm=perm,
        topic_filter_type=fields[3],
    )
