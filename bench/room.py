"""Room on the disk: the needs of a benchmark, and Apache's behaviour on a disk that is nearly full."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.report import Report

GB: Final = 1e9
SPARE_BYTES: Final = 1 << 30
"""Left for other users of the machine."""
AHEAD_BYTES: Final = 4 << 30
"""Bytes of files created ahead, for a log of more than one file of 1 GiB, and of the message index."""
APACHE_FULL: Final = 0.90
"""Apache accepts no more messages from this used share of the disk on.

It checks from a minute after its start on, and the limit cannot be higher (RocketMQ:
DefaultMessageStore.CleanCommitLogService).
"""


@contextmanager
def folder(prefix: str, parent: Path | None) -> Iterator[Path]:
    """Create a folder for a benchmark in `parent`, and delete it at the end. Yields its path."""
    home = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


def free_bytes(home: Path | None) -> int:
    """Return the number of bytes that stores in `home` may take."""
    return max(0, shutil.disk_usage(_place(home)).free - SPARE_BYTES)


def make_room(
    report: Report, options: argparse.Namespace, stored_bytes: float, ahead_bytes: float = AHEAD_BYTES
) -> None:
    """Check that there is room for stores of `stored_bytes`, one at a time.

    Leave Apache out if it would reject messages.

    `ahead_bytes` is the size of files that are created before they are needed. Apache's have holes until then. Raises
    SystemExit, whose text names the free room.
    """
    check_room(options.home, stored_bytes, ahead_bytes)
    why = apache_problem(options.home, stored_bytes)
    if why is None or options.only == "WheelMQ":
        return
    if options.only == "Apache":
        raise SystemExit(why)
    report.notes.append(f"without Apache: {why}")
    options.only = "WheelMQ"


def check_room(home: Path | None, stored_bytes: float, ahead_bytes: float = AHEAD_BYTES) -> None:
    """Check that there is room for stores of `stored_bytes`, one at a time. Raises SystemExit if there is not."""
    place, free = _place(home), free_bytes(home)
    wanted_bytes = stored_bytes + ahead_bytes
    if free < wanted_bytes:
        raise SystemExit(
            f"{wanted_bytes / GB:.1f} GB are needed at {place}, and {free / GB:.1f} GB are free for it: make room, or"
            " name another place with --home"
        )


def apache_problem(home: Path | None, stored_bytes: float) -> str | None:
    """Return the reason why Apache would reject messages, on a disk with stores of `stored_bytes`; None without one."""
    place = _place(home)
    share = _apaches_share(place, stored_bytes)
    if share < APACHE_FULL:
        return None
    return f"{place} is {share:.0%} full with a store: from {APACHE_FULL:.0%} on Apache takes nothing (see --home)"


def _place(home: Path | None) -> Path:
    return home or Path(tempfile.gettempdir())


def _apaches_share(place: Path, more: float) -> float:
    """Return the used share of the disk with `more` bytes on it. Like Apache, ignore the share reserved for root."""
    usage = shutil.disk_usage(place)
    return (usage.used + more) / (usage.used + usage.free)
