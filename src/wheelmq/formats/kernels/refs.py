"""The columns of a reference, as kernels read and write them: a row of 64-bit integers for a parked message."""

from __future__ import annotations

from typing import Final

FIRE_MS: Final = 0
"""When to act: the exact due time, or for a message that rolls the first millisecond of its roll slot."""
ORIGIN: Final = 1
POSITION: Final = 2
SIZE: Final = 3
FLAGS: Final = 4
ENQUEUE_MS: Final = 5
"""When it was staged: what its message tells as TIMER_ENQUEUE_MS."""
COLUMNS: Final = 6

FLAG_ROLL: Final = 1
"""Not due yet: park it again (the wheel is shorter than its delay)."""
FLAG_LONG: Final = 2
"""Its delay is over five seconds; counted apart, to show who arms what."""
