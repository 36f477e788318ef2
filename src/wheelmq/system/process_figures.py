"""The figures of this process, from Linux's /proc."""

from __future__ import annotations

import os
import resource
from functools import cache
from typing import Final, NamedTuple

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_OPEN_FILES: Final = "/proc/self/fd"


class ProcessFigures(NamedTuple):
    processor_s: float
    """Processor time of all threads."""
    resident_bytes: int
    virtual_bytes: int
    open_files: int
    open_files_max: float
    threads: int
    start_s: float
    """Time of the start, in seconds since 1970."""


def process_figures() -> ProcessFigures | None:
    """Return the figures; None on a system without /proc."""
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        boot_s = _boot_s()
    except (OSError, StopIteration):
        return None
    user, system, threads, started, virtual_bytes, resident_pages = (
        int(fields[number - 3])
        for number in (14, 15, 20, 22, 23, 24)  # numbers of proc(5); state is field 3
    )
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ProcessFigures(
        processor_s=(user + system) / _TICKS_PER_S,
        resident_bytes=resident_pages * _PAGE_BYTES,
        virtual_bytes=virtual_bytes,
        open_files=_open_files(),
        open_files_max=float("inf") if soft == resource.RLIM_INFINITY else soft,
        threads=threads,
        start_s=boot_s + started / _TICKS_PER_S,
    )


@cache
def _boot_s() -> int:
    """Return the start of the machine, in seconds since 1970. Its file is long on a machine with many cores."""
    with open("/proc/stat", "rb") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(b"btime "))


def _open_files() -> int:
    """Return the number of open files. Since Linux 6.2 it is the size of their folder, which need not be listed."""
    return os.stat(_OPEN_FILES).st_size or len(os.listdir(_OPEN_FILES))
