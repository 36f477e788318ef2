"""The numbers of blocks. A message's origin contains the number of its block.

A number is free again once no block and no log record has it. Else a start could mix up settled messages.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from wheelmq.formats.disk.origin import STREAM_BITS
from wheelmq.formats.units import LogPosition

NUMBER_MAX: Final = (1 << STREAM_BITS) - 1


class NoNumberLeft(OSError):
    """Each number belongs to a block, or to a removed block that the log still names. The blocks are too short."""


class BlockNumbers:
    def __init__(self) -> None:
        self.last = 0
        """The last number used. At a start, the highest number that a block or an origin in the log has."""
        self._gone: dict[int, LogPosition] = {}
        """For each block that is gone, the log's end at that time. Later records do not name the block."""

    def note_found(self, number: int) -> None:
        self.last = max(self.last, number)
        self._gone.pop(number, None)

    def note_used(self, number: int) -> None:
        self.last = number

    def note_gone(self, number: int, log_end: LogPosition) -> None:
        """Note that the block is gone, and that no record from `log_end` on names it."""
        self._gone[number] = log_end

    def next_free(self, in_use: Container[int], log_start: LogPosition) -> int:
        """Return the next number not in use that no record from `log_start` on names. Raises NoNumberLeft."""
        number = self.last
        for _ in range(NUMBER_MAX):
            number = number % NUMBER_MAX + 1
            if number not in in_use and self._gone.get(number, -1) <= log_start:
                self._gone.pop(number, None)
                return number
        raise NoNumberLeft(f"no block number is free: each of the {NUMBER_MAX} numbers is in use, or in the log")

    def gone(self, log_start: LogPosition) -> dict[int, LogPosition]:
        """Return the gone blocks that records from `log_start` on still name, each with the end of these records."""
        self._gone = {number: end for number, end in self._gone.items() if end > log_start}
        return dict(self._gone)
