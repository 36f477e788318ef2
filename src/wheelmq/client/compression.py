"""Compresses and expands bodies (RocketMQ: CompressorFactory, MessageSysFlag). Only zlib is supported."""

from __future__ import annotations

import zlib
from typing import Final

from wheelmq.formats.disk.message import SYS_COMPRESSED, SYS_COMPRESSION_KIND

ZLIB: Final = 0x300
_ZLIB_KINDS: Final = (0, ZLIB)
"""Old clients set no compression type. They use zlib."""
_OTHER_KINDS: Final = {0x100: "LZ4", 0x200: "Zstandard"}
LEVEL: Final = 5
"""The level of Apache's client."""
EXPANDED_BYTES_MAX: Final = 64 << 20
"""Limit for an expanded body. It is far above the limit of a broker and far below the size of a 4 MiB zip bomb."""


class CompressionError(ValueError):
    """A body cannot be expanded. The text gives the reason."""


def compress(body: bytes, over_bytes: int | None) -> tuple[bytes, int]:
    """Return the body to send and the compression bits of the system flag; 0 for an uncompressed body.

    A body longer than `over_bytes` is compressed if that makes it shorter; with None, none is.
    """
    if over_bytes is None or len(body) <= over_bytes:
        return body, 0
    packed = zlib.compress(body, LEVEL)
    return (packed, SYS_COMPRESSED | ZLIB) if len(packed) < len(body) else (body, 0)


def expand(body: bytes, sys_flag: int) -> bytes:
    """Return the original body. Raises CompressionError, also for LZ4 and Zstandard, which no library here can read."""
    if not sys_flag & SYS_COMPRESSED:
        return body
    kind = sys_flag & SYS_COMPRESSION_KIND
    if kind not in _ZLIB_KINDS:
        raise CompressionError(
            f"the body is compressed by {_OTHER_KINDS.get(kind, hex(kind))}; the client supports only zlib"
        )
    inflater = zlib.decompressobj()
    try:
        expanded = inflater.decompress(body, EXPANDED_BYTES_MAX)
    except zlib.error as error:
        raise CompressionError(f"the body does not inflate: {error}") from None
    if inflater.unconsumed_tail:
        raise CompressionError(f"the body inflates to more than {EXPANDED_BYTES_MAX} bytes")
    if not inflater.eof:
        raise CompressionError("the body does not inflate: it is incomplete")
    return expanded
