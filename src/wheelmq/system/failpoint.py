"""Failpoints: named places in the code where a test may end the process or change a value.

The environment arms them. An unarmed failpoint costs one dictionary look-up:

    WHEELMQ_FAILPOINTS="commit.units=3,flush.synced=1"   ends the process with SIGKILL at the n-th passage
    WHEELMQ_FAILPOINTS="task.skew_due_ms=5000"           gives `bend` its value
    WHEELMQ_FAILPOINT_LOG=FILE                           gets one line for each failpoint that fired
"""

from __future__ import annotations

import os
import signal


def _parse(text: str) -> dict[str, int]:
    pairs = (pair.partition("=") for pair in text.split(",") if pair)
    return {name: int(value or "1") for name, _, value in pairs}


_armed = _parse(os.environ.get("WHEELMQ_FAILPOINTS", ""))


def reach(name: str) -> None:
    """Pass the failpoint `name`. Does not return if the failpoint is armed to fire at this passage."""
    if not _armed or name not in _armed:
        return
    _armed[name] -= 1
    if _armed[name] != 0:  # below 0: another thread reports the failpoint and ends the process
        return
    _report(name)
    os.kill(os.getpid(), signal.SIGKILL)


def bend(name: str, value: int) -> int:
    """Return `value`, or the value that the test armed instead."""
    return _armed.get(name, value) if _armed else value


def _report(name: str) -> None:
    path = os.environ.get("WHEELMQ_FAILPOINT_LOG")
    if path:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(handle, f"{os.getpid()} {name}\n".encode())
        os.fsync(handle)
        os.close(handle)
