"""Folders: is a home writable, which folder of a home is the store, and which process has a store open?"""

from __future__ import annotations

import os
import pwd
import tempfile
from pathlib import Path
from typing import Final

from wheelmq.cli.ports import process_text

STORE: Final = "store"
"""The name of the store's folder in a home."""


def home_problem(home: Path) -> str | None:
    """Return the reason why `home` cannot be written; None if it can. Does not create the folder."""
    there = existing(home)
    if not there.is_dir():
        return f"{home} cannot be written, because {there} is no folder"
    try:
        tempfile.TemporaryFile(dir=there).close()
    except OSError as error:
        return f"{home} cannot be written, because no file can be created in {there} ({error.strerror or error})"
    return None


def existing(folder: Path) -> Path:
    """Return the nearest folder at or above `folder` that exists, and that this user may see."""
    there = folder.resolve()
    while not _exists(there, if_hidden=False):
        there = there.parent
    return there


def _exists(path: Path, *, if_hidden: bool) -> bool:
    """Return whether `path` exists. Returns `if_hidden` if this user has no right to see it."""
    try:
        path.stat()
    except PermissionError:
        return if_hidden
    except OSError:
        return False
    return True


def other_owner(home: Path) -> str | None:
    """Return the other user whose store is, or may be, in `home`; None for a store of this user, or no store."""
    owner = existing(home).stat().st_uid
    if owner == os.geteuid() or not _exists(home / STORE, if_hidden=True):
        return None
    try:
        return pwd.getpwuid(owner).pw_name
    except KeyError:  # as in a container
        return str(owner)


def is_new(store: Path) -> bool:
    """Return whether a store has no log files yet. A store that this user cannot read counts as used."""
    log = store / "commitlog"
    try:
        return not log.is_dir() or next(log.iterdir(), None) is None
    except PermissionError:
        return False


def store_in(folder: Path) -> Path:
    """Return the store that `folder` names: itself, or the store in it if it is a home."""
    inner = folder / STORE
    return inner if not (folder / "commitlog").is_dir() and (inner / "commitlog").is_dir() else folder


def in_use_text(lock: Path) -> str:
    who = lock_holder(lock)
    end = f"stop that (kill {who[0]})" if who is not None else "stop that"
    by = who[1] if who is not None else "another broker"
    return f"the store {lock.parent} is in use by {by}: {end}, or choose another folder with --home"


def lock_holder(lock: Path) -> tuple[int, str] | None:
    """Return number and text of the process that has the file `lock` open; None if it cannot be seen.

    For a broker under a supervisor it is the supervisor, which would restart the broker.
    """
    import psutil

    wanted = str(lock.resolve())
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or all(file.path != wanted for file in process.open_files()):
                continue
            pid = process.ppid() if "--ends-with-stdin" in process.cmdline() else process.pid
            return pid, process_text(pid)
        except psutil.Error:
            continue
    return None
