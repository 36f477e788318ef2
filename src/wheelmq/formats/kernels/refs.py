"""The columns of a reference, as kernels read and write them: one row of 64-bit integers per parked message."""

from __future__ import annotations

from typing import Final

FIRE_MS: Final = 0
"""Time to act: the exact due time, or for a message that rolls the first millisecond of its roll slot."""
ORIGIN: Final = 1
POSITION: Final = 2
SIZE: Final = 3
FLAGS: Final = 4
ENQUEUE_MS: Final = 5
"""Time of staging. The released message holds it as TIMER_ENQUEUE_MS."""
COLUMNS: Final = 6

FLAG_ROLL: Final = 1
"""The message is not due yet. It must be parked again, because the wheel is shorter than its delay."""
FLAG_LONG: Final = 2
"""The delay is over five seconds. The broker counts such messages separately, by the part that arms them."""
