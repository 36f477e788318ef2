"""Join records that are near each other in a log file into spans, which are read from disk together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

NEAR_BYTES: Final = 4096
"""Reading a gap of this size costs less than starting a new span after it."""

Integers = npt.NDArray[np.int64]


def joined(
    starts: Integers, stops: Integers, file_bytes: int, near_bytes: int = NEAR_BYTES
) -> Iterator[tuple[int, int]]:
    """Return (start, stop) of each span. The records are in order, and a span is within one file."""
    if not len(starts):
        return iter(())
    begins = starts[1:] - stops[:-1] > near_bytes
    begins |= starts[1:] // file_bytes != starts[:-1] // file_bytes
    first = np.concatenate(([0], np.flatnonzero(begins) + 1))
    last = np.concatenate((first[1:] - 1, [len(starts) - 1]))
    return zip(starts[first].tolist(), stops[last].tolist(), strict=True)
