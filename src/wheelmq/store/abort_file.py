"""The file `abort`, which exists while a broker runs: the process, the start of the machine, and whether replicas had
messages.

A start after a kill and a start after a power cut find the file. Only the power cut can have lost written records, and
only a broker with replicas can have acknowledged some that are elsewhere.
"""

from __future__ import annotations

from typing import Final

from wheelmq.formats.disk.paths import StorePaths
from wheelmq.system.disk import Disk

REPLICATED: Final = "replicated"


class AbortFile:
    """The abort file of one store."""

    def __init__(self, disk: Disk, paths: StorePaths) -> None:
        self._disk = disk
        self._path = paths.abort
        raw = disk.read(self._path)
        self.existed = raw is not None
        """Whether the last stop was not clean."""
        _, boot_id, replicated = (*(raw or b"").decode("latin-1").split("\n"), "", "")[:3]
        self._boot_id = boot_id if self.existed else disk.boot_id
        self._is_replicated = replicated == REPLICATED
        self.may_lack_tail = self._is_replicated and (not boot_id or boot_id != disk.boot_id)
        """Whether replicas may have acknowledged records that this store has lost with its machine."""
        if not self.may_lack_tail:
            self._boot_id = disk.boot_id

    def write(self) -> None:
        """Write the file. Raises OSError."""
        lines = [str(self._disk.owner_id), self._boot_id, *([REPLICATED] if self._is_replicated else [])]
        self._disk.replace(self._path, "\n".join(lines).encode())

    def note_replicated(self) -> None:
        """Note, before the first acknowledgement, that replicas have messages of this store. Raises OSError."""
        if not self._is_replicated:
            self._is_replicated = True
            self.write()

    def accept_log(self) -> None:
        """Note that the broker continues with its log as it is. Raises OSError."""
        if self.may_lack_tail:
            self._boot_id, self.may_lack_tail, self._is_replicated = self._disk.boot_id, False, False
            self.write()

    def remove(self) -> None:
        """Remove the file at a clean stop. It stays while the log may lack its last records. Raises OSError."""
        if not self.may_lack_tail:
            self._disk.remove(self._path)
