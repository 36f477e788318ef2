"""Advise the system about a part of a mapping, piece by piece, without the interpreter's lock between the pieces.

A call from Python must take the lock again after each piece. That takes up to 5 ms while the event loop is busy, and
then the loop must take the lock back. A piece itself takes about 0.5 ms, so the lock would cost most of the time.

Twin: `system.mapped_file.MappedFile.populate`.
"""

from __future__ import annotations

from typing import Any, Final

from wheelmq.formats.kernels.jit import external, free_kernel

_madvise: Final[Any] = external("madvise", "int32", ("int64", "int64", "int32"))


@free_kernel
def advise_by_pieces(address: int, start: int, stop: int, piece_bytes: int, advice: int) -> int:
    """Call madvise(2) for bytes `start` to `stop` of the mapping at `address`. Returns the number of rejections.

    `start` and `piece_bytes` are whole pages. The caller must keep the mapping open.
    """
    refused = 0
    for at in range(start, stop, piece_bytes):
        refused += _madvise(address + at, min(piece_bytes, stop - at), advice) != 0
    return refused
