"""How many files the process may open, sockets among them."""

from __future__ import annotations

import contextlib
import resource
from typing import Final

OWN_SHARE: Final = 4
"""One file in four is kept for the process's own: logs, queues, indexes, tables of the config folder."""
OWN_MIN: Final = 64
"""Files that are kept in any case, or half of all if there are fewer than 128."""


def connections_possible(wanted: int) -> int:
    """How many of `wanted` connections there can be beside the process's own files.

    The limit is raised as far as the process may, as Java does at its start.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # the system may know a bound below the limit it tells
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    own = max(soft // OWN_SHARE, min(OWN_MIN, soft // 2))
    return min(wanted, max(1, soft - own))
