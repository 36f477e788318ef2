"""The last part of the log that consumers do not see after a start, because too few replicas had it before.

Records that consumers have seen have queue units on disk. A start writes all missing units, so a file remembers from
which log position on they were missing. Without the file, the next start would take these records for seen ones.
"""

from __future__ import annotations

import logging

from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.units import LogPosition
from wheelmq.system.disk import Disk

log = logging.getLogger(__name__)


class HiddenTail:
    """The log from `start` on is hidden; nothing is hidden while `start` is None."""

    def __init__(self, disk: Disk, paths: StorePaths) -> None:
        self._disk = disk
        self._path = paths.hidden_tail
        self._hides = False
        self.start: LogPosition | None = None
        self._end = LogPosition(0)
        """End of the hidden part: the end of the log at the start of the broker."""

    def open(self, *, hides: bool) -> None:
        """Load the file. Without `hides`, consumers see the whole log, and the file is removed. Raises OSError."""
        self._hides = hides
        raw = self._disk.read(self._path)
        if raw is None:
            return
        if hides:
            self.start = LogPosition(int(raw)) if raw.strip().isdigit() else LogPosition(0)
        else:
            self._disk.remove(self._path)

    def note_missing(self, position: LogPosition) -> None:
        """Note before a missing queue unit is written that the record at `position` had none. Raises OSError."""
        if self._hides and (self.start is None or position < self.start):
            self.hide_from(position)

    def hide_from(self, position: LogPosition) -> None:
        """Hide the log from `position` on, also after the next start. Raises OSError."""
        self._disk.replace(self._path, b"%d" % position)
        self.start = position

    def end_at(self, log_end: LogPosition) -> None:
        """Note the end of the log at the start. Later records get no queue units before consumers may see them."""
        self._end = log_end
        self.show(self.start or LogPosition(0))

    def show(self, upto: LogPosition) -> bool:
        """Show the log up to `upto`. Returns whether a part of it was hidden."""
        if self.start is None:
            return False
        shows = upto > self.start
        self.start = max(self.start, upto)
        if self.start < self._end:
            return shows
        self.start = None
        try:
            self._disk.remove(self._path)
        except OSError as error:
            log.warning(
                "%s could not be removed, so the next start hides records until replicas connect: %s", self._path, error
            )
        return True
