"""A process and what came of it: found, and ended."""

from __future__ import annotations

import contextlib

import psutil  # type: ignore[import-untyped, unused-ignore]

GONE_DEADLINE_S = 15.0


def family(pid: int) -> list[psutil.Process]:
    """A process and all that came of it."""
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=GONE_DEADLINE_S)
