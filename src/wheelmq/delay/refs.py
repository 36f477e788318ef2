"""References: what stands for a parked message from the moment it is staged until it is out.

A reference is a row of 64-bit integers. It carries all that release needs to know before it reads the record.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

FIRE_MS: Final = 0
"""When to act: the exact due time, or for a message that rolls the first millisecond of its roll slot."""
INDEX: Final = 1
"""Queue offset in the timer queue: the index part of the origin."""
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

LONG_DELAY_MS: Final = 5000

Refs = npt.NDArray[np.int64]


def make(count: int) -> Refs:
    """`count` references, all zero."""
    return np.zeros((count, COLUMNS), np.int64)


def by_fire_time(refs: Refs) -> Refs:
    """`refs` sorted by fire time, then by queue offset."""
    return refs[np.lexsort((refs[:, INDEX], refs[:, FIRE_MS]))]
