"""How far `wheelmq ship` is: a file for each target, in the folder `ship` of the store.

The shipper writes it in each step. The broker reads it for its metrics, and `wheelmq doctor` too. The file has 4096
bytes: a checksum, JSON, and spaces. It is not synced, because a machine that starts again asks the target itself.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import msgspec

from wheelmq.formats.disk.paths import StorePaths
from wheelmq.system.disk import Disk
from wheelmq.system.mapped_file import MappedFile

STATUS_BYTES: Final = 4096
ATTEMPTS: Final = 3
"""Attempts to read a file that may be written at the same time."""
HIDDEN: Final = "***"
_USER_INFO: Final = re.compile(r"(?<=://)[^/\s]*@")
_RAW_PASSWORD: Final = re.compile(r"://(\[[^\]/]*\]|[^/\s:@\[])*:(?!\d+/)[^/\s@]*[/\s].*@", re.DOTALL)
"""A user and a colon that begins no port, and an @ after the first / or space."""


class ShipStatus(msgspec.Struct, kw_only=True):
    """The state of one shipper."""

    target: str
    """The target, without user and password."""
    history: str
    """The history that the target has; it identifies the target."""
    pid: int
    made_ms: int
    """Time of the last step."""
    complete_ms: int = 0
    """All records stored before this time are in the target; 0 before the first complete step."""
    log_end: int = 0
    """Log position up to which records are in the target."""
    failures: int = 0
    """Steps that have failed since the shipper started, and failed merges and removals."""
    is_continuous: bool = True
    """False for a target that got single copies only: the age of its copy is no lag."""
    problem: str = ""
    """Why the last step failed; empty if it did not."""

    def age_ms(self, now_ms: int) -> int | None:
        """Return the age of what the target may lack; None before the first complete step."""
        return max(0, now_ms - self.complete_ms) if self.complete_ms else None


def public_name(target: str) -> str:
    """Return the name of a target without user and password."""
    return _USER_INFO.sub("", target)


def has_raw_password(target: str) -> bool:
    """Return whether the URL of a target seems to have a password with a / or a space, which would end its server.

    Such a password cannot be told from the path, and so not be hidden.
    """
    return _RAW_PASSWORD.search(target) is not None


def public_text(text: str, target: str) -> str:
    """Return a text without the users and passwords of URLs in it, and without the password of `target`.

    Errors of libraries may name the password alone. It is hidden where it is a whole word, because a short one is in
    other words too.
    """
    text = public_name(text)
    found = _USER_INFO.search(target)
    password = "" if found is None else found[0][:-1].partition(":")[2]
    for secret in sorted({password, unquote(password)} - {""}, key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", HIDDEN, text)
    return text


class ShipStatusFile:
    """The file of one target."""

    def __init__(self, disk: Disk, paths: StorePaths, target: str) -> None:
        name = hashlib.sha256(public_name(target).encode()).hexdigest()[:16]
        self._disk = disk
        self._path = paths.ship / f"{name}.json"
        self._file: MappedFile | None = None

    def read(self) -> ShipStatus | None:
        """Return the status; None without one."""
        return _read(self._disk, self._path)

    def write(self, status: ShipStatus) -> None:
        """Write the status. Raises OSError."""
        text = msgspec.json.encode(msgspec.structs.replace(status, problem=status.problem[:1000]))
        raw = f"{zlib.crc32(text):08x} ".encode() + text
        if self._file is None:
            self._file = self._disk.map(self._path, STATUS_BYTES, sparse=True)
            self._disk.give_room(self._path, 0, STATUS_BYTES)
        self._file.view[:STATUS_BYTES] = raw[:STATUS_BYTES].ljust(STATUS_BYTES)


def _read(disk: Disk, path: Path) -> ShipStatus | None:
    for _ in range(ATTEMPTS):
        raw = disk.read(path)
        if raw is None:
            return None
        crc, _, text = raw.rstrip().partition(b" ")
        if crc == f"{zlib.crc32(text):08x}".encode():
            return msgspec.json.decode(text, type=ShipStatus)
    return None


def read_statuses(disk: Disk, paths: StorePaths) -> list[ShipStatus]:
    """Return the status of each target to which the store is shipped continuously."""
    found = (_read(disk, paths.ship / name) for name in disk.list(paths.ship) if name.endswith(".json"))
    return [status for status in found if status is not None and status.is_continuous]
