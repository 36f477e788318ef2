"""A child process that works for its parent in the background: at a lower priority, and until its parent ends."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

KILLED_FIRST: Final = 1000
"""The highest value of `oom_score_adj`. If memory is short, the system kills this process before its parent."""


def give_way(niceness: int) -> None:
    """Take a lower priority by `niceness`, and be the first process to be killed if memory is short (Linux)."""
    os.nice(niceness)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(KILLED_FIRST))


def end_with_parent() -> None:
    """End this process at once when its parent has ended."""
    when_stdin_ends(lambda: os._exit(1))


def when_stdin_ends(act: Callable[[], object]) -> None:
    """Call `act` on another thread when the standard input ends. Only the parent has the other end of this pipe."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        act()

    threading.Thread(target=watch, name="stdin", daemon=True).start()
