"""Advise the system about a part of a mapping, piece by piece. Twin: `system.mapped_file.MappedFile.populate`.

A call from Python takes the interpreter's lock again after each piece of 0.5 ms, and waits up to 5 ms for it.
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
