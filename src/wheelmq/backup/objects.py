"""Encode and decode the objects of a target, and verify their checksums."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Final, NamedTuple, TypeVar

import msgspec
import zstandard

from wheelmq.backup.index import Index, Stored, decode_index, encode_index
from wheelmq.formats.disk.ship import SHIP_END_MAGIC, SHIP_FOOT, SHIP_HEAD, SHIP_MAGIC, SHIP_VERSION

LEVEL: Final = 1
"""Level of compression. Level 3 takes twice the time and makes records hardly smaller."""
RAW_BYTES_MAX: Final = 1 << 31

S = TypeVar("S", bound=Stored)


class TargetDamaged(OSError):
    """An object of the target is missing, or its bytes have changed."""


class Packed(NamedTuple):
    """Compressed bytes, and the crc32 of the bytes before."""

    raw: bytes
    crc: int


def pack(raw: bytes) -> Packed:
    return Packed(zstandard.ZstdCompressor(LEVEL).compress(raw), zlib.crc32(raw))


def unpack(content: bytes, stored: Stored) -> bytes:
    """Return the bytes that were packed, from the `content` of their object. Raises TargetDamaged."""
    place = f"{stored.object}: bytes {stored.at} to {stored.at + stored.size}"
    compressed = memoryview(content)[stored.at : stored.at + stored.size]
    try:
        if len(compressed) < stored.size or zstandard.frame_content_size(compressed) > RAW_BYTES_MAX:
            raise TargetDamaged(f"{place} are missing or damaged")
        raw: bytes = zstandard.ZstdDecompressor().decompress(compressed)
    except zstandard.ZstdError as error:
        raise TargetDamaged(f"{place} are damaged: {error}") from None
    if zlib.crc32(raw) != stored.crc:
        raise TargetDamaged(f"{place} have changed: their checksum is another one")
    return raw


class ObjectWriter:
    """Collects the parts of one object."""

    def __init__(self) -> None:
        self._parts = [SHIP_HEAD.pack(SHIP_MAGIC, SHIP_VERSION)]
        self.size = SHIP_HEAD.size

    def add(self, stored: S, packed: Packed, *, name: str = "") -> S:
        """Add bytes. Returns `stored` with their place in the object `name`."""
        placed = msgspec.structs.replace(stored, object=name, at=self.size, size=len(packed.raw), crc=packed.crc)
        self._parts.append(packed.raw)
        self.size += len(packed.raw)
        return placed

    def finish(self, index: Index) -> bytes:
        """Return the whole object."""
        compressed = pack(encode_index(index)).raw
        foot = SHIP_FOOT.pack(self.size, len(compressed), zlib.crc32(compressed), SHIP_END_MAGIC)
        return b"".join((*self._parts, compressed, foot))


def read_index(name: str, raw: bytes) -> Index:
    """Return the index of an object. Raises TargetDamaged."""
    if len(raw) < SHIP_HEAD.size + SHIP_FOOT.size or SHIP_HEAD.unpack(raw)["magic"] != SHIP_MAGIC:
        raise TargetDamaged(f"{name} is no object of a shipped store, or is cut short")
    version = SHIP_HEAD.unpack(raw)["version"]
    if version != SHIP_VERSION:
        raise TargetDamaged(f"{name} has version {version}, and this WheelMQ reads {SHIP_VERSION}: use a newer one")
    foot = SHIP_FOOT.unpack(raw, len(raw) - SHIP_FOOT.size)
    at, size = foot["index_position"], foot["index_bytes"]
    compressed = raw[at : at + size]
    is_placed = SHIP_HEAD.size <= at and at + size + SHIP_FOOT.size == len(raw)
    if foot["magic"] != SHIP_END_MAGIC or not is_placed or zlib.crc32(compressed) != foot["index_crc"]:
        raise TargetDamaged(f"the index of {name} is damaged, or the object is cut short")
    try:
        decoded = zstandard.ZstdDecompressor().decompress(compressed, max_output_size=RAW_BYTES_MAX)
        return decode_index(decoded)
    except (zstandard.ZstdError, msgspec.DecodeError) as error:
        raise TargetDamaged(f"the index of {name} cannot be decoded: {error}") from None


def own(name: str, stored: Iterable[S]) -> list[S]:
    """Return places that name their object."""
    return [one if one.object else msgspec.structs.replace(one, object=name) for one in stored]
