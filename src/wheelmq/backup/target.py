"""Targets: places for objects that never change. A folder here; object stores in `object_store`."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from wheelmq.system.disk import Disk
from wheelmq.system.failpoint import reach
from wheelmq.system.unfinished_file import UNFINISHED

IDENTITY: Final = "wheelmq-ship.json"
"""The object that marks a target. It names the history of the target."""
_UNFINISHED: Final = re.compile(
    rf"({re.escape(IDENTITY)}|new/\d{{16}}|(log|blocks|points)/\d{{16}}-\d{{16}}(\.base|\.\d+)?)(\.\d+-\d+)?"
    + re.escape(UNFINISHED)
)
"""Unfinished files of objects, with those of older versions, which have no number of a process."""


class TargetTaken(FileExistsError):
    """Another process wrote an object of the same name: two shippers use one target."""


class Target(Protocol):
    """A place for objects. All names are relative, with `/` between their parts."""

    def names(self, folder: str) -> list[str]:
        """Return the sorted names of the objects below `folder`; an empty text is the whole target. Raises OSError."""
        ...

    def read(self, name: str) -> bytes:
        """Return an object. Raises FileNotFoundError, OSError."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Store a new object. It is durable on return.

        If an object with the same name and content exists, an earlier attempt had succeeded. Raises TargetTaken if
        its content is another one, and OSError.
        """
        ...

    def remove(self, name: str) -> None:
        """Remove an object if it exists. Raises OSError."""
        ...

    def settle(self) -> None:
        """Make the objects durable that a killed process has written. Raises OSError."""
        ...

    def remove_unfinished(self) -> None:
        """Remove the parts of objects that killed processes have left. Those of running processes stay."""
        ...


class FolderTarget:
    """A folder of a file system. Each object is a file that is synced before it gets its name."""

    def __init__(self, disk: Disk, root: Path) -> None:
        self._disk = disk
        self._root = root

    def names(self, folder: str) -> list[str]:
        prefix = f"{folder}/" if folder else ""
        found = files_below(self._disk, self._root / folder, prefix)
        return sorted(name for name in found if not name.endswith(UNFINISHED))

    def read(self, name: str) -> bytes:
        found = self._disk.read(self._root / name)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "the object does not exist", str(self._root / name))
        return found

    def write(self, name: str, content: bytes) -> None:
        path = self._root / name
        try:
            self._disk.create(path, content)
        except FileExistsError:
            check_taken(self.read(name), content, str(path))
            self._disk.sync_folder(path.parent)
        reach("target.written")

    def remove(self, name: str) -> None:
        self._disk.remove(self._root / name)

    def settle(self) -> None:
        if self._root.is_dir():
            for name in self._disk.list(self._root):
                if (self._root / name).is_dir():
                    self._disk.sync_folder(self._root / name)
            self._disk.sync_folder(self._root)
            self._disk.sync_folder(self._root.parent)

    def remove_unfinished(self) -> None:
        for name in files_below(self._disk, self._root):
            if _UNFINISHED.fullmatch(name):
                self._disk.remove_unfinished(self._root / name)


def check_taken(found: bytes | None, content: bytes, name: str) -> None:
    """Raise TargetTaken if an object with another content was `found`."""
    if found is not None and found != content:
        raise TargetTaken(errno.EEXIST, "another shipper writes to this target: stop one of them", name)


def files_below(disk: Disk, folder: Path, prefix: str = "") -> Iterator[str]:
    """Yield the names of all files below `folder`, with `/` between their parts."""
    for name in disk.list(folder):
        if (folder / name).is_dir():
            yield from files_below(disk, folder / name, f"{prefix}{name}/")
        else:
            yield prefix + name
