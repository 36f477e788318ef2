"""The last lines of a child process's log, for the terminal. A child that dies usually writes the reason there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

LINES_MAX: Final = 6
LINE_CHARS_MAX: Final = 240
READ_BYTES: Final = 16 << 10


def last_lines(path: Path, start: int = 0, known: str = "") -> list[str]:
    """Return the last lines of the file `path` from byte `start` on; an empty list if it cannot be read.

    Lines that repeat a line of `known` are left out. A file shorter than `start` was replaced by a new one and is read
    from its beginning.
    """
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            begin = start if start <= end else 0
            at = file.seek(max(begin, end - READ_BYTES))
            raw = file.read()
    except OSError:
        return []
    lines = raw.decode(errors="replace").splitlines()
    if at > begin:
        lines = lines[1:]  # the first line is cut off
    repeated = tuple(line.strip() for line in known.splitlines() if line.strip())
    found = [line.rstrip() for line in lines if line.strip() and not line.rstrip().endswith(repeated)][-LINES_MAX:]
    return [line if len(line) <= LINE_CHARS_MAX else f"{line[: LINE_CHARS_MAX - 3]}..." for line in found]


def tail_text(path: Path, start: int = 0, known: str = "") -> str:
    lines = last_lines(path, start, known)
    return (
        "".join(f"\n    {line}" for line in (f"the end of {path}:", *(f"| {line}" for line in lines))) if lines else ""
    )
