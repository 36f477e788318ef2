"""What a start finds in the log of transactions that have ended: the half messages that records name as ended.

A commit, and what was given up, has the log position of its half message in the field that Apache RocketMQ calls
prepared transaction offset. The op message that says the same may have come too late for the stop.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wheelmq.formats.disk.message import SYS_BORN_HOST_V6, SYS_STORE_HOST_V6
from wheelmq.formats.kernels import scan as col
from wheelmq.formats.units import LogPosition
from wheelmq.store.commit_log import CommitLog

_SYS_FLAG_LAST = 39
"""Byte of a record that has the host bits of its system flag (formats.disk.message)."""
_PREPARED = 76
"""Byte of a record with IPv4 hosts at which the prepared position stands; 12 later for each of IPv6."""

Rows = npt.NDArray[np.int64]


class RecoveredEnds:
    """Positions of half messages whose transactions have ended, as the records that recovery walks over name them."""

    def __init__(self, log: CommitLog) -> None:
        self._files = log.files
        self._found: list[Rows] = []

    def on_rows(self, rows: Rows) -> None:
        """Take the rows of the next records of the walk."""
        positions = rows[:, col.POSITION]
        file_numbers = positions // self._files.file_bytes
        for number in np.unique(file_numbers).tolist():
            base = number * self._files.file_bytes
            at = positions[file_numbers == number] - base
            raw = self._files.file_at(LogPosition(base)).array
            flags = raw[at + _SYS_FLAG_LAST]
            at += _PREPARED + 12 * ((flags & SYS_BORN_HOST_V6 != 0) * 1 + (flags & SYS_STORE_HOST_V6 != 0) * 1)
            says_one = raw[at]
            for i in range(1, 8):
                says_one |= raw[at + i]  # nearly all of them say none, so few are read
            at = at[says_one != 0]
            self._found.append(raw[at[:, None] + np.arange(8)].view(">i8").ravel().astype(np.int64))

    def ended_from(self, position: LogPosition) -> set[int]:
        """Positions of half messages that have ended, of those that stand at `position` or behind."""
        return {one for part in self._found for one in part[part >= position].tolist()}
