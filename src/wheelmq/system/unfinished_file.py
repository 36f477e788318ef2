"""Files that are written under a name of their own, until they get their final name.

A process locks its unfinished file while it writes. So another process knows the files of killed processes: it can
lock them. The lock works between machines too if their file system supports it, as NFS does.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

UNFINISHED: Final = ".tmp"
"""The end of the name of an unfinished file."""
NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
"""Errors of a file system without hard links."""
_numbers: Final = itertools.count()


@contextlib.contextmanager
def unfinished_file(path: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """Create and lock an unfinished file for `path`. Yields its path, and the file. Raises OSError.

    The end removes it, also if writing fails. A killed process leaves it. It is closed first, because NFS renames an
    open file in place of a removal.
    """
    fresh, file = next(filter(None, (_create(path, number) for number in _numbers)))
    try:
        with file:
            yield fresh, file
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    fresh.unlink(missing_ok=True)


def _create(path: Path, number: int) -> tuple[Path, BinaryIO] | None:
    """Return a new unfinished file. Returns None if another process has this name, or is removing it."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}-{number}{UNFINISHED}")
    try:
        file = open(fresh, "xb")  # noqa: SIM115 - the caller closes it
    except FileExistsError:
        return None
    with contextlib.suppress(OSError):  # a file system without locks: such files are never removed
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if fresh.exists():
        return fresh, file
    file.close()
    return None


def remove_abandoned(path: Path) -> bool:
    """Remove an unfinished file whose process has ended. Returns False if it stays."""
    try:
        with open(path, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def give_name(fresh: Path, path: Path) -> None:
    """Give a finished file its name. Raises FileExistsError, OSError.

    On a file system without hard links, two processes can create the same file at the same moment. The last one wins.
    """
    try:
        os.link(fresh, path)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        if path.exists():
            raise FileExistsError(errno.EEXIST, "the file exists", str(path)) from None
        fresh.rename(path)
