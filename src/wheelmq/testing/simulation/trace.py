"""The trace of a run, line by line, and its digest. Two runs of one seed have the same digest."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

LINES_KEPT: Final = 40


class Trace:
    """Lines with the virtual time, without `folder`, which differs. The digest covers all; the last ones are kept."""

    def __init__(self, now_ms: Callable[[], int], folder: Path, show: Callable[[str], None] | None = None) -> None:
        self._began_ms = now_ms()
        self._now_ms = now_ms
        self._folder = str(folder)
        self._show = show
        self._hash = hashlib.sha256()
        self.last: deque[str] = deque(maxlen=LINES_KEPT)

    def note(self, text: str) -> None:
        line = f"{self._now_ms() - self._began_ms:>8} {text.replace(self._folder, '')}"
        self._hash.update(line.encode() + b"\n")
        self.last.append(line)
        if self._show is not None:
            self._show(line)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()[:16]
