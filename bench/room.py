"""Room on the disk: what a benchmark needs of it, and what Apache makes of a disk that is nearly full."""

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
"""Left to whoever else is on the machine."""
AHEAD_BYTES: Final = 4 << 30
"""What is made ahead of a log of more than a file of 1 GiB, and the message index."""
APACHE_FULL: Final = 0.90
"""The share of the disk that is used from which on Apache takes no more messages. It looks from a minute after its
start on, and the bound cannot be set higher (RocketMQ: DefaultMessageStore.CleanCommitLogService)."""


@contextmanager
def folder(prefix: str, parent: Path | None) -> Iterator[Path]:
    """Create a folder for a benchmark in `parent`, and delete it at the end. Yields its path."""
    home = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


def free_bytes(home: Path | None) -> int:
    """What stores made in `home` may take."""
    return max(0, shutil.disk_usage(_place(home)).free - SPARE_BYTES)


def make_room(
    report: Report, options: argparse.Namespace, stored_bytes: float, ahead_bytes: float = AHEAD_BYTES
) -> None:
    """See that there is room for stores of so many bytes, one at a time; Apache is left out where it would refuse.

    `ahead_bytes` is what files take that are made before they are reached; Apache's have holes until then.
    Raises SystemExit, whose text says what there is.
    """
    place, free = _place(options.home), free_bytes(options.home)
    wanted_bytes = stored_bytes + ahead_bytes
    if free < wanted_bytes:
        raise SystemExit(
            f"{wanted_bytes / GB:.1f} GB are needed at {place}, and {free / GB:.1f} GB are free for it: make room, or"
            " name another place with --home"
        )
    share = _apaches_share(place, stored_bytes)
    if share < APACHE_FULL or options.only == "WheelMQ":
        return
    why = f"{place} is {share:.0%} full with a store: from {APACHE_FULL:.0%} on Apache takes nothing (see --home)"
    if options.only == "Apache":
        raise SystemExit(why)
    report.notes.append(f"without Apache: {why}")
    options.only = "WheelMQ"


def _place(home: Path | None) -> Path:
    return home or Path(tempfile.gettempdir())


def _apaches_share(place: Path, more: float) -> float:
    """How full the disk is with `more` bytes on it, as Apache counts: what is kept for root does not exist."""
    usage = shutil.disk_usage(place)
    return (usage.used + more) / (usage.used + usage.free)
