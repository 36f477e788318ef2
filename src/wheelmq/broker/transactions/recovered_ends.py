"""The ended transactions that a start finds in the log, by the positions of their half messages.

Commits and discarded messages hold them (prepared transaction offset). Their op messages may be missing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wheelmq.formats.disk.message import PREPARED_AT, SYS_BORN_HOST_V6, SYS_STORE_HOST_V6
from wheelmq.formats.kernels import scan as col
from wheelmq.formats.units import LogPosition
from wheelmq.store.commit_log import CommitLog
from wheelmq.store.mapped import MappedSequence

_SYS_FLAG_LAST = 39
"""Byte of a record with the host bits of its system flag (formats.disk.message)."""
_V6_HOSTS = SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6
_EIGHT = np.arange(8)

Rows = npt.NDArray[np.int64]


def ends_in(files: MappedSequence, rows: Rows) -> list[Rows]:
    """Return the log positions of half messages that the records of scanned `rows` end, in arrays by log file."""
    found = []
    positions = rows[:, col.POSITION]
    file_numbers = positions // files.file_bytes
    for number in sorted(set(file_numbers.tolist())):
        base = number * files.file_bytes
        at = positions[file_numbers == number] - base
        raw = files.file_at(LogPosition(base)).array
        flags = raw[at + _SYS_FLAG_LAST]
        at += PREPARED_AT
        if (flags & _V6_HOSTS).any():
            at += 12 * ((flags & SYS_BORN_HOST_V6 != 0) * 1 + (flags & SYS_STORE_HOST_V6 != 0) * 1)
        half_positions = raw[at[:, None] + _EIGHT].view(">i8").ravel()
        if half_positions.any():
            found.append(half_positions[half_positions != 0].astype(np.int64))
    return found


class RecoveredEnds:
    """Log positions of ended half messages, from the records that the recovery scans."""

    def __init__(self, log: CommitLog) -> None:
        self._files = log.files
        self._found: list[Rows] = []

    def on_rows(self, rows: Rows) -> None:
        """Add the next rows of the scan."""
        self._found += ends_in(self._files, rows)

    def ended_from(self, position: LogPosition) -> set[int]:
        return {one for part in self._found for one in part[part >= position].tolist()}
