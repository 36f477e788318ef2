"""The number of files that the process may open, sockets included."""

from __future__ import annotations

import contextlib
import resource
from typing import Final

OWN_SHARE: Final = 4
"""One file in four is reserved for the process: logs, queues, indexes, tables of the config folder."""
OWN_MIN: Final = 64
"""Least number of reserved files. With fewer than 128 files in total, half of them are reserved."""


def connections_possible(wanted: int) -> int:
    """Return how many of the `wanted` connections the limit on open files allows, less the reserved files.

    This call raises the limit as far as the process may, as Java does at its start.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # the real bound may be below the reported limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    own = max(soft // OWN_SHARE, min(OWN_MIN, soft // 2))
    return min(wanted, max(1, soft - own))
