"""The columns of parked messages and of their references, as kernels read and write them (formats.rows.PARKED)."""

from __future__ import annotations

from typing import Final

from wheelmq.formats.rows import PARKED, column

FIRE_MS: Final = column(PARKED, "fire_ms")
ORIGIN: Final = column(PARKED, "origin")
POSITION: Final = column(PARKED, "position")
SIZE: Final = column(PARKED, "size")
FLAGS: Final = column(PARKED, "flags")
ENQUEUE_MS: Final = column(PARKED, "enqueue_ms")
STORE_MS: Final = column(PARKED, "store_ms")
KEY_HASH: Final = column(PARKED, "key_hash")
REAL_QUEUE: Final = column(PARKED, "real_queue")

UNIT_COLUMNS: Final = SIZE + 1
"""Number of first columns that a queue unit gives."""
COLUMNS: Final = ENQUEUE_MS + 1
"""Number of first columns that are a reference."""
PARKED_COLUMNS: Final = len(PARKED)

FLAG_ROLL: Final = 1
"""The message is not due yet. It must be parked again, because the wheel is shorter than its delay."""
FLAG_LONG: Final = 2
"""The delay is over five seconds. The broker counts such messages separately, by the part that arms them."""
FLAG_DELETE: Final = 4
"""A cancel that Apache RocketMQ wrote. Recovery applies it, so no reference has this flag."""

LONG_DELAY_MS: Final = 5000
"""Delays over this have FLAG_LONG."""
