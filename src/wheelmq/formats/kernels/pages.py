"""Advise the system of a part of a mapping, piece by piece, without the interpreter's lock between the pieces.

A call made from Python has to take the lock back behind it, which takes up to 5 ms while the loop is busy, and the loop
has to take it back in its turn: for pieces that take half a millisecond each that is most of the time.

Twin: `system.disk.MappedFile.populate`.
"""

from __future__ import annotations

from typing import Any, Final

from wheelmq.formats.kernels.jit import external, free_kernel

_madvise: Final[Any] = external("madvise", "int32", ("int64", "int64", "int32"))


@free_kernel
def advise_by_pieces(address: int, start: int, stop: int, piece_bytes: int, advice: int) -> int:
    """madvise(2) for bytes `start` to `stop` of the mapping at `address`: how many pieces the system refused.

    `start` and `piece_bytes` are whole pages. Whoever calls it holds the mapping.
    """
    refused = 0
    for at in range(start, stop, piece_bytes):
        refused += _madvise(address + at, min(piece_bytes, stop - at), advice) != 0
    return refused
