"""Folders: whether a home can be written, which folder of a home is the store, and who has a store open."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

from wheelmq.cli.ports import process_text

STORE: Final = "store"
"""The store's folder in a home."""


def home_problem(home: Path) -> str | None:
    """Why nothing can be kept in `home`, in words; None when something can. The folder is not made."""
    there = existing(home)
    if not there.is_dir():
        return f"{home} cannot be written, for {there} is no folder"
    try:
        tempfile.TemporaryFile(dir=there).close()
    except OSError as error:
        return f"{home} cannot be written, for nothing can be made in {there} ({error.strerror or error})"
    return None


def existing(folder: Path) -> Path:
    """The nearest folder at or above `folder` that is there."""
    there = folder.resolve()
    while not there.exists():
        there = there.parent
    return there


def store_in(folder: Path) -> Path:
    """The store that is meant by `folder`: itself, or the one in it, when it is a home."""
    inner = folder / STORE
    return inner if not (folder / "commitlog").is_dir() and (inner / "commitlog").is_dir() else folder


def in_use_text(lock: Path) -> str:
    """What to say of a store whose file `lock` another process holds."""
    who = lock_holder(lock)
    end = f"stop that (kill {who[0]})" if who is not None else "stop that"
    by = who[1] if who is not None else "another broker"
    return f"the store {lock.parent} is in use by {by}: {end}, or choose another folder with --home"


def lock_holder(lock: Path) -> tuple[int, str] | None:
    """The process that has the file `lock` open, by number and in words; None when that cannot be seen.

    A broker that somebody keeps running would be started again: then it is whoever does that.
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
