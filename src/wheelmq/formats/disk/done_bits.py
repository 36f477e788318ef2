"""Done bits on disk: for each stream a head, then one bit per index. The lowest bit of a byte is the first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from wheelmq.formats.disk.origin import Stream
from wheelmq.formats.field import Field, Layout

DONE_STREAM: Final = Layout(
    "done bits of a stream",
    Field("stream", "int64", "kind and stream, the upper 24 bits of its origins"),
    Field("first_index", "int64", "index of the first bit; all before it are done"),
    Field("end_index", "int64", "end of the stream; the bits follow, in whole bytes"),
)


class StreamBits(NamedTuple):
    stream: Stream
    first_index: int
    end_index: int
    bits: bytes


def pack_streams(streams: Iterable[StreamBits]) -> bytes:
    parts: list[bytes] = []
    for one in streams:
        assert len(one.bits) == bits_bytes(one.first_index, one.end_index), one
        parts += (DONE_STREAM.pack(one.stream, one.first_index, one.end_index), one.bits)
    return b"".join(parts)


def unpack_streams(raw: bytes, at: int, count: int) -> tuple[tuple[StreamBits, ...], int]:
    """Return the done bits of `count` streams from byte `at`, and the byte after them. `raw` must be complete."""
    found = []
    for _ in range(count):
        head = DONE_STREAM.unpack(raw, at)
        at += DONE_STREAM.size
        stop = at + bits_bytes(head["first_index"], head["end_index"])
        found.append(StreamBits(Stream(head["stream"]), head["first_index"], head["end_index"], raw[at:stop]))
        at = stop
    return tuple(found), at


def bits_bytes(first_index: int, end_index: int) -> int:
    return max(0, -(-(end_index - first_index) // 8))
