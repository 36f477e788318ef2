"""Blocks: delayed messages by the hour of their due time (ours; no Apache release has them).

    scheduledtempdata/<date and time>/log/<20 digits>     records, as in the commit log
                                     /queue/<20 digits>   units of 24 bytes
                                     /checkpoint

The name of a block is its start time in UTC: the date, then hour, minute and second as far as needed.
Its records are parked. Their fields have these meanings:

    topic               BLOCK_TOPIC
    queue id            number of the block
    queue offset        index of the record's unit
    log position        byte in the block's own log
    prepared position   epoch of the master that stored it; 0 before there were epochs
    `__WMQ_DUE`         due time

Version rule: a change of a layout takes another magic of the checkpoint.
"""

from __future__ import annotations

import re
import time
import zlib
from calendar import timegm
from typing import Final, NamedTuple, Self

from wheelmq.formats.buffer import Buffer
from wheelmq.formats.field import Field, Layout
from wheelmq.formats.names import BLOCK_TOPIC as BLOCK_TOPIC
from wheelmq.formats.units import Millis

BLOCK_UNIT: Final = Layout(
    "block unit",
    Field("position", "int64", "position of the record in the block's log"),
    Field("size", "int32", "its size in bytes; 0 when no message has the index"),
    Field("due_ms", "int64", "when it is due"),
    Field("flags", "int32", "1, 2, 4: see below the table"),
)
UNITS_PER_FILE: Final = 300_000
BLOCK_LOG_FILE_BYTES: Final = 128 << 20

FLAG_DONE: Final = 1
FLAG_BLANK: Final = 2
FLAG_LONG: Final = 4

BLOCK_CHECKPOINT: Final = Layout(
    "block checkpoint",
    Field("magic", "int32", "0x574D5142, WMQB"),
    Field("crc", "uint32", "crc32 of all later fields"),
    Field("sequence", "int64", "grows with each checkpoint; the intact slot with the higher number counts"),
    Field("number", "int64", "the block's number; no other block in the life of the log has it"),
    Field("start_ms", "int64", "messages due from this time on are in the block"),
    Field("end_ms", "int64", "and before this time"),
    Field("log_position", "int64", "records before it are on disk; -1: the block is being removed"),
    Field("units", "int64", "number of units on disk, those of these records"),
)
BLOCK_CHECKPOINT_MAGIC: Final = 0x574D5142
BLOCK_CHECKPOINT_SLOT_BYTES: Final = 4096
"""Bytes of one of the file's two slots, each a disk block. Writes alternate: a torn one leaves the other whole."""
REMOVED: Final = -1

_NAME = re.compile(r"(\d{8})(\d\d(\d\d(\d\d)?)?)?")
_FORMATS: Final = {8: "%Y%m%d", 10: "%Y%m%d%H", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}


class BlockCheckpoint(NamedTuple):
    """The checkpoint of a block: its span of time, and the part of its files that is on disk."""

    number: int
    start_ms: Millis
    end_ms: Millis
    log_position: int = 0
    units: int = 0

    def pack(self, sequence: int) -> bytes:
        head = BLOCK_CHECKPOINT.pack(BLOCK_CHECKPOINT_MAGIC, 0, sequence, *self)
        return head[:4] + zlib.crc32(head[_CHECKED_FROM:]).to_bytes(4, "big") + head[_CHECKED_FROM:]

    @classmethod
    def unpack(cls, slot: Buffer) -> tuple[int, Self] | None:
        """Return the sequence and the checkpoint in the bytes of a slot, or None if the slot is not valid."""
        fields = BLOCK_CHECKPOINT.unpack(slot)
        if fields["magic"] != BLOCK_CHECKPOINT_MAGIC:
            return None
        if fields["crc"] != zlib.crc32(memoryview(slot)[_CHECKED_FROM : BLOCK_CHECKPOINT.size]):
            return None
        _, _, sequence, *rest = fields.values()
        return sequence, cls(*rest)


_CHECKED_FROM: Final = BLOCK_CHECKPOINT.position_of("sequence")


def block_name(start_ms: Millis, length_ms: int) -> str:
    digits = next((digits for digits, unit_ms in _UNITS_MS if not start_ms % unit_ms and not length_ms % unit_ms), 14)
    return time.strftime(_FORMATS[digits], time.gmtime(start_ms // 1000))


_UNITS_MS: Final = ((8, 86_400_000), (10, 3_600_000), (12, 60_000))


def block_start_ms(name: str) -> Millis | None:
    """Return the start time of the block in folder `name`, or None if `name` is not valid."""
    if not _NAME.fullmatch(name):
        return None
    try:
        return Millis(timegm(time.strptime(name, _FORMATS[len(name)])) * 1000)
    except ValueError:
        return None
