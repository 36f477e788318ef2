"""`epochFileCheckpoint`: the epochs of the log (RocketMQ: EpochFileCache).

2                  number of epochs
1725254278         crc32 of the lines that follow, without its highest bit; 0 for an unchecked file
1-0                an epoch and the log position at which it begins
2-7340032
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from wheelmq.formats.units import LogPosition

_LINE = re.compile(rb"(-?\d{1,10})-(\d{1,19})")


class Epoch(NamedTuple):
    """A period with one master. It ends where the next one begins."""

    number: int
    start: LogPosition


class EpochsUnreadable(ValueError):
    """The bytes are not a list of epochs."""


def encode_epochs(epochs: Sequence[Epoch]) -> bytes:
    lines = b"".join(b"%d-%d\n" % one for one in epochs)
    return b"%d\n%d\n" % (len(epochs), zlib.crc32(lines) & 0x7FFF_FFFF) + lines


def decode_epochs(raw: bytes) -> list[Epoch]:
    """Return the epochs in ascending order. Raises EpochsUnreadable."""
    head = raw.split(b"\n", 2)
    if len(head) < 3 or not head[0].isdigit() or not head[1].isdigit():
        raise EpochsUnreadable("the file does not begin with two numbers")
    count, crc, lines = int(head[0]), int(head[1]), head[2]
    if crc and crc != zlib.crc32(lines) & 0x7FFF_FFFF:
        raise EpochsUnreadable("the checksum is wrong")
    matches = [_LINE.fullmatch(line) for line in lines.splitlines()]
    found = [Epoch(int(one[1]), LogPosition(int(one[2]))) for one in matches if one is not None]
    if len(found) != count or len(matches) != count:
        raise EpochsUnreadable(f"it has {len(matches)} lines for {count} epochs")
    if any(b.number <= a.number or b.start < a.start for a, b in pairwise(found)):
        raise EpochsUnreadable("the epochs are not in order")
    return found
