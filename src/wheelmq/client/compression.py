"""Compressed bodies (RocketMQ: CompressorFactory, MessageSysFlag): zlib is written and read; LZ4 and Zstandard, which
no library here reads, are refused by name."""

from __future__ import annotations

import zlib
from typing import Final

from wheelmq.formats.disk.message import SYS_COMPRESSED

ZLIB: Final = 0x300
_KIND: Final = 0x700
_ZLIB_KINDS: Final = (0, ZLIB)
"""Old clients name no compression; theirs is zlib."""
_OTHER_KINDS: Final = {0x100: "LZ4", 0x200: "Zstandard"}
LEVEL: Final = 5
"""As Apache's client has it."""
EXPANDED_BYTES_MAX: Final = 64 << 20
"""Of a body that is read: far above what a broker takes, far below what a bomb of 4 MiB makes."""


class CompressionError(ValueError):
    """A body cannot be expanded; the text says why."""


def compress(body: bytes, over_bytes: int | None) -> tuple[bytes, int]:
    """The body to send, and the bits of the system flag that say how it is compressed: 0 when it is not.

    A body is compressed when it is longer than `over_bytes` and gets shorter by it; None compresses none.
    """
    if over_bytes is None or len(body) <= over_bytes:
        return body, 0
    packed = zlib.compress(body, LEVEL)
    return (packed, SYS_COMPRESSED | ZLIB) if len(packed) < len(body) else (body, 0)


def expand(body: bytes, sys_flag: int) -> bytes:
    """The body as it was sent. Raises CompressionError."""
    if not sys_flag & SYS_COMPRESSED:
        return body
    kind = sys_flag & _KIND
    if kind not in _ZLIB_KINDS:
        raise CompressionError(f"the body is compressed by {_OTHER_KINDS.get(kind, hex(kind))}; zlib is known")
    inflater = zlib.decompressobj()
    try:
        expanded = inflater.decompress(body, EXPANDED_BYTES_MAX)
    except zlib.error as error:
        raise CompressionError(f"the body does not inflate: {error}") from None
    if inflater.unconsumed_tail:
        raise CompressionError(f"the body inflates to more than {EXPANDED_BYTES_MAX} bytes")
    if not inflater.eof:
        raise CompressionError("the body does not inflate: it ends too soon")
    return expanded
