"""The bodies of the requests by which a replica copies blocks (WheelMQ's own; docs/formats/replication.md).

    WMQ_CHECK_BLOCKS   request  BLOCK_PLACE for each block of the replica, in pieces
                       answer   BLOCK_VERDICT for each of them
    WMQ_READ_BLOCKS    request  BLOCK_PROGRESS for each block that has changed at the replica
                       answer   BLOCK_PART, then units and records, for each block that has more

All integers are big-endian.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wheelmq.formats.buffer import Buffer
from wheelmq.formats.disk.block import BLOCK_UNIT
from wheelmq.formats.field import Field, Layout
from wheelmq.formats.units import LogPosition, Millis

BLOCK_PLACE: Final = Layout(
    "end of a block",
    Field("number", "int32", "number of the block"),
    Field("start_ms", "int64", "its start"),
    Field("units", "int64", "number of its units"),
    Field("index", "int64", "index of its last record; -1 without a record"),
    Field("position", "int64", "byte of this record in the block's log"),
    Field("size", "int32", "its size in bytes"),
    Field("epoch", "int64", "epoch of the master that stored it"),
)
BLOCK_VERDICT: Final = Layout(
    "verdict on a block",
    Field("number", "int32", "number of the block"),
    Field("verdict", "int32", "1: it agrees; 2: it agrees at most up to a record; 3: the master has no such block"),
    Field("end_ms", "int64", "end of the master's block"),
    Field("index", "int64", "with 2: the replica keeps only records up to this index"),
    Field("epoch", "int64", "with 2: and up to this epoch"),
)
BLOCK_PROGRESS: Final = Layout(
    "progress in a block",
    Field("number", "int32", "number of the block"),
    Field("units", "int64", "number of its units that the replica has, with their records"),
)
BLOCK_PART: Final = Layout(
    "part of a block",
    Field("kind", "int32", "1: units and records follow; 2: the master has removed the block"),
    Field("number", "int32", "number of the block"),
    Field("start_ms", "int64", "its start"),
    Field("end_ms", "int64", "its end"),
    Field("index", "int64", "index of the first unit that follows"),
    Field("units", "int32", "number of units that follow. Flag 1 says that the message is settled by now"),
    Field("position", "int64", "byte of the first record that follows, in the block's log"),
    Field("bytes", "int32", "number of bytes of records that follow the units"),
)
PLACES_MAX: Final = 256
"""Maximum places in one request. The master reads a record for each of them."""
PROGRESS_MAX: Final = 10_000
"""Maximum number of blocks in one report."""

UnitArray = npt.NDArray[Any]
"""An array of BLOCK_UNIT.dtype."""


class VerdictKind(IntEnum):
    AGREES = 1
    SHORTER = 2
    GONE = 3


class PartKind(IntEnum):
    UNITS = 1
    GONE = 2


class BlockBytesWrong(ValueError):
    """A body is not one of these. The text says why."""


class BlockPlace(NamedTuple):
    """The end of a block of a replica, by its last record."""

    number: int
    start_ms: Millis
    units: int
    last_index: int
    position: LogPosition
    size: int
    epoch: int


class BlockVerdict(NamedTuple):
    """Whether the master's block has this record at this place. Then all records before it are the same too."""

    number: int
    verdict: int
    end_ms: Millis = Millis(0)
    last_index: int = -1
    epoch: int = -1


class BlockPart(NamedTuple):
    """Units of a block that follow each other, and their records, which are in one file of the block's log."""

    kind: int
    number: int
    start_ms: Millis = Millis(0)
    end_ms: Millis = Millis(0)
    first_index: int = 0
    units: UnitArray = np.empty(0, BLOCK_UNIT.dtype)
    position: LogPosition = LogPosition(0)
    data: Buffer = b""

    def pack(self) -> bytes:
        span = self.number, self.start_ms, self.end_ms
        head = BLOCK_PART.pack(self.kind, *span, self.first_index, len(self.units), self.position, len(self.data))
        return b"".join((head, self.units.tobytes(), self.data))


def pack_all(layout: Layout, values: Iterable[tuple[Any, ...]]) -> bytes:
    return b"".join(layout.pack(*one) for one in values)


def read_places(body: Buffer) -> list[BlockPlace]:
    """Return the places of a request. Raises BlockBytesWrong."""
    return [BlockPlace(*one) for one in _rows(BLOCK_PLACE, body, PLACES_MAX)]


def read_verdicts(body: Buffer) -> list[BlockVerdict]:
    """Return the verdicts of an answer. Raises BlockBytesWrong."""
    return [BlockVerdict(*one) for one in _rows(BLOCK_VERDICT, body, PLACES_MAX)]


def read_progress(body: Buffer) -> list[tuple[int, int]]:
    """Return number and units of each block of a report. Raises BlockBytesWrong."""
    return [(int(one[0]), int(one[1])) for one in _rows(BLOCK_PROGRESS, body, PROGRESS_MAX)]


def _rows(layout: Layout, body: Buffer, most: int) -> Iterator[tuple[Any, ...]]:
    if len(body) % layout.size or len(body) > most * layout.size:
        raise BlockBytesWrong(
            f"{len(body)} bytes are not whole entries of {layout.size} bytes, or more than {most} entries"
        )
    return iter(layout.struct.iter_unpack(body))


def read_parts(body: Buffer) -> Iterator[BlockPart]:
    """Yield the parts of an answer. Their bytes are views of `body`. Raises BlockBytesWrong."""
    view, at = memoryview(body), 0
    while at < len(view):
        if len(view) - at < BLOCK_PART.size:
            raise BlockBytesWrong(f"{len(view) - at} bytes at the end are no part of a block")
        kind, number, start_ms, end_ms, index, units, position, count = BLOCK_PART.struct.unpack_from(view, at)
        at += BLOCK_PART.size
        units_bytes = units * BLOCK_UNIT.size
        if min(units, count, index, position) < 0 or len(view) - at < units_bytes + count:
            raise BlockBytesWrong(f"a part of block {number} names {units} units and {count} bytes, which are missing")
        found = np.frombuffer(view[at : at + units_bytes], BLOCK_UNIT.dtype)
        at += units_bytes
        data = view[at : at + count]
        at += count
        yield BlockPart(kind, number, Millis(start_ms), Millis(end_ms), index, found, LogPosition(position), data)
