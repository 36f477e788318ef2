"""Portions: pieces of a store's files for a task that cannot map the files (docs/formats/turns.md).

A request names a kind of file and, in its body, ranges (RANGE). The answer's body depends on the kind:

    queue    units of a consume queue, the ranges one after another; the request names TOPIC/ID
    block    units of the queue of a block, in the same form; the request names its folder
    wheel    slots, in the same form
    record   records of the log without their bodies: a HOLE for each range, then the rest of each range
    chain    timer log units from each range's position to older ones: CHAIN_HEAD, then CHAINED rows

The header of the answer has the number of ranges and the crc32. Values are little-endian, because both ends are this
package on machines of one kind. Bytes of files stay as they are.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wheelmq.formats.buffer import Buffer
from wheelmq.formats.disk.timer import TIMER_UNIT


class FileKind(StrEnum):
    QUEUE = "queue"
    WHEEL = "wheel"
    RECORD = "record"
    CHAIN = "chain"
    BLOCK = "block"


PORTION_BYTES_MAX: Final = 1 << 20
"""Limit of an answer's body."""
RANGES_MAX: Final = 4096
"""Limit of one request."""

RANGE: Final = np.dtype([("position", "<i8"), ("size", "<i4")])
"""Bytes of a sequence of files. A range lies in one file. The size has no meaning for a chain."""
HOLE: Final = np.dtype([("at", "<i4"), ("size", "<i4")])
"""The part left out of a range: its first byte within the range, and its size."""
CHAIN_HEAD: Final = np.dtype([("whole", "<i8"), ("next", "<i8")])
"""The number of chains that are complete, and the position at which the next one continues, or -1 if none does."""
CHAINED: Final = np.dtype([("position", "<i8"), ("unit", f"V{TIMER_UNIT.size}")])
"""A timer log unit and its position."""

Ranges = npt.NDArray[Any]


class PortionError(ValueError):
    """A request for a portion, or an answer to one, is not valid. The message names the error."""


def ranges_of(positions: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> Ranges:
    ranges = np.zeros(len(positions), RANGE)
    ranges["position"], ranges["size"] = positions, sizes
    return ranges


def read_ranges(body: Buffer) -> Ranges:
    raw = bytes(body)
    if len(raw) % RANGE.itemsize or len(raw) > RANGES_MAX * RANGE.itemsize:
        raise PortionError(
            f"{len(raw)} bytes are not whole ranges of {RANGE.itemsize} bytes, or more than {RANGES_MAX} ranges"
        )
    ranges = np.frombuffer(raw, RANGE)
    if len(ranges) and (ranges["position"].min() < 0 or ranges["size"].min() < 0):
        raise PortionError("a range has a negative position or size")
    return ranges
