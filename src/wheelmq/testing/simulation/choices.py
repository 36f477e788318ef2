"""Random settings for the broker of one run."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from random import Random
from typing import Any, Final

WINDOW_MS: Final = 8000


def pick_settings(r: Random) -> dict[str, Any]:
    precision_ms = r.choice((1000, 1000, 100))
    return {
        "flush_mode": r.choice(("SYNC_FLUSH", "ASYNC_FLUSH")),
        "timer_precision_ms": precision_ms,
        "timer_roll_window_slots": WINDOW_MS // precision_ms,
        "timer_slots": 8 * WINDOW_MS // precision_ms,
        "timer_lead_ms": r.choice((2000, 5000)),
        "timer_log_file_bytes": 52 * r.choice((5, 20, 60)) + 16,
        "queue_file_bytes": 20 * r.choice((4, 16, 64)),
        "log_file_bytes": r.choice((16, 32, 128)) << 10,
        "recall_enable": True,
    }


def pick_blocks(seed: int, settings: dict[str, Any]) -> float:
    """Return the share of the sends that go to blocks, and put the sizes of blocks into `settings`.

    It has a random generator of its own, so that runs without blocks do not depend on it.
    """
    r = Random(f"blocks of {seed}")
    share = r.choice((0.0, 0.15, 0.5))
    if share:
        settings |= {
            "block_length_seconds": r.choice((2, 10, 60)),
            "block_log_file_bytes": r.choice((8, 16, 64)) << 10,
            "block_queue_file_bytes": 24 * r.choice((3, 10, 50)),
            "clean_resource_interval_ms": r.choice((1000, 10_000)),
        }
    return share


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Log nothing, because failures are the purpose of a simulation."""
    logger = logging.getLogger("wheelmq")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)
