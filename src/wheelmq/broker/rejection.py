"""The operator's text when the broker rejects sends because it cannot write the store: the cause and the remedy."""

from __future__ import annotations

import errno
from typing import Final

from wheelmq.system.disk import DiskFull, StoreRemoved

_REMEDIES: Final = {
    errno.EMFILE: "the broker may open no more files: raise its limit (ulimit -n, or LimitNOFILE of its service)",
    errno.ENFILE: "the machine may open no more files: raise fs.file-max",
    errno.ENOMEM: "no memory is left to map files: raise vm.max_map_count, or give the machine more memory",
    errno.EROFS: "the store's file system is read-only: see the system's log, then mount it writable",
    errno.EACCES: "the broker may not write its store: give the folder to its user",
    errno.EPERM: "the broker may not write its store: give the folder to its user",
    errno.EIO: "the store's disk fails: see the system's log, and replace it",
}


class TimersLost(Exception):
    """After an internal error the tables of timers in memory no longer agree with the log."""


def rejection_text(error: OSError | TimersLost) -> str:
    """Return the text for the operator: the cause, the remedy, and the message of the system."""
    if isinstance(error, TimersLost):
        return (
            f"an internal error lost timers in memory: {error.args[0]!r}. The broker stops and acknowledges nothing "
            "more. Start it again: it finds all timers in the log. Keep the log of the broker and report the error"
        )
    if isinstance(error, StoreRemoved):
        return (
            f"{error.strerror} ({error.filename}). The broker stops and acknowledges nothing more. If the store was "
            "removed by mistake, put it back from a copy, then start the broker again: else it begins an empty store"
        )
    if isinstance(error, DiskFull):
        return f"the disk is full: {error.strerror}"
    remedy = _REMEDIES.get(error.errno or 0, "the store cannot be written: see the system's log")
    return f"{remedy} ({error})"
