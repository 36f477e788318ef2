"""Portions: pieces of a store's files, as a task asks for them that cannot map the files (docs/formats/turns.md).

A request names a kind of file and, in its body, ranges (RANGE). The answer's body depends on the kind:

    queue    units of a consume queue, the bytes of each range one after another; the request names TOPIC/ID
    block    units of the queue of a block, likewise; the request names its folder
    wheel    slots, likewise
    record   records of the log without their bodies: a HOLE for each range, then what is left of each
    chain    timer log units from each range's position on towards older ones: CHAIN_HEAD, then CHAINED rows

and has its count of ranges and its crc32 in the header. Little-endian but for the bytes of files, as both ends are
this package on machines of one kind.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wheelmq.formats.buffer import Buffer
from wheelmq.formats.disk.timer import TIMER_UNIT


class FileKind(StrEnum):
    """What a portion is of."""

    QUEUE = "queue"
    WHEEL = "wheel"
    RECORD = "record"
    CHAIN = "chain"
    BLOCK = "block"


PORTION_BYTES_MAX: Final = 1 << 20
"""Of an answer's body."""
RANGES_MAX: Final = 4096
"""Of one request."""

RANGE: Final = np.dtype([("position", "<i8"), ("size", "<i4")])
"""Bytes of a sequence of files; a range lies in one file. Of a chain the size says nothing."""
HOLE: Final = np.dtype([("at", "<i4"), ("size", "<i4")])
"""What was left out of a range: from byte `at` on so many."""
CHAIN_HEAD: Final = np.dtype([("whole", "<i8"), ("next", "<i8")])
"""How many chains were followed to their ends, and where the one after them goes on; -1 when none does."""
CHAINED: Final = np.dtype([("position", "<i8"), ("unit", f"V{TIMER_UNIT.size}")])
"""A timer log unit and where it stands."""

Ranges = npt.NDArray[Any]
"""An array of RANGE."""


class PortionError(ValueError):
    """A request for a portion, or an answer to one, is not as it must be; the text says in what."""


def ranges_of(positions: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> Ranges:
    """Ranges to ask for."""
    ranges = np.zeros(len(positions), RANGE)
    ranges["position"], ranges["size"] = positions, sizes
    return ranges


def read_ranges(body: Buffer) -> Ranges:
    """The ranges of a request's body. Raises PortionError."""
    raw = bytes(body)
    if len(raw) % RANGE.itemsize or len(raw) > RANGES_MAX * RANGE.itemsize:
        raise PortionError(f"{len(raw)} bytes are not up to {RANGES_MAX} ranges of {RANGE.itemsize}")
    ranges = np.frombuffer(raw, RANGE)
    if len(ranges) and (ranges["position"].min() < 0 or ranges["size"].min() < 0):
        raise PortionError("a range has a negative position or size")
    return ranges
