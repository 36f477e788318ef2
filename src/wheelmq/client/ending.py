"""Waits until the process is asked to end, by SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
import threading
from typing import Final

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
LOOK_S: Final = 1.0
"""On Windows a signal does not interrupt a longer wait."""


async def wait_for_end() -> None:
    """Return at SIGTERM or Ctrl-C. A second one acts as usual.

    In another thread than the main one, and for SIGTERM on Windows, only a cancellation ends the call.
    """
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    handled = []
    try:
        for number in SIGNALS:
            try:
                loop.add_signal_handler(number, ended.set)
            except (NotImplementedError, RuntimeError, ValueError):
                continue
            handled.append(number)
        await ended.wait()
    finally:
        for number in handled:
            loop.remove_signal_handler(number)


def block_until_end() -> None:
    """Block the calling thread until SIGTERM or Ctrl-C. In another thread than the main one, block forever."""
    ended = threading.Event()
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, lambda *_: ended.set()) if is_main else None
    try:
        while not ended.wait(LOOK_S):
            pass
    except KeyboardInterrupt:
        pass
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)
