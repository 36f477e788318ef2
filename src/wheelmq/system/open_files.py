"""How many files the process may open, sockets among them."""

from __future__ import annotations

import contextlib
import resource
from typing import Final

OWN_SHARE: Final = 4
"""One file in so many is kept for the process's own: logs, queues, indexes."""


def connections_possible(wanted: int) -> int:
    """How many of `wanted` connections there can be beside the process's own files.

    The limit is raised as far as the process may, as Java does at its start.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # the system may know a bound below the limit it tells
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else min(wanted, max(1, soft - soft // OWN_SHARE))
