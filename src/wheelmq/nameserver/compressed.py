"""Registrations of Apache's brokers that have compressedRegister on (RocketMQ: RegisterBrokerBody).

    zlib( length | dataVersion as JSON
          count  | length | one topic as text, `count` times
          length | list of filter servers as JSON
          count  | length | one mapping of a static topic as JSON, `count` times )

Lengths and counts are integers of 32 bits. A topic is `name readQueues writeQueues perm filterType attributes`, with a
blank between; its flags are not among them. What comes behind the topics is of no use here and is not read.

The header says whether a body is compressed; but those of 5.x say that it is not, and Apache's own name server cannot
read them then. What zlib writes begins with an x, as no JSON does.
"""

from __future__ import annotations

import zlib
from typing import Final

from wheelmq.formats.java import java_int
from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.bodies import BodyError, DataVersion, Registration, TopicConfig, TopicConfigTable

INFLATED_BYTES_MAX: Final = 64 << 20
"""Bytes that a broker's registration may have once it is unpacked."""


_ZLIB: Final = b"x"
"""What it begins with, by the size of window that everybody has."""


def is_compressed(raw: bytes) -> bool:
    """Whether a registration is compressed, by how it begins."""
    return raw.startswith(_ZLIB)


def read(raw: bytes) -> Registration:
    """The registration in `raw`. Raises BodyError."""
    parts = _Parts(_inflated(raw))
    version = bodies.read(parts.next(), DataVersion)
    topics = [_topic(parts.next()) for _ in range(parts.number())]
    table = {topic.topic_name: topic for topic in topics}
    return Registration(topic_config_serialize_wrapper=TopicConfigTable(data_version=version, topic_config_table=table))


def _inflated(raw: bytes) -> bytes:
    """What was compressed. Raises BodyError when it is longer than any broker's, or not whole."""
    unpack = zlib.decompressobj()
    try:
        text = unpack.decompress(raw, INFLATED_BYTES_MAX)
    except zlib.error as error:
        raise BodyError(f"a body that says it is compressed, and is not: {error}") from None
    if not unpack.eof:
        raise BodyError(f"a compressed body that is not whole within {INFLATED_BYTES_MAX} bytes")
    return text


class _Parts:
    """Numbers, and texts behind their lengths, one after another. Raises BodyError where they end too early."""

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
            raise BodyError(f"a compressed registration with a part of {count} bytes at {self._at} of {len(self._raw)}")
        found = self._raw[self._at : end]
        self._at = end
        return found


def _topic(raw: bytes) -> TopicConfig:
    text = raw.decode("utf-8", "replace")
    name, *fields = text.split(" ")
    counts = [java_int(field) for field in fields[:3]]
    if len(fields) < 4 or None in counts:
        told = f"a compressed registration with the topic {text[:200]!r}"
        raise BodyError(f"{told}: it is a name, three numbers and a filter type")
    read_queues, write_queues, perm = (count or 0 for count in counts)
    return TopicConfig(
        topic_name=name,
        read_queue_nums=read_queues,
        write_queue_nums=write_queues,
        perm=perm,
        topic_filter_type=fields[3],
    )
