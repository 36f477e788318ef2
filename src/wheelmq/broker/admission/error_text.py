"""The operator's text when the broker rejects sends because it cannot write the store: the cause and the remedy."""

from __future__ import annotations

import errno
from typing import Final

from wheelmq.system.disk import DiskFull, StoreRemoved

_REMEDIES: Final = {
    errno.EMFILE: "the broker cannot open more files: raise its limit (ulimit -n, or LimitNOFILE of its service)",
    errno.ENFILE: "the machine cannot open more files: raise fs.file-max",
    errno.ENOMEM: "the broker cannot map more files into memory: raise vm.max_map_count, or add memory",
    errno.EROFS: "the store's file system is read-only: see the system's log, then mount it writable",
    errno.EACCES: "the broker has no permission to write its store: make its user the owner of the folder",
    errno.EPERM: "the broker has no permission to write its store: make its user the owner of the folder",
    errno.EIO: "the store's disk has errors: see the system's log, and replace it",
}


class TimersLost(Exception):
    """After an internal error the tables of timers in memory no longer agree with the log."""


def rejection_text(error: OSError | TimersLost) -> str:
    """Return the text for the operator: the cause, the remedy, and the message of the system."""
    if isinstance(error, TimersLost):
        return (
            f"an internal error lost timers in memory: {error.args[0]!r}. The broker stops and acknowledges no more "
            "requests. Start it again: it recovers all timers from the commit log. Keep the broker's log messages "
            "and report the error"
        )
    if isinstance(error, StoreRemoved):
        return (
            f"{error.strerror} ({error.filename}). The broker stops and acknowledges no more requests. If the store "
            "was removed by mistake, restore a copy before you start the broker again. Otherwise it creates an "
            "empty store"
        )
    if isinstance(error, DiskFull):
        return f"the disk is full: {error.strerror}"
    remedy = _REMEDIES.get(error.errno or 0, "the broker cannot write its store: see the system's log")
    return f"{remedy} ({error})"
