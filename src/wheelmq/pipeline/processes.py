"""Find and kill a process with all its children, or lower their priority."""

from __future__ import annotations

import contextlib
import os

import psutil  # type: ignore[import-untyped, unused-ignore]

GONE_DEADLINE_S = 15.0


def family(pid: int) -> list[psutil.Process]:
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


def stand_back(processes: list[psutil.Process], niceness: int) -> None:
    """Lower the priority of processes to `niceness` below that of this process. Their later children inherit it."""
    goal = min(19, os.getpriority(os.PRIO_PROCESS, 0) + niceness)
    groups = set()
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            groups.add(os.getpgid(process.pid))
    for group in groups:  # by group: a priority set by process would miss every thread except the first
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PGRP, group, goal)
