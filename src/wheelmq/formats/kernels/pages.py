"""Advise the system of a part of a mapping, piece by piece, without the interpreter's lock between the pieces.

Twin: a call of `madvise` for each piece. Whoever gives the lock up for a call waits for it behind the call, up to 5 ms
while the loop is busy, and the loop waits in its turn for whoever then has it: once for each of many pieces.
"""

from __future__ import annotations

from typing import Any, Final

from wheelmq.formats.kernels.jit import external, free_kernel

_madvise: Final[Any] = external("madvise", "int32", ("int64", "int64", "int32"))


@free_kernel
def advise(address: int, start: int, stop: int, piece_bytes: int, advice: int) -> int:
    """madvise(2) for bytes `start` to `stop` of the mapping at `address`: how many pieces the system refused.

    `start` and `piece_bytes` are whole pages.
    """
    refused = 0
    for at in range(start, stop, piece_bytes):
        refused += _madvise(address + at, min(piece_bytes, stop - at), advice) != 0
    return refused
